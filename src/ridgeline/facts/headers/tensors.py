"""Tensors of a model: the shapes that an architecture declares, and stored tensors split to match. Every name and shape is checked.

Owns the classes of tensors and the identity of a model's files.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

from ridgeline.errors import ModelFormatError
from ridgeline.facts.files.formats import FORMATS
from ridgeline.facts.files.gguf_values import MAX_HEADER_BYTES
from ridgeline.facts.files.values import quoted
from ridgeline.facts.headers.alternating import split_alternating
from ridgeline.facts.headers.latent import split_heads
from ridgeline.facts.headers.packed import packed_bytes
from ridgeline.facts.headers.quantisation import MXFP4
from ridgeline.facts.model import CLASSES, ModelFacts, TensorFacts
from ridgeline.models.declare import Architecture, Row, Sizes, TensorNames

Shapes = dict[str, tuple[int, ...]]
_SAMPLE_BYTES = 4_096
_FLOATS = "F32, F16 and BF16"
_IN_LAYER = re.compile(r"(0|[1-9]\d{0,3})\.(.+)")


def expected_shapes(
    architecture: Architecture, sizes: Sizes, parts: Sequence[frozenset[str]], *, tied: bool, flags: Mapping[str, bool] | None
) -> tuple[Shapes, Shapes]:
    """(required tensors, optional biases): shapes by canonical name.

    sizes  dimensions by the names that the architecture gives them
    parts  of each layer
    flags  what config.json says of biases; None where the tensors themselves say so, in all layers or none
    """
    required: Shapes = {}
    optional: Shapes = {}
    for i, own in enumerate(parts):
        for row in (*architecture.tensors, *(row for part in sorted(own) for row in architecture.parts.get(part, ()))):
            shape = _shape(row, sizes)
            if 0 in shape:
                continue
            required[f"blk.{i}.{_whole(row[0])}"] = shape
            when = architecture.biases.get(row[0])
            if when == "always" or (when and flags is not None and flags[when]):
                required[f"blk.{i}.{row[0]}.bias"] = shape[:-1] or shape
            elif when and flags is None:
                optional[f"blk.{i}.{row[0]}.bias"] = shape[:-1] or shape
    for row in (("token_embd", "vocab", "hidden"), *architecture.outer_tensors, *(() if tied else (("output", "vocab", "hidden"),))):
        required[f"{row[0]}.weight"] = _shape(row, sizes)
        if row[0] in architecture.outer_biases:
            required[f"{row[0]}.bias"] = _shape(row, sizes)[:1]
    return required, optional


def _whole(name: str) -> str:
    """A row's name with its suffix."""
    return name if name.endswith(".bias") else f"{name}.weight"


def dense_sizes(facts: ModelFacts, positions: int) -> Sizes:
    """Dimensions of a dense decoder; `positions` are the rows of a learned position table."""
    return {
        "hidden": facts.hidden,
        "ffn": facts.ffn,
        "head": facts.head_dim,
        "heads": facts.heads,
        "queries": facts.heads * facts.head_dim,
        "gated_queries": 2 * facts.heads * facts.head_dim,
        "keys": facts.kv_heads * facts.head_dim,
        "vocab": facts.vocab,
        "context": positions,
    }


def _shape(row: Row, sizes: Sizes) -> tuple[int, ...]:
    """Dimensions of a row; one that the sizes do not have is 0."""
    return tuple(sizes.get(name, 0) for name in row[1:])


def tensor_class(name: str) -> str:
    """The class (`facts.model.CLASSES`) of a canonical name."""
    if name.startswith(("token_embd.", "position_embd.")):
        return "embedding"
    if name.startswith("output."):
        return "head"
    part = name.split(".")[2] if name.startswith("blk.") and name.count(".") > 1 else ""
    if part.startswith(("attn_", "ssm_")) and not part.endswith("norm"):
        return "attention"
    if part.startswith(("ffn_", "exp_probs_b")) and not part.endswith("norm"):
        return "experts" if part.endswith("_exps") else "ffn"
    return "norms"


def sum_by_class(amounts: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Sums of (canonical name, amount) by class."""
    sums = dict.fromkeys(CLASSES, 0)
    for name, amount in amounts:
        sums[tensor_class(name)] += amount
    return sums


def packed_by_class(tensors: Mapping[str, TensorFacts]) -> dict[str, int]:
    """Bytes by class as native kernels read them, without what fills up the last rows of a matrix."""
    return sum_by_class((name, packed_bytes(tensor)) for name, tensor in tensors.items())


def add_tensors(facts: ModelFacts, tensors: Mapping[str, TensorFacts], identity: bytes) -> ModelFacts:
    """`facts` with tensors by canonical name, their parameters and bytes by class, and the fingerprint: what runners load."""
    return replace(
        facts,
        parameters=sum_by_class((name, prod(tensor.shape)) for name, tensor in tensors.items()),
        stored=sum_by_class((name, tensor.bytes) for name, tensor in tensors.items()),
        packed=packed_by_class(tensors),
        tensors=tensors,
        fingerprint=identity,
    )


def fingerprint(files: Iterable[Path], tensors: Iterable[TensorFacts], config: bytes = b"") -> bytes:
    """SHA-256 over `config`, the size and the header of every file, and the first and last 4 KiB of every stored tensor.

    Equal for copies; differs where a number of a header or a sampled weight differs.
    tensors  as stored, before fused ones are split
    config   text of the config.json that belongs to safetensors files
    """
    digest = hashlib.sha256(config)
    by_file: dict[Path, list[TensorFacts]] = {path: [] for path in files}
    for tensor in tensors:
        by_file[tensor.file].append(tensor)
    for path, stored in by_file.items():
        with path.open("rb") as file:
            size = file.seek(0, 2)
            header_bytes = min((tensor.offset for tensor in stored), default=min(size, MAX_HEADER_BYTES))
            digest.update(f"{size} {header_bytes}\n".encode())
            spans = [(0, header_bytes)]
            for tensor in stored:
                length = min(_SAMPLE_BYTES, tensor.bytes)
                spans += [(tensor.offset, length), (tensor.offset + tensor.bytes - length, length)]
            for offset, length in spans:
                file.seek(offset)
                digest.update(file.read(length))
    return digest.digest()


def canonical_tensors(
    stored: Mapping[str, TensorFacts], names: TensorNames, required: Shapes, optional: Shapes, architecture: str
) -> dict[str, TensorFacts]:
    """The tensors of `required`, and those of `optional` that exist, split from what is stored.

    Raises ModelFormatError where one is missing or has another shape, and for an unknown tensor.
    """
    found: dict[str, TensorFacts] = {}
    unknown = []
    shapes = optional | required
    for name, tensor in stored.items():
        parts = canonical_names(name, names)
        if parts is None or not all(part in shapes for part in parts):
            unknown.append(name)
            continue
        for part in split_tensor(tensor, parts, shapes, names) if parts else ():
            if part.name in found:
                raise ModelFormatError(f"tensor {quoted(part.name)} appears twice, once as {quoted(name)}; remove one of them")
            found[part.name] = part
    _check_complete(found.keys(), required, optional, architecture)
    if unknown:
        raise ModelFormatError(
            f"{len(unknown)} tensors, {quoted(min(unknown))} among them, are not part of a supported {architecture} model; "
            "without them its answers would be wrong"
        )
    return found


def canonical_names(name: str, names: TensorNames) -> tuple[str, ...] | None:
    """Canonical names of the parts of the stored tensor `name`; () for one that is ignored, None for an unknown one."""
    if re.fullmatch(names.ignored, name):
        return ()
    for root in names.roots:
        if not name.startswith(root):
            continue
        stem, _, suffix = name[len(root) :].rpartition(".")
        layer = _IN_LAYER.fullmatch(name[len(root) :].removeprefix(names.prefix)) if name[len(root) :].startswith(names.prefix) else None
        if layer and layer[2] in names.layers:
            return tuple(f"blk.{layer[1]}.{_whole(part)}" for part in names.layers[layer[2]])
        if suffix not in ("weight", "bias"):
            continue
        if stem in names.outer:
            return (f"{names.outer[stem]}.{suffix}",)
        if layer and (inner := layer[2].removesuffix(f".{suffix}")) in names.layers:
            return tuple(f"blk.{layer[1]}.{part}.{suffix}" for part in names.layers[inner])
    return None


def _longer_than_one(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Some writers leave out dimensions of one, some add them."""
    return tuple(each for each in shape if each != 1)


def _check_complete(found: Iterable[str], required: Shapes, optional: Shapes, architecture: str) -> None:
    names = set(found)
    missing = [name for name in required if name not in names]
    kinds = {name.split(".", 2)[2] for name in optional if name in names}
    missing += [name for name in optional if name.split(".", 2)[2] in kinds and name not in names]
    if missing:
        shape = (optional | required)[missing[0]]
        raise ModelFormatError(f"tensor {missing[0]!r} of shape {shape} is missing; this is not a complete {architecture} model")


def split_tensor(tensor: TensorFacts, parts: tuple[str, ...], shapes: Shapes, names: TensorNames) -> list[TensorFacts]:
    """The parts of a stored tensor, each with its place in the file."""
    if parts[0].split(".")[-2] in names.alternating or (tensor.quantised and tensor.quantised.layout == MXFP4):
        return split_alternating(tensor, parts, shapes)
    if len(tensor.shape) == 2 and len(shapes[parts[0]]) == 3:
        return split_heads(tensor, parts, shapes)
    if tensor.experts or (len(tensor.shape) == 3 and (len(parts) > 1 or parts[0].split(".")[-2] in names.transforms)):
        return _split_experts(tensor, parts, shapes, names)
    expected = [shapes[part] for part in parts]
    first_row = names.transforms.get(parts[0].split(".")[-2]) == "first_row"
    if first_row and len(tensor.shape) == 2 and tensor.shape[0] and tensor.quantised is None:
        tensor = replace(tensor, shape=tensor.shape[1:], bytes=tensor.bytes // tensor.shape[0])
    transforms = [_transform(part, names) for part in parts]
    rows = sum(shape[0] for shape in expected)
    transposed = tensor.quantised is None and transforms[0] == "transposed" and len(expected[0]) == 2
    whole = (expected[0][1], rows) if transposed else (rows, *expected[0][1:])
    if tensor.shape != whole and _longer_than_one(tensor.shape) != _longer_than_one(whole):
        raise ModelFormatError(f"tensor {quoted(tensor.name)} has shape {tensor.shape}, the header says {whole}")
    ends = [sum(shape[0] for shape in expected[: i + 1]) for i in range(len(parts))]
    starts = [0, *ends[:-1]]
    if tensor.quantised is not None:
        # GPTQ stores a Conv1D as it stores any matrix: [N, K] once gathered.
        if any(transform and (transform != "transposed" or tensor.quantised.layout != "gptq") for transform in transforms):
            raise ModelFormatError(f"tensor {quoted(tensor.name)} is stored as {tensor.kind}, which is not supported for it; {_FLOATS} are")
        return [
            replace(
                tensor,
                name=part,
                shape=shape,
                bytes=tensor.bytes * end // rows - tensor.bytes * start // rows,
                quantised=replace(tensor.quantised, first=start),
            )
            for part, shape, start, end in zip(parts, expected, starts, ends, strict=True)
        ]
    form = FORMATS.get(tensor.kind)
    if form is None:
        raise ModelFormatError(f"tensor {quoted(tensor.name)} is stored as {tensor.kind}, which is not supported; {_FLOATS} are")
    if form.block_elements != 1 and (transposed or (len(parts) > 1 and len(whole) == 1)):
        raise ModelFormatError(f"tensor {quoted(tensor.name)} is stored as {tensor.kind}, which cannot be split; {_FLOATS} can")
    row_bytes = tensor.bytes // rows
    return [
        replace(
            tensor,
            name=part,
            shape=shape,
            offset=tensor.offset + start * (form.block_bytes if transposed else row_bytes),
            bytes=row_bytes * shape[0],
            transform="" if transform == "first_row" or (transform == "transposed" and not transposed) else transform,
            stride=rows * form.block_bytes if transposed else 0,
        )
        for part, shape, transform, start in zip(parts, expected, transforms, starts, strict=True)
    ]


def _transform(part: str, names: TensorNames) -> str:
    """Biases of matrices that are stored transposed are rows like any other."""
    transform = names.transforms.get(part.split(".")[-2], "")
    return "" if transform == "transposed" and part.endswith(".bias") else transform


def _split_experts(tensor: TensorFacts, parts: tuple[str, ...], shapes: Shapes, names: TensorNames) -> list[TensorFacts]:
    """The parts of a tensor with a matrix per expert, of which each is split as any matrix is."""
    count = tensor.shape[0]
    if any(len(shapes[part]) != len(tensor.shape) or shapes[part][0] != count for part in parts):
        raise ModelFormatError(f"tensor {quoted(tensor.name)} has shape {tensor.shape}, the header says {shapes[parts[0]]}")
    size = tensor.bytes // count
    experts = tensor.experts or tuple(
        replace(tensor, shape=tensor.shape[1:], offset=tensor.offset + number * size, bytes=size) for number in range(count)
    )
    own = {part: shapes[part][1:] for part in parts}
    split = [split_tensor(expert, parts, own, names) for expert in experts]
    found = []
    for part, matrices in zip(parts, zip(*split, strict=True), strict=True):
        total = sum(matrix.bytes for matrix in matrices)
        found.append(TensorFacts(part, tensor.kind, shapes[part], tensor.file, matrices[0].offset, total, experts=matrices))
    return found
