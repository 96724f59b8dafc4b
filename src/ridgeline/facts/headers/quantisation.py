"""`quantization_config` of config.json: GPTQ, AWQ, compressed-tensors, fp8 and ModelOpt, each key checked; everything else is an error.

Owns `quantization_config`. The tensors of the files say which modules are quantised, so lists of modules that are not (`ignore`,
`exclude_modules`, `modules_to_not_convert`, `lm_head`) are not read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline.errors import ModelFormatError

MAX_GROUP = 1 << 20
FP8 = "FP8"
"""`Quantisation.kind` of e4m3 with scales of any block size."""
MXFP4 = "mxfp4"
"""Layout of MXFP4 in stacks of experts."""
MXFP4_ROWS = "mxfp4 rows"
MICROSCALED = (MXFP4, MXFP4_ROWS)
"""Layouts of MXFP4."""
E4M3 = ("e4m3", "e4m3 inverse")
"""Layouts of FP8."""
NVFP4 = ("nvfp4 divided", "nvfp4 multiplied")
"""Layouts of NVFP4 under a scale for the whole matrix: by what becomes of the scales with it."""
NVFP4_GROUP = 16
_BLOCK_STEP = 128
"""Block sizes of fp8 are multiples of this: the kernels' step along the inputs."""
_GROUP_STEP = 32
"""Group sizes are multiples of this: the kernels' step along the inputs."""
_HINT = "give a checkpoint in F32, F16 or BF16, or a quantised GGUF file of the model"


@dataclass(frozen=True, slots=True)
class Quantisation:
    """Storage format of all quantised matrices of a checkpoint.

    layout  "gptq", "awq", "packed", "bytes", one of `MICROSCALED`, `E4M3` or `NVFP4`: see `facts.model.QuantisedParts`
    bits    4 or 8
    group   inputs that share a scale; 0: all inputs of an output
    zero_offset  added to a stored zero: 1 in the first format of GPTQ
    group_rows   outputs that share a scale; 0: all of them
    """

    method: str
    layout: str
    bits: int
    group: int
    zero_offset: int = 0
    group_rows: int = 1

    @property
    def kind(self) -> str:
        """The name of the stored format, as `TensorFacts.kind` has it."""
        if self.layout in MICROSCALED:
            return "MXFP4"
        if self.layout in NVFP4:
            return "NVFP4"
        return FP8 if self.layout in E4M3 else f"{_NAMES[self.method]}{self.bits}"


def read_quantisation(values: Mapping[str, Any]) -> Quantisation | None:
    """Quantisation that `quantization_config` describes; None without one. Raises ModelFormatError."""
    config = values.get("quantization_config")
    if config is None:
        return None
    if not isinstance(config, dict):
        raise ModelFormatError(f"config.json: quantization_config is {config!r:.40}, an object was expected; {_HINT}")
    method = config.get("quant_method")
    reader = _READERS.get(method) if isinstance(method, str) else None
    if reader is None:
        raise ModelFormatError(
            f"config.json: the weights are quantised as {method!r:.40}, which is not supported; {', '.join(_READERS)} are, in 4 or 8 bits: "
            f"{_HINT}"
        )
    return reader(config)


def _gptq(config: Mapping[str, Any]) -> Quantisation:
    """Frantar et al. 2023; keys of AutoGPTQ and GPTQModel. `desc_act` and `sym` are not read: g_idx and qzeros tell."""
    _check_flags(config, "desc_act", "sym", "true_sequential", "static_groups")
    _check_allowed("gptq: checkpoint_format", config.get("checkpoint_format", config.get("format")), (None, "gptq", "gptq_v2"))
    _check_allowed("gptq: is_marlin_format", config.get("is_marlin_format"), (None, False))
    _check_allowed("gptq: pack_dtype", config.get("pack_dtype"), (None, "int32"))
    if config.get("dynamic"):
        raise ModelFormatError(f"config.json: gptq: dynamic gives modules different widths, which is not supported; {_HINT}")
    first = config.get("checkpoint_format", config.get("format")) != "gptq_v2"
    return Quantisation("gptq", "gptq", _bits(config.get("bits"), (4, 8), "gptq"), _group(config.get("group_size")), int(first))


def _awq(config: Mapping[str, Any]) -> Quantisation:
    """Lin et al. 2024; keys of AutoAWQ, its own and those of transformers."""
    version = config.get("version", config.get("checkpoint_format", "gemm"))
    _check_allowed("awq: version", version.lower() if isinstance(version, str) else version, ("gemm",))
    _check_allowed("awq: zero_point", config.get("zero_point", True), (True,))
    bits, group = config.get("bits", config.get("w_bit")), config.get("group_size", config.get("q_group_size"))
    return Quantisation("awq", "awq", _bits(bits, (4,), "awq"), _group(group))


def _compressed(config: Mapping[str, Any]) -> Quantisation:
    """Schemes of the compressed-tensors library: integer weights with 8-bit activations; small floats. `kv_cache_scheme`
    is not read: the type of the cache is the operator's."""
    if config.get("transform_config"):
        raise ModelFormatError(f"config.json: compressed-tensors: transform_config is set, which is not supported; {_HINT}")
    sparsity = config.get("sparsity_config")
    _check_allowed("sparsity_config: format", sparsity.get("format") if isinstance(sparsity, dict) else sparsity, (None, "dense"))
    # Older files of integers have the status "frozen". Frozen files of floats are rejected later, for their unknown tensors.
    _check_allowed("quantization_status", config.get("quantization_status"), (None, "compressed", "frozen"))
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not groups or not all(isinstance(scheme, dict) for scheme in groups.values()):
        raise ModelFormatError(f"config.json: compressed-tensors: config_groups is {groups!r:.40}, schemes by name were expected; {_HINT}")
    found = {_scheme(scheme, config.get("format")) for scheme in groups.values()}
    if len(found) > 1:
        raise ModelFormatError(f"config.json: compressed-tensors: {len(found)} schemes of weights in one model are not supported; {_HINT}")
    return found.pop()


def _fp8(config: Mapping[str, Any]) -> Quantisation:
    """DeepSeek-AI 2024, section 3.3; keys of its checkpoints and of transformers: one (inverse) scale per block or per tensor."""
    _check_allowed("fp8: fmt", config.get("fmt"), (None, "e4m3"))
    _check_allowed("fp8: activation_scheme", config.get("activation_scheme"), (None, "dynamic", "static"))
    block = config.get("weight_block_size")
    if block is None:
        return Quantisation("fp8", "e4m3", 8, 0, group_rows=0)
    group_rows, group = _block("fp8: weight_block_size", block)
    return Quantisation("fp8", "e4m3 inverse", 8, group, group_rows=group_rows)


def _mxfp4(config: Mapping[str, Any]) -> Quantisation:
    """OpenAI 2025, "gpt-oss": the experts alone."""
    return Quantisation("mxfp4", MXFP4, 4, _GROUP_STEP)


def _modelopt(config: Mapping[str, Any]) -> Quantisation:
    """NVIDIA's Model Optimizer: keys of hf_quant_config.json, its `quantization` alone or the whole, and of config.json."""
    inner = config.get("quantization")
    config = inner if isinstance(inner, dict) else config
    algorithm = config.get("quant_algo")
    _check_allowed("modelopt: quant_algo", algorithm, ("FP8", "NVFP4"))
    if algorithm == "FP8":
        return Quantisation("modelopt", "e4m3", 8, 0, group_rows=0)
    _check_allowed("modelopt: group_size", config.get("group_size"), (None, NVFP4_GROUP))
    return Quantisation("modelopt", "nvfp4 multiplied", 4, NVFP4_GROUP)


def _block(name: str, value: object) -> tuple[int, int]:
    """Outputs and inputs of a block."""
    sides = value if isinstance(value, list) else []
    if len(sides) != 2 or not all(type(side) is int and 0 < side <= MAX_GROUP and side % _BLOCK_STEP == 0 for side in sides):
        raise ModelFormatError(f"config.json: {name} is {value!r:.40}, which is not supported; two multiples of {_BLOCK_STEP} are: {_HINT}")
    return sides[0], sides[1]


def _floats(weights: Mapping[str, Any], activations: object) -> Quantisation:
    """A scheme of compressed-tensors with e4m3 weights, which are read whatever scales activations have, or none."""
    _check_allowed("compressed-tensors: num_bits of floats", weights.get("num_bits"), (8,))
    _check_activations(activations, "float")
    strategy = weights.get("strategy")
    _check_allowed("compressed-tensors: strategy of floats", strategy, ("tensor", "channel", "block"))
    group_rows, group = (0 if strategy == "tensor" else 1), 0
    if strategy == "block":
        group_rows, group = _block("compressed-tensors: block_structure", weights.get("block_structure"))
    return Quantisation("compressed-tensors", "e4m3", 8, group, group_rows=group_rows)


def _small_floats(weights: Mapping[str, Any], stored: str) -> Quantisation:
    """A scheme of compressed-tensors with e2m1 weights: NVFP4 or MXFP4."""
    layout, group = _SMALL[stored]
    _check_allowed(f"compressed-tensors: num_bits of {stored}", weights.get("num_bits"), (4,))
    _check_allowed(f"compressed-tensors: group_size of {stored}", weights.get("group_size"), (group,))
    _check_allowed(f"compressed-tensors: symmetric of {stored}", weights.get("symmetric", True), (True,))
    return Quantisation("compressed-tensors", layout, 4, group)


def _check_activations(activations: object, kind: str) -> None:
    """Raises ModelFormatError unless activations are not quantised, or have 8 bits and the type of the weights, whatever their scales."""
    if activations is not None:
        keys = activations if isinstance(activations, dict) else {}
        stated = (keys.get("type", kind), keys.get("num_bits"), keys.get("dynamic"))
        _check_allowed("compressed-tensors: type, bits and dynamic of input_activations", stated, ((kind, 8, True), (kind, 8, False)))


def _scheme(scheme: Mapping[str, Any], format_of_all: object) -> Quantisation:
    weights, activations = scheme.get("weights"), scheme.get("input_activations")
    if not isinstance(weights, dict):
        raise ModelFormatError(f"config.json: compressed-tensors: weights is {weights!r:.40}, an object was expected; {_HINT}")
    stored = scheme.get("format") or format_of_all
    _check_allowed("compressed-tensors: output_activations", scheme.get("output_activations"), (None,))
    if weights.get("type") == "float" and stored in _SMALL:
        return _small_floats(weights, str(stored))
    if weights.get("type") == "float":
        _check_allowed("compressed-tensors: format of floats", stored, ("float-quantized", "naive-quantized", *_SMALL))
        return _floats(weights, activations)
    _check_allowed("compressed-tensors: format", stored, tuple(_LAYOUTS))
    _check_allowed("compressed-tensors: type of weights", weights.get("type", "int"), ("int",))
    _check_activations(activations, "int")
    strategy = weights.get("strategy") or ("group" if weights.get("group_size") else None)
    _check_allowed("compressed-tensors: strategy of weights", strategy, ("channel", "group"))
    layout = _LAYOUTS[str(stored)]
    bits = _bits(weights.get("num_bits"), (8,) if layout == "bytes" else (4, 8), "compressed-tensors")
    return Quantisation("compressed-tensors", layout, bits, _group(weights.get("group_size")) if strategy == "group" else 0)


_READERS = {
    "gptq": _gptq, "awq": _awq, "compressed-tensors": _compressed, "fp8": _fp8, "mxfp4": _mxfp4,
    "modelopt": _modelopt,
}  # fmt: skip
_NAMES = {"gptq": "GPTQ", "awq": "AWQ", "compressed-tensors": "INT"}
_LAYOUTS = {"pack-quantized": "packed", "int-quantized": "bytes", "naive-quantized": "bytes"}
_SMALL = {"nvfp4-pack-quantized": ("nvfp4 divided", NVFP4_GROUP), "mxfp4-pack-quantized": (MXFP4_ROWS, _GROUP_STEP)}
"""Formats of e2m1: layout and group."""


def _bits(value: object, allowed: tuple[int, ...], method: str) -> int:
    if type(value) is not int or value not in allowed:
        raise ModelFormatError(
            f"config.json: {method} of {value!r:.40} bits is not supported; {' and '.join(map(str, allowed))} bits are: {_HINT}"
        )
    return value


def _group(value: object) -> int:
    """Inputs of a group; 0 for all, which files write as -1."""
    if type(value) is not int or (value != -1 and (not 0 < value <= MAX_GROUP or value % _GROUP_STEP)):
        raise ModelFormatError(
            f"config.json: groups of {value!r:.40} weights are not supported; multiples of {_GROUP_STEP} are, "
            f"and -1 for a scale per row: {_HINT}"
        )
    return max(0, value)


def _check_flags(config: Mapping[str, Any], *keys: str) -> None:
    for key in keys:
        if config.get(key) is not None and not isinstance(config[key], bool):
            raise ModelFormatError(f"config.json: {key} is {config[key]!r:.40}, true or false was expected")


def _check_allowed(name: str, found: object, allowed: tuple[object, ...]) -> None:
    if not any(type(found) is type(value) and found == value for value in allowed):
        expected = ", ".join(repr(value) for value in allowed if value is not None) or "nothing"
        raise ModelFormatError(f"config.json: {name} is {found!r:.60}, which is not supported; {expected} is: {_HINT}")
