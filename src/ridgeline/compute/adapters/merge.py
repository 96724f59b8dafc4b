"""Merges an adapter into a copy of a checkpoint: each changed matrix becomes W + scale · B · A, rounded once to its type."""

import shutil
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.adapters.store import read_pairs
from ridgeline.compute.load.views import halves_order
from ridgeline.compute.lowering.adapters import pairs_of
from ridgeline.compute.ops.lora import Pair, widened
from ridgeline.core.params import Adapter
from ridgeline.errors import ConfigError, ModelFormatError
from ridgeline.facts.headers.adapter import MAX_RANK, digest_of, file_contents, read_adapter
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.facts.model import TensorFacts

_TYPES: Final = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def merge(base: Path, adapter: Path, out: Path) -> int:
    """Writes to `out` the checkpoint at `base`, a directory of safetensors files, with the adapter merged; returns the number of changed
    matrices. Raises ConfigError, ModelFormatError, ModelNotFoundError; `out` is not there then."""
    if not base.is_dir():
        raise ConfigError(f"{base} is no checkpoint of safetensors files; merge into the one that it was made of, and convert that")
    if out.exists():
        raise ConfigError(f"{out} exists; give the path of a folder that does not")
    facts = read_model_facts(base)
    found = read_adapter(adapter, facts)
    quantised = next((part.name for part in found.parts if facts.tensors[part.name].kind not in _TYPES), None)
    if quantised is not None:
        raise ModelFormatError(f"{quantised} is stored as {facts.tensors[quantised].kind}; merge into the checkpoint before quantisation")
    loaded = read_pairs(Adapter(adapter.name, digest_of(file_contents(found)), str(adapter)), facts, MAX_RANK)
    part = out.with_name(f"{out.name}.part")
    shutil.copytree(base, part)
    try:
        for each in found.parts:
            tensor = facts.tensors[each.name]
            _change(tensor, part / tensor.file.relative_to(base), loaded[pairs_of(each.name)], facts.head_dim)
        part.rename(out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return len(found.parts)


def _change(tensor: TensorFacts, file: Path, pair: Pair, head_dim: int) -> None:
    """Changes the elements of one matrix in the file, whose rows may be in the order of pairwise RoPE."""
    with file.open("r+b") as opened:
        size = np.dtype(_TYPES[tensor.kind]).itemsize
        rows, columns = tensor.shape
        is_turned = tensor.transform == "transposed"
        mapped = np.memmap(opened, np.uint8, mode="r+")
        strides = (size, tensor.stride) if is_turned else (columns * size, size)
        weight: NDArray[Any] = np.ndarray((rows, columns), _TYPES[tensor.kind], mapped.data, tensor.offset, strides)
        values = widened(tensor.kind, weight).astype(np.float64)
        order = halves_order(rows, head_dim) if tensor.transform == "interleaved" else np.arange(rows)
        values[order] += pair.scale * (widened(pair.kind, pair.b).T.astype(np.float64) @ widened(pair.kind, pair.a).astype(np.float64))
        weight[...] = narrowed(tensor.kind, values.astype(np.float32))
        mapped.flush()


def narrowed(kind: str, values: NDArray[np.float32]) -> NDArray[Any]:
    """fp32 rounded to a stored type, ties to even; the inverse of `widened`."""
    if kind != "BF16":
        return values.astype(_TYPES[kind])
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
