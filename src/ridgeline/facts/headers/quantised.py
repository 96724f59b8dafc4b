"""Tensors of a quantised checkpoint gathered into matrices: codes, scales, zeros and order of a module become one `TensorFacts`.

Owns the names and shapes of those tensors. Reads no weights except biases that should be zero; `compute.load` checks the data.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ridgeline.errors import ModelFormatError
from ridgeline.facts.files.values import quoted
from ridgeline.facts.headers.quantisation import E4M3, MXFP4, MXFP4_ROWS, NVFP4, Quantisation
from ridgeline.facts.model import QuantisedParts, TensorFacts

Allowed = tuple[tuple[tuple[str, ...], tuple[int, ...]], ...]
"""Allowed (types, shape) of a stored tensor, the usual one first."""


@dataclass(frozen=True, slots=True)
class _Names:
    """Last names of a module's tensors in a layout; "" where it has none. Scales of activations are ignored."""

    codes: str
    scales: str
    zeros: str
    order: str = ""
    shape_tensor: str = ""
    factor: str = ""
    ignored: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """Names of all tensors of a module."""
        names = (self.codes, self.scales, self.zeros, self.order, self.shape_tensor, self.factor, *self.ignored)
        return tuple(name for name in names if name)

    @property
    def required(self) -> tuple[str, ...]:
        """Names of required tensors. Compressed-tensors files leave out the zeros of symmetric weights."""
        return (self.scales, self.shape_tensor, self.factor) if self.scales.startswith("weight_scale") else (self.scales, self.zeros)


_NAMES = {
    "gptq": _Names("qweight", "scales", "qzeros", "g_idx"),
    "awq": _Names("qweight", "scales", "qzeros"),
    "packed": _Names("weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx", "weight_shape"),
    "bytes": _Names("weight", "weight_scale", "weight_zero_point", ignored=("input_scale", "input_zero_point")),
    "e4m3": _Names("weight", "weight_scale", "", ignored=("input_scale",)),
    "e4m3 inverse": _Names("weight", "weight_scale_inv", "", ignored=("activation_scale",)),
    "nvfp4 divided": _Names("weight_packed", "weight_scale", "", factor="weight_global_scale", ignored=("input_global_scale",)),
    "nvfp4 multiplied": _Names("weight", "weight_scale", "", factor="weight_scale_2", ignored=("input_scale",)),
    MXFP4_ROWS: _Names("weight_packed", "weight_scale", "", ignored=("input_global_scale",)),
}
_OF_ACTIVATIONS = {each.ignored[0] for each in _NAMES.values() if each.ignored}
_OF_CACHES = (".k_scale", ".v_scale", ".kv_scale")
"""Ends of the names of scales of K and V, which other types of the cache have no use for."""
_CODES = (
    {"gptq": ("I32",), "awq": ("I32",), "packed": ("I32",), "bytes": ("I8",)}
    | dict.fromkeys(E4M3, ("F8_E4M3",))
    | dict.fromkeys((*NVFP4, MXFP4_ROWS), ("U8",))
)
_FLOATS = ("F16", "BF16", "F32")


def gather_quantised(stored: Mapping[str, TensorFacts], quantisation: Quantisation | None) -> dict[str, TensorFacts]:
    """The tensors of a checkpoint, with those of each quantised module combined to one matrix `module.weight`.

    Raises ModelFormatError where a module's tensors are incomplete or do not match.
    """
    if quantisation is None:
        _check_plain(stored)
        return dict(stored)
    if quantisation.layout == MXFP4:
        return _gather_mxfp4(stored, quantisation)
    if quantisation.layout == "e4m3" and not any(name.endswith(".weight_scale") for name in stored):
        quantisation = replace(quantisation, layout="e4m3 inverse")  # what transformers calls the scale of a tensor too
    names = _NAMES[quantisation.layout]
    found = {name: tensor for name, tensor in stored.items() if not name.endswith(_OF_CACHES)}
    for name, codes in stored.items():
        module, _, last = name.rpartition(".")
        if last != names.codes or codes.kind not in _CODES[quantisation.layout]:
            continue
        parts = {part: found.pop(f"{module}.{part}", None) for part in names.all}
        if f"{module}.weight" in found:
            raise ModelFormatError(f"the files hold {quoted(name)} and {module[-80:]}.weight; remove one of them")
        found[f"{module}.weight"] = _matrix(module, codes, parts, quantisation)
    return found


def count_activation_scales(stored: Mapping[str, TensorFacts], quantisation: Quantisation | None) -> int:
    """Matrices for whose inputs the files have a scale, which no runner uses."""
    return 0 if quantisation is None else sum(name.rpartition(".")[2] in _OF_ACTIVATIONS for name in stored)


def _gather_mxfp4(stored: Mapping[str, TensorFacts], quantisation: Quantisation) -> dict[str, TensorFacts]:
    """Matrices of experts [E, N, K], of two tensors each: `…_blocks` uint8 [E, N, G, 16] and `…_scales` uint8 [E, N, G]."""
    found = dict(stored)
    for name, codes in stored.items():
        stem = name.removesuffix("_blocks")
        if stem == name or codes.kind != "U8":
            continue
        if len(codes.shape) != 4 or codes.shape[3] != quantisation.group // 2 or 0 in codes.shape:
            raise ModelFormatError(f"{quoted(name)} has shape {codes.shape}, (experts, outputs, groups, 16) was expected")
        del found[name]
        scales = found.pop(f"{stem}_scales", None)
        _check(scales, f"{stem}_scales", ((("U8",), codes.shape[:3]),), required=True)
        assert scales is not None
        experts, rows, groups, _ = codes.shape
        parts = QuantisedParts(quantisation.layout, quantisation.bits, quantisation.group, codes, scales, rows=experts * rows)
        shape, total = (experts, rows, groups * quantisation.group), codes.bytes + scales.bytes
        found[stem] = TensorFacts(stem, quantisation.kind, shape, codes.file, codes.offset, total, quantised=parts)
    return found


def drop_zero_biases(tensors: Mapping[str, TensorFacts], known: Callable[[str], bool]) -> dict[str, TensorFacts]:
    """`tensors` without biases that AutoGPTQ wrote as zeros for every quantised module, whether or not the architecture has them.

    known  True for a stored name that the architecture has
    Raises ModelFormatError where such a bias is not zero.
    """
    found = dict(tensors)
    for name, tensor in tensors.items():
        module, _, last = name.rpartition(".")
        matrix = tensors.get(f"{module}.weight")
        if last != "bias" or matrix is None or matrix.quantised is None or known(name):
            continue
        _check_zero(tensor, matrix.shape[0])
        del found[name]
    return found


def _check_zero(bias: TensorFacts, rows: int) -> None:
    if bias.shape != (rows,):
        raise ModelFormatError(f"tensor {quoted(bias.name)} has shape {bias.shape}, {(rows,)} was expected; download the file again")
    with bias.file.open("rb") as file:
        file.seek(bias.offset)
        if file.read(bias.bytes).strip(b"\0"):
            raise ModelFormatError(f"tensor {quoted(bias.name)} is a bias that the architecture does not have, and it is not zero")


def _check_plain(stored: Mapping[str, TensorFacts]) -> None:
    packed = [name for name in stored if name.rpartition(".")[2] in ("qweight", "weight_packed")]
    if packed:
        raise ModelFormatError(
            f"the files hold {len(packed)} quantised matrices, {quoted(min(packed))} among them, but config.json has no "
            "quantization_config; download the whole checkpoint"
        )


def _matrix(module: str, codes: TensorFacts, parts: Mapping[str, TensorFacts | None], quantisation: Quantisation) -> TensorFacts:
    """The matrix of one module; `parts` are its tensors by last name."""
    names = _NAMES[quantisation.layout]
    rows, columns = _shape(codes, quantisation)
    group = quantisation.group or columns
    group_rows = quantisation.group_rows or rows
    if columns % group and quantisation.layout not in E4M3:
        raise ModelFormatError(f"{quoted(codes.name)} has {columns} inputs, no whole number of groups of {group}, which is not supported")
    allowed = _allowed(quantisation, rows, columns, -(-columns // group))
    for part, expected in allowed.items():
        _check(parts.get(part), f"{module}.{part}", expected, part in names.required)
    scales = parts[names.scales]
    assert scales is not None
    zeros, order, shape_tensor, factor = (parts.get(part) for part in (names.zeros, names.order, names.shape_tensor, names.factor))
    total = sum(tensor.bytes for tensor in parts.values() if tensor is not None)
    kept = (codes, scales, zeros, order, shape_tensor)
    quantised = QuantisedParts(quantisation.layout, quantisation.bits, group, *kept, quantisation.zero_offset, rows, group_rows=group_rows)
    quantised = replace(quantised, factor=factor)
    return TensorFacts(f"{module}.weight", quantisation.kind, (rows, columns), codes.file, codes.offset, total, quantised=quantised)


def _shape(codes: TensorFacts, quantisation: Quantisation) -> tuple[int, int]:
    """(outputs, inputs) of the matrix with these codes."""
    if len(codes.shape) != 2 or 0 in codes.shape:
        raise ModelFormatError(f"{quoted(codes.name)} has shape {codes.shape}, two dimensions were expected")
    fields = 32 // quantisation.bits
    first, second = codes.shape
    match quantisation.layout:
        case "gptq":
            return second, first * fields
        case "awq":
            return second * fields, first
        case "packed":
            return first, second * fields
    return first, second * (2 if codes.kind == "U8" else 1)


def _allowed(quantisation: Quantisation, rows: int, columns: int, groups: int) -> dict[str, Allowed]:
    """Allowed types and shapes of the tensors other than the codes, by last name."""
    names = _NAMES[quantisation.layout]
    words = -(-rows * quantisation.bits // 32)
    if quantisation.layout in E4M3:
        whole = (-(-rows // (quantisation.group_rows or rows)), groups)
        shapes = (whole, *([(rows,)] if whole == (rows, 1) else []), *([(1,), ()] if whole == (1, 1) else []))
        return {names.scales: tuple((_FLOATS, shape) for shape in shapes)}
    if quantisation.layout in (*NVFP4, MXFP4_ROWS):
        kinds = ("U8",) if quantisation.layout == MXFP4_ROWS else ("F8_E4M3",)
        return {names.scales: ((kinds, (rows, groups)),)} | ({names.factor: ((("F32",), (1,)), (("F32",), ()))} if names.factor else {})
    if quantisation.layout in ("gptq", "awq"):
        allowed: dict[str, Allowed] = {names.scales: ((_FLOATS, (groups, rows)),), names.zeros: ((("I32",), (groups, words)),)}
    else:
        shapes = ((rows, groups), (rows,)) if groups == 1 else ((rows, groups),)
        packed: Allowed = ((("I32",), (words, groups)),) if quantisation.layout == "packed" else ()
        allowed = {
            names.scales: tuple((_FLOATS, shape) for shape in shapes),
            names.zeros: (*packed, *((("I8",), shape) for shape in shapes)),
        }
    if names.order:
        allowed[names.order] = ((("I32", "I64"), (columns,)),)
    if names.shape_tensor:
        allowed[names.shape_tensor] = ((("I64", "I32"), (2,)),)
    return allowed


def _check(tensor: TensorFacts | None, name: str, allowed: Allowed, required: bool) -> None:
    """Raises ModelFormatError for a required tensor that is missing, or one of another type or shape."""
    kinds, shape = allowed[0]
    expected = f"{' or '.join(kinds)} of shape {shape}"
    if tensor is None:
        if required:
            raise ModelFormatError(f"tensor {quoted(name)} is missing, {expected} was expected; download the whole checkpoint")
    elif not any(tensor.kind in kinds and tensor.shape == shape for kinds, shape in allowed):
        raise ModelFormatError(
            f"tensor {quoted(name)} is {tensor.kind} of shape {tensor.shape}, {expected} was expected; config.json and the files do not "
            "match: download both again"
        )
