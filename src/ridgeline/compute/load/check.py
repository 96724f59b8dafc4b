"""Sanity of stored weights before they are loaded: parts of every tensor are read and looked at, whatever runner loads them.

Owns what is damage (scales or elements that are not finite, holes of zeros, one block over and over, scales far beyond the others) and how
much is read. Finds what a broken download, a bad disk or a wrong conversion leaves; a few flipped codes show in answers, if anywhere.
"""

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.quant.bits import Bytes
from ridgeline.compute.quant.formats import dequantise
from ridgeline.errors import Finding, ModelFormatError
from ridgeline.facts.files.formats import FORMATS
from ridgeline.facts.headers.quantisation import MICROSCALED, NVFP4
from ridgeline.facts.model import ModelFacts, TensorFacts

CHECK: Final = "weights"
FIX: Final = "download the file again, and compare its SHA-256 with the publisher's"

PART_BYTES: Final = 1 << 16
PARTS: Final = 16
"""Parts of a tensor, evenly spaced: smaller ones are read whole."""

MAX_SCALE_RATIO: Final = 200.0
"""Largest scale over the geometric mean of a tensor's. Real models have up to 30; a flipped upper bit of an exponent makes 256 or more."""
MAX_ELEMENT: Final = 1e6
"""Largest element of float matrices. A flipped upper bit of a bf16's exponent makes 1e36."""

SCALES: Final = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    **dict.fromkeys(("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), (0,)),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
}
"""Format of blocks → bytes at which an fp16 scale or minimum begins."""
CODE_BYTES: Final = 16
"""Bytes of the codes of a group of MXFP4 whose scales are stored in another tensor; of NVFP4's scales as many are looked at together."""
OFFSETS: Final = ("plus_one", "minus_exp")
"""Transforms of vectors that may be zeros."""
_SIZE, _INFINITY, _OCTAVE = np.uint16(0x7FFF), np.uint16(0x7C00), 1 << 10
"""Numbers made of the bits of fp16: all but the sign; the least that is not finite; a factor of two."""


def check_weights(facts: ModelFacts, threads: int) -> tuple[Finding, ...]:
    """Problems of the stored weights; reads at most 1 MiB of each tensor.

    Raises ModelFormatError where an element or a scale is not a finite number: every answer would be lost.
    """
    files = {path: os.open(path, os.O_RDONLY) for path in {path for tensor in facts.tensors.values() for path in tensor.files}}
    try:
        with ThreadPoolExecutor(threads) as pool:
            found = list(pool.map(partial(_check_tensor, files), facts.tensors.values()))
        if facts.ties_ignored:
            found.append(_check_head(files, facts.tensors))
    finally:
        for file in files.values():
            os.close(file)
    return _summary([problem for problem in found if problem is not None])


@dataclass(frozen=True, slots=True)
class _Problem:
    """A tensor's problem; those of the same kind are told once, with the first tensor's name and their number."""

    name: str
    severity: Literal["error", "warning"]
    cause: str


def _summary(problems: list[_Problem]) -> tuple[Finding, ...]:
    first: dict[str, _Problem] = {}
    for problem in problems:
        first.setdefault(problem.cause.partition(" (")[0], problem)
    found = []
    for kind, problem in first.items():
        others = sum(each.cause.startswith(kind) for each in problems) - 1
        more = f", and {others} more tensors" if others else ""
        found.append(Finding(problem.severity, CHECK, f"tensor {problem.name!r} {problem.cause}{more}", FIX))
    return tuple(found)


def _check_tensor(files: Mapping[Path, int], tensor: TensorFacts) -> _Problem | None:
    if tensor.experts:
        tensor, each = replace(tensor.experts[0], name=tensor.name), tensor.experts
    else:
        each = (tensor,)
    # Experts may share the tensor that holds their scales or codes.
    stored = list(dict.fromkeys([_looked_at(one) for one in each]))
    count = max(1, PARTS // len(stored))
    parts = [part for one in stored for part in _parts(files[one.file], one, count, PART_BYTES * PARTS // (len(stored) * count))]
    layout = "" if tensor.quantised is None else tensor.quantised.layout
    if layout in NVFP4:
        _check_finite(tensor, np.concatenate([part.ravel() for part in parts]) & np.uint8(0x7F) == 0x7F, "scales")
    if layout in (*MICROSCALED, *NVFP4):
        return _check_holes(tensor, parts)
    kind = stored[0].kind
    return _check_blocks(tensor, parts) if kind in SCALES else _check_floats(tensor, kind, parts)


def _looked_at(tensor: TensorFacts) -> TensorFacts:
    """The part of a tensor that is read: of a quantised one the scales; of MXFP4, each of whose scales is a finite power of two, the
    codes."""
    if tensor.quantised is None:
        return tensor
    return tensor.quantised.codes if tensor.quantised.layout in MICROSCALED else tensor.quantised.scales


def _check_head(files: Mapping[Path, int], tensors: Mapping[str, TensorFacts]) -> _Problem | None:
    """A problem where a head that config.json ties to the embedding is another matrix: transformers would take the embedding."""
    embedding, head = tensors["token_embd.weight"], tensors["output.weight"]
    if embedding.quantised or head.quantised or embedding.kind != head.kind:
        return None
    pairs = zip(_parts(files[embedding.file], embedding), _parts(files[head.file], head), strict=True)
    different = sum(not np.array_equal(one, other) for one, other in pairs)
    cause = f"is not the embedding, to which config.json ties it, and is used as the head ({different} parts differ)"
    return _Problem(head.name, "warning", cause) if different else None


def _parts(file: int, tensor: TensorFacts, most: int = PARTS, part_bytes: int = PART_BYTES) -> Iterator[Bytes]:
    """At most `most` parts of the tensor: uint8 [n, bytes of a block]. Between the elements of a transposed one lie those of others of this
    model."""
    size = CODE_BYTES if tensor.kind in ("U8", "F8_E4M3") else FORMATS[tensor.kind].block_bytes
    span = tensor.bytes
    if tensor.stride:
        span = (tensor.shape[-1] - 1) * tensor.stride + (tensor.shape[0] - 1) * (tensor.row_stride or size) + size
    count = span // size
    blocks = max(1, part_bytes // size)
    starts = [0] if count <= most * blocks or most == 1 else [index * (count - blocks) // (most - 1) for index in range(most)]
    for start in starts:
        data = os.pread(file, size * (min(count, most * blocks) if len(starts) == 1 else blocks), tensor.offset + start * size)
        yield np.frombuffer(data, np.uint8, len(data) // size * size).reshape(-1, size)


def _check_blocks(tensor: TensorFacts, parts: list[Bytes]) -> _Problem | None:
    for offset in SCALES[tensor.kind]:
        # As integers, without their signs, the bits of fp16 grow as their logarithms do.
        bits = np.concatenate([part[:, offset : offset + 2] for part in parts]).view(np.uint16)[:, 0] & _SIZE
        _check_finite(tensor, bits >= _INFINITY, "scales")
        usual = int(bits.sum(dtype=np.int64)) / max(1, np.count_nonzero(bits))
        ratio = 2.0 ** ((int(bits.max()) - usual) / _OCTAVE)
        if usual and ratio > MAX_SCALE_RATIO:
            cause = f"has a scale far beyond the others ({ratio:.0f} times the mean; up to 30 times is usual)"
            return _Problem(tensor.name, "warning", cause)
    return _check_holes(tensor, parts)


def _check_holes(tensor: TensorFacts, parts: list[Bytes]) -> _Problem | None:
    zeros = sum(not part.any() for part in parts)
    if zeros and (zeros == len(parts) or _is_in_layer(tensor)):
        return _Problem(tensor.name, "error", f"holds nothing but zeros ({zeros} of the {len(parts)} parts that were read)")
    block = parts[0][0]
    if len(parts[-1]) > 1 and all((part[-1] == block).all() and (part == block).all() for part in parts):
        return _Problem(tensor.name, "error", f"holds the same {len(block)} bytes over and over (in {len(parts)} parts that were read)")
    return None


def _check_floats(tensor: TensorFacts, kind: str, parts: list[Bytes]) -> _Problem | None:
    values = dequantise(kind, np.concatenate(parts).reshape(1, -1))[0]
    what = "elements" if tensor.quantised is None else "scales"
    _check_finite(tensor, ~np.isfinite(values), what)
    if tensor.name.endswith(".bias"):
        return None
    low, high = float(values.min()), float(values.max())
    is_matrix = len(tensor.shape) > 1
    if low == high and (is_matrix or (low == 0.0 and tensor.transform not in OFFSETS)) and len(values) > 1 and tensor.quantised is None:
        return _Problem(tensor.name, "error", f"holds nothing but {low:g} ({len(values)} elements were read)")
    if is_matrix and max(-low, high) > MAX_ELEMENT:
        return _Problem(tensor.name, "warning", f"holds absurd {what} ({max(-low, high):.3g}; at most {MAX_ELEMENT:g} is usual)")
    return None


def _check_finite(tensor: TensorFacts, bad: NDArray[np.bool_], what: str) -> None:
    if count := int(np.count_nonzero(bad)):
        raise ModelFormatError(f"tensor {tensor.name!r} holds {count} {what} that are not finite, of {bad.size} that were read: {FIX}")


def _is_in_layer(tensor: TensorFacts) -> bool:
    """Embeddings and heads have rows of zeros for ids that nothing names."""
    return tensor.name.startswith("blk.")
