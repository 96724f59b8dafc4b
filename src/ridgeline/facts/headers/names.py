"""From tensors as files name them to the canonical ones: every name and shape accounted for, fused tensors cut into parts."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ridgeline.errors import ModelFormatError
from ridgeline.facts.files.formats import FORMATS
from ridgeline.facts.files.gguf_values import quoted
from ridgeline.facts.headers.architectures import Architecture, Layout
from ridgeline.facts.model import ModelFacts, TensorFacts

Shapes = dict[str, tuple[int, ...]]


def expected_shapes(
    architecture: Architecture, facts: ModelFacts, positions: int, flags: Mapping[str, bool] | None
) -> tuple[Shapes, Shapes]:
    """(tensors that must be there, biases that may be there), by canonical name.

    positions  rows of a learned table of positions
    flags      what config.json says of biases; None where the tensors themselves say so, in all layers or none
    """
    sizes = {
        "hidden": facts.hidden,
        "ffn": facts.ffn,
        "head": facts.head_dim,
        "queries": facts.heads * facts.head_dim,
        "keys": facts.kv_heads * facts.head_dim,
        "vocab": facts.vocab,
        "context": positions,
    }
    ends = (("token_embd", "vocab", "hidden"), *architecture.ends, *(() if facts.tied else (("output", "vocab", "hidden"),)))
    rows_of = {name: rows for name, rows, _ in (*architecture.tensors, *ends)}
    must: Shapes = {}
    may: Shapes = {}
    for i in range(facts.layers):
        for name, rows, columns in architecture.tensors:
            must[f"blk.{i}.{name}.weight"] = (sizes[rows], sizes[columns]) if columns else (sizes[rows],)
        for name, when in architecture.biases.items():
            shape = (sizes[rows_of[name]],)
            if when == "always" or (flags is not None and flags.get(when)):
                must[f"blk.{i}.{name}.bias"] = shape
            elif flags is None:
                may[f"blk.{i}.{name}.bias"] = shape
    for name, rows, columns in ends:
        must[f"{name}.weight"] = (sizes[rows], sizes[columns]) if columns else (sizes[rows],)
    must |= {f"{name}.bias": (sizes[rows_of[name]],) for name in architecture.end_biases}
    return must, may


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
