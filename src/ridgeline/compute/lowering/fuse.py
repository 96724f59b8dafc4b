"""Fusion: passes that unite ops of a list where one pass over memory does for several. Pure; `lower` says which runner takes which.

Every value that survives a pass keeps its name. A value that disappears had one reader, and was neither a result nor a tap.
"""

from collections import Counter
from dataclasses import replace
from typing import Final

from ridgeline.compute.graph import Formats, Handle, Op, OpList, WeightFormat

MERGED: Final = {2: "linear_pair", 3: "linear_triple"}
"""Products of one value with so many matrices of one format."""

RESIDUAL: Final = {"linear": "linear_add", "linear_codes": "linear_codes_add"}
"""Products to which a residual may be added where they are written."""

_FLOATS: Final = {"f32", "bf16", "fp16"}
_TWINS: Final = {"rms_norm": "rms_norm_fp8", "add_rms_norm": "add_rms_norm_fp8"}
_PRODUCTS: Final = {
    "linear": "linear_fp8", "linear_pair": "linear_fp8_pair", "linear_triple": "linear_fp8_triple", "linear_glu": "linear_fp8_glu"
}  # fmt: skip


def merge_products(oplist: OpList, formats: Formats) -> OpList:
    """`linear` ops that read one value with weights of one format become one op with all their weights, up to three."""
    groups: dict[tuple[str, WeightFormat | None], list[Op]] = {}
    for op in oplist.ops:
        if op.name == "linear":
            groups.setdefault((op.inputs[0], formats.get(op.weights[0].name)), []).append(op)
    merged: dict[str, Op | None] = {}  # by an op's output: what stands in its place
    for found in groups.values():
        for start in range(0, len(found), max(MERGED)):
            part = found[start : start + max(MERGED)]
            if len(part) > 1:
                outputs = tuple(op.outputs[0] for op in part)
                whole = Op(MERGED[len(part)], part[0].inputs, outputs, {}, tuple(op.weights[0] for op in part))
                merged |= {**dict.fromkeys(outputs), outputs[0]: whole}
    replaced = (merged.get(op.outputs[0], op) if op.name == "linear" else op for op in oplist.ops)
    return oplist.with_ops(tuple(op for op in replaced if op is not None))


def fuse_gates(oplist: OpList, formats: Formats) -> OpList:
    """Products of one value with the gate and the up matrix, both of floats or of fp8, and their gated unit become `linear_glu`."""
    uses = _uses(oplist)
    units = {frozenset(op.inputs): op for op in oplist.ops if op.name == "glu"}
    ops: list[Op] = []
    gone: set[int] = set()
    for op in oplist.ops:
        unit = units.get(frozenset(op.outputs)) if op.name == "linear_pair" else None
        found = formats.get(op.weights[0].name) if unit is not None else None
        united = found is not None and (found.kind in _FLOATS or found.takes == "f8")
        if unit is not None and united and all(uses[name] == 1 for name in op.outputs):
            matrices = dict(zip(op.outputs, op.weights, strict=True))
            weights = tuple(matrices[name] for name in unit.inputs)
            ops.append(Op("linear_glu", op.inputs, unit.outputs, unit.attributes, weights))
            gone.add(id(unit))
        elif id(op) not in gone:
            ops.append(op)
    return oplist.with_ops(tuple(ops))


def fuse_norms(oplist: OpList, formats: Formats) -> OpList:
    """A sum and the norm of it, whole and not by heads, become `add_rms_norm`."""
    norms: dict[str, Op] = {}
    for op in oplist.ops:
        if op.name == "rms_norm" and oplist.values[op.inputs[0]].width == op.weights[0].shape[0]:
            norms.setdefault(op.inputs[0], op)
    fused = {op.outputs[0]: norms[op.outputs[0]] for op in oplist.ops if op.name == "add" and op.outputs[0] in norms}
    gone = {id(norm) for norm in fused.values()}
    ops: list[Op] = []
    for op in oplist.ops:
        if op.name == "add" and op.outputs[0] in fused:
            norm = fused[op.outputs[0]]
            ops.append(Op("add_rms_norm", op.inputs, (*op.outputs, *norm.outputs), norm.attributes, norm.weights))
        elif id(op) not in gone:
            ops.append(op)
    return oplist.with_ops(tuple(ops))


def fuse_writes(oplist: OpList, formats: Formats) -> OpList:
    """Rotations of queries and keys, and the norms of their heads before, become one op with the write to the cache."""
    made = {name: op for op in oplist.ops for name in op.outputs}
    queries = {op.attributes["layer"]: made[op.inputs[0]] for op in oplist.ops if op.name == "attention"}
    uses = _uses(oplist)
    gone: list[Op] = []
    placed: dict[int, Op] = {}
    for number, op in enumerate(oplist.ops):
        if op.name != "kv_write":
            continue
        q, k = queries[op.attributes["layer"]], made[op.inputs[0]]
        if not (q.name == k.name == "rotate" and q.inputs[1] == k.inputs[1] and uses[k.outputs[0]] == 1):
            continue
        norms = [made[each.inputs[0]] for each in (q, k)]
        eps = {norm.attributes.get("eps") for norm in norms}
        alone = all(norm.name == "rms_norm" and uses[norm.outputs[0]] == 1 for norm in norms)
        head_dim = int(q.attributes["head_dim"])  # type: ignore[arg-type]
        normed = alone and len(eps) == 1 and all(norm.weights[0].shape == (head_dim,) for norm in norms)
        sources = tuple(each.inputs[0] for each in (norms if normed else (q, k)))
        attributes = {"head_dim": head_dim, "layer": op.attributes["layer"], **({"eps": eps.pop()} if normed else {})}
        inputs = (*sources, op.inputs[1], q.inputs[1])
        weights = tuple(norm.weights[0] for norm in norms) if normed else ()
        placed[number] = Op("norm_rotate_write" if normed else "rotate_write", inputs, q.outputs, attributes, weights)  # type: ignore[arg-type]
        gone += [q, k, *(norms if normed else ())]
    absent = {id(op) for op in gone}
    return oplist.with_ops(tuple(placed.get(number, op) for number, op in enumerate(oplist.ops) if id(op) not in absent))


def fuse_residuals(oplist: OpList, formats: Formats) -> OpList:
    """A product and the sum of a residual and it become one op where nothing else reads the product."""
    uses = _uses(oplist)
    products = {op.outputs[0]: op for op in oplist.ops if op.name in RESIDUAL and uses[op.outputs[0]] == 1}
    fused = {op.inputs[1] for op in oplist.ops if op.name == "add" and op.inputs[1] in products}
    ops: list[Op] = []
    for op in oplist.ops:
        if op.name == "add" and op.inputs[1] in fused:
            product = products[op.inputs[1]]
            ops.append(Op(RESIDUAL[product.name], (*product.inputs, op.inputs[0]), op.outputs, product.attributes, product.weights))
        elif not (op.name in RESIDUAL and op.outputs[0] in fused):
            ops.append(op)
    return oplist.with_ops(tuple(ops))


def quantise_fp8(oplist: OpList, formats: Formats) -> OpList:
    """Products whose weights ask for it take e4m3 codes: from a twin of the op that makes their input where nothing else reads it; a single
    product makes them of its input by itself, several have them of `quantise_fp8`."""

    def takes_codes(op: Op) -> bool:
        found = formats.get(op.weights[0].name) if op.name in _PRODUCTS else None
        return found is not None and found.takes == "f8"

    readers = Counter(op.inputs[0] for op in oplist.ops if takes_codes(op))
    uses = _uses(oplist)
    values = dict(oplist.values)
    ops: list[Op] = []
    ready: set[str] = set()
    for op in oplist.ops:
        last = op.outputs[-1] if op.outputs else ""
        if op.name in _TWINS and last in readers and uses[last] == readers[last]:
            values |= _codes(values[last])
            ops.append(Op(_TWINS[op.name], op.inputs, (*op.outputs[:-1], *_names(last)), op.attributes, op.weights))
            ready.add(last)
        elif takes_codes(op):
            (source,) = op.inputs
            if source not in ready and op.name == "linear" and readers[source] == 1:
                ops.append(replace(op, name="linear_quantise_fp8"))
                continue
            if source not in ready:
                values |= _codes(values[source])
                ops.append(Op("quantise_fp8", op.inputs, _names(source)))
                ready.add(source)
            ops.append(Op(_PRODUCTS[op.name], _names(source), op.outputs, op.attributes, op.weights))
        else:
            ops.append(op)
    return replace(oplist, ops=tuple(ops), values=values)


def _names(value: str) -> tuple[str, str]:
    return f"{value}.codes", f"{value}.scales"


def _codes(x: Handle) -> dict[str, Handle]:
    codes, scales = _names(x.name)
    return {codes: Handle(codes, x.axis, x.width, "f8"), scales: Handle(scales, x.axis, 1)}


def _uses(oplist: OpList) -> Counter[str]:
    """Counts how often each value is read; to be a result or a tap counts too."""
    read = Counter(name for op in oplist.ops for name in op.inputs)
    return read + Counter((*oplist.outputs.values(), *oplist.taps.values()))
