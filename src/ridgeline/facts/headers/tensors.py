"""Tensors of a model: the shapes that an architecture declares, and what files hold cut to them. Every name and shape is accounted for.

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
from ridgeline.facts.model import CLASSES, ModelFacts, TensorFacts
from ridgeline.models.declare import Architecture, Layout, Row, Sizes

Shapes = dict[str, tuple[int, ...]]
_SAMPLE_BYTES = 4_096


def expected_shapes(
    architecture: Architecture, sizes: Sizes, parts: Sequence[frozenset[str]], *, tied: bool, flags: Mapping[str, bool] | None
) -> tuple[Shapes, Shapes]:
    """(tensors that must be there, biases that may be there), by canonical name.

    sizes  dimensions by the names that the architecture gives them
    parts  of each layer
    flags  what config.json says of biases; None where the tensors themselves say so, in all layers or none
    """
    must: Shapes = {}
    may: Shapes = {}
    for i, own in enumerate(parts):
        for row in (*architecture.tensors, *(row for part in sorted(own) for row in architecture.parts.get(part, ()))):
            shape = _shape(row, sizes)
            if 0 in shape:
                continue
            must[f"blk.{i}.{row[0]}.weight"] = shape
            when = architecture.biases.get(row[0])
            if when == "always" or (when and flags is not None and flags[when]):
                must[f"blk.{i}.{row[0]}.bias"] = shape[:1]
            elif when and flags is None:
                may[f"blk.{i}.{row[0]}.bias"] = shape[:1]
    for row in (("token_embd", "vocab", "hidden"), *architecture.ends, *(() if tied else (("output", "vocab", "hidden"),))):
        must[f"{row[0]}.weight"] = _shape(row, sizes)
        if row[0] in architecture.end_biases:
            must[f"{row[0]}.bias"] = _shape(row, sizes)[:1]
    return must, may


def plain_sizes(facts: ModelFacts, positions: int) -> Sizes:
    """Dimensions of a decoder whose heads are all alike; `positions` are the rows of a learned table of positions."""
    return {
        "hidden": facts.hidden,
        "ffn": facts.ffn,
        "head": facts.head_dim,
        "queries": facts.heads * facts.head_dim,
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
    part = name.split(".")[2] if name.startswith("blk.") and name.count(".") > 2 else ""
    if part.startswith(("attn_", "ssm_")) and not part.endswith("norm"):
        return "attention"
    if part.startswith("ffn_") and not part.endswith("norm"):
        return "experts" if part.endswith("_exps") else "ffn"
    return "norms"


def by_class(amounts: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Sums of (canonical name, amount) by class."""
    sums = dict.fromkeys(CLASSES, 0)
    for name, amount in amounts:
        sums[tensor_class(name)] += amount
    return sums


def with_tensors(facts: ModelFacts, tensors: Mapping[str, TensorFacts], identity: bytes) -> ModelFacts:
    """Facts that runners can load: every tensor by its canonical name, counted and weighed, and the identity of the files."""
    return replace(
        facts,
        parameters=by_class((name, prod(tensor.shape)) for name, tensor in tensors.items()),
        stored=by_class((name, tensor.bytes) for name, tensor in tensors.items()),
        tensors=tensors,
        fingerprint=identity,
    )


def fingerprint(files: Iterable[Path], tensors: Iterable[TensorFacts], config: bytes = b"") -> bytes:
    """SHA-256 over `config`, the size and the header of every file, and the first and last 4 KiB of every stored tensor.

    Equal for copies, another for any other number in a header or any other weights that a sample shows.
    tensors  as the files hold them, not as they are cut
    config   what says the network's numbers where no file with tensors does
    """
    digest = hashlib.sha256(config)
    held: dict[Path, list[TensorFacts]] = {path: [] for path in files}
    for tensor in tensors:
        held[tensor.file].append(tensor)
    for path, inside in held.items():
        with path.open("rb") as file:
            size = file.seek(0, 2)
            header_bytes = min((tensor.offset for tensor in inside), default=min(size, MAX_HEADER_BYTES))
            digest.update(f"{size} {header_bytes}\n".encode())
            spans = [(0, header_bytes)]
            for tensor in inside:
                length = min(_SAMPLE_BYTES, tensor.bytes)
                spans += [(tensor.offset, length), (tensor.offset + tensor.bytes - length, length)]
            for offset, length in spans:
                file.seek(offset)
                digest.update(file.read(length))
    return digest.digest()


def canonical_tensors(
    stored: Mapping[str, TensorFacts], layout: Layout, must: Shapes, may: Shapes, architecture: str
) -> dict[str, TensorFacts]:
    """The tensors of `must`, and those of `may` that are there, cut out of what is stored.

    Raises ModelFormatError where one is missing, has another shape, or a tensor belongs to no part of the architecture.
    """
    found: dict[str, TensorFacts] = {}
    strange = []
    shapes = may | must
    for name, tensor in stored.items():
        parts = parts_of(name, layout)
        if parts is None or not all(part in shapes for part in parts):
            strange.append(name)
            continue
        for part in _cut(tensor, parts, shapes, layout) if parts else ():
            if part.name in found:
                raise ModelFormatError(f"tensor {quoted(part.name)} stands twice, once as {quoted(name)}; remove one of them")
            found[part.name] = part
    _check_complete(found.keys(), must, may, architecture)
    if strange:
        raise ModelFormatError(
            f"{len(strange)} tensors, {quoted(min(strange))} among them, belong to no {architecture} model that is supported; "
            "without them its answers would be wrong"
        )
    return found


def parts_of(name: str, layout: Layout) -> tuple[str, ...] | None:
    """Canonical names of what the stored tensor `name` holds; () where it changes nothing, None where it is not known."""
    if re.fullmatch(layout.ignored, name):
        return ()
    for root in layout.roots:
        if not name.startswith(root):
            continue
        stem, _, suffix = name[len(root) :].rpartition(".")
        if suffix not in ("weight", "bias"):
            continue
        if stem in layout.ends:
            return (f"{layout.ends[stem]}.{suffix}",)
        number, _, inner = stem.removeprefix(layout.prefix).partition(".")
        if stem.startswith(layout.prefix) and re.fullmatch(r"0|[1-9]\d{0,3}", number) and inner in layout.layers:
            return tuple(f"blk.{number}.{part}.{suffix}" for part in layout.layers[inner])
    return None


def _check_complete(found: Iterable[str], must: Shapes, may: Shapes, architecture: str) -> None:
    names = set(found)
    missing = [name for name in must if name not in names]
    kinds = {name.split(".", 2)[2] for name in may if name in names}
    missing += [name for name in may if name.split(".", 2)[2] in kinds and name not in names]
    if missing:
        shape = (may | must)[missing[0]]
        raise ModelFormatError(f"tensor {missing[0]!r} of shape {shape} is missing; this is not a complete {architecture} model")


def _cut(tensor: TensorFacts, parts: tuple[str, ...], shapes: Shapes, layout: Layout) -> list[TensorFacts]:
    """The parts of a stored tensor, each with its place in the file."""
    wanted = [shapes[part] for part in parts]
    if tensor.integers is not None:
        return _cut_integers(tensor, parts, wanted, layout)
    rows = sum(shape[0] for shape in wanted)
    views = [layout.views.get(part.split(".")[-2], "") for part in parts]
    transposed = views[0] == "transposed" and len(wanted[0]) == 2
    whole = (wanted[0][1], rows) if transposed else (rows, *wanted[0][1:])
    if tensor.shape != whole:
        raise ModelFormatError(f"tensor {quoted(tensor.name)} has shape {tensor.shape}, the header says {whole}")
    form = FORMATS.get(tensor.kind)
    if form is None:
        raise ModelFormatError(f"tensor {quoted(tensor.name)} is stored as {tensor.kind}, which is not computed; F32, F16 and BF16 are")
    if (transposed and form.block_elements != 1) or (len(parts) > 1 and len(whole) == 1 and form.block_elements != 1):
        raise ModelFormatError(
            f"tensor {quoted(tensor.name)} is stored as {tensor.kind}, which cannot be cut into parts; F32, F16, BF16 can"
        )
    unit = tensor.bytes // rows if not transposed else form.block_bytes
    pieces, before = [], 0
    for part, shape, view in zip(parts, wanted, views, strict=True):
        view = "" if view == "transposed" and not transposed else view
        length = tensor.bytes // rows * shape[0]
        stride = rows * form.block_bytes if transposed else 0
        pieces.append(replace(tensor, name=part, shape=shape, offset=tensor.offset + before * unit, bytes=length, view=view, stride=stride))
        before += shape[0]
    return pieces


def _cut_integers(tensor: TensorFacts, parts: tuple[str, ...], wanted: list[tuple[int, ...]], layout: Layout) -> list[TensorFacts]:
    """The parts of a matrix of grouped integers: rows of the same stored tensors, and their share of the bytes."""
    assert tensor.integers is not None
    rows = sum(shape[0] for shape in wanted)
    whole = (rows, *wanted[0][1:])
    if tensor.shape != whole:
        raise ModelFormatError(f"tensor {quoted(tensor.name)} stands for a matrix of {tensor.shape}, the header says {whole}")
    views = {layout.views.get(part.split(".")[-2], "") for part in parts} - {"", "transposed" if tensor.integers.layout == "gptq" else ""}
    if views:
        raise ModelFormatError(f"tensor {quoted(tensor.name)} is stored as {tensor.kind}, which is not computed for it; F32, F16, BF16 are")
    pieces, before = [], 0
    for part, shape in zip(parts, wanted, strict=True):
        size = tensor.bytes * (before + shape[0]) // rows - tensor.bytes * before // rows
        pieces.append(replace(tensor, name=part, shape=shape, bytes=size, integers=replace(tensor.integers, first=before)))
        before += shape[0]
    return pieces
