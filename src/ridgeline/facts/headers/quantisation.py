"""`quantization_config` of config.json: GPTQ, AWQ, compressed-tensors and fp8, each key checked; everything else is refused by name.

Owns `quantization_config`. Which modules are quantised it does not read there: the files' tensors say it, so lists of modules that
were left as they are (`ignore`, `modules_to_not_convert`, `lm_head`) need no second reading.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline.errors import ModelFormatError

MAX_GROUP = 1 << 20
FP8 = "FP8"
"""The name of e4m3 with scales, whatever their blocks."""
E4M3 = ("e4m3", "e4m3 inverse")
"""Layouts of it."""
_BLOCK = 128
"""Sides of blocks of fp8 are multiples of this: a step of the products with it."""
_UNIT = 32
"""Group sizes are multiples of this: a kernel's step along the inputs."""
_GIVE = "give a checkpoint in F32, F16 or BF16, or a quantised GGUF file of the model"


@dataclass(frozen=True, slots=True)
class Quantisation:
    """Storage of the quantised matrices of a checkpoint; all are alike.

    layout  "gptq", "awq", "packed", "bytes", "e4m3" or "e4m3 inverse": see `facts.model.Integers`
    bits    4 or 8
    group   inputs that share a scale; 0: all inputs of an output
    tall    outputs that share a scale; 0: all of them
    zero_added  what a stored zero lacks of the zero (1 in the first format of GPTQ)
    """

    method: str
    layout: str
    bits: int
    group: int
    zero_added: int = 0
    tall: int = 1

    @property
    def kind(self) -> str:
        """The name of the stored format, as `TensorFacts.kind` has it."""
        return FP8 if self.layout in E4M3 else f"{_NAMES[self.method]}{self.bits}"


def read_quantisation(values: Mapping[str, Any]) -> Quantisation | None:
    """The storage that `quantization_config` states; None where there is none. Raises ModelFormatError."""
    config = values.get("quantization_config")
    if config is None:
        return None
    if not isinstance(config, dict):
        raise ModelFormatError(f"config.json: quantization_config is {config!r:.40}, an object was expected; {_GIVE}")
    method = config.get("quant_method")
    reader = _READERS.get(method) if isinstance(method, str) else None
    if reader is None:
        raise ModelFormatError(
            f"config.json: the weights are quantised as {method!r:.40}, which is not computed; {', '.join(_READERS)} are, in 4 or 8 bits: "
            f"{_GIVE}"
        )
    return reader(config)


def _gptq(config: Mapping[str, Any]) -> Quantisation:
    """Frantar et al. 2023; keys of AutoGPTQ and GPTQModel. `desc_act` and `sym` need no reading: g_idx and qzeros say what they mean."""
    _flags(config, "desc_act", "sym", "true_sequential", "static_groups")
    _only("gptq: checkpoint_format", config.get("checkpoint_format", config.get("format")), (None, "gptq", "gptq_v2"))
    _only("gptq: is_marlin_format", config.get("is_marlin_format"), (None, False))
    _only("gptq: pack_dtype", config.get("pack_dtype"), (None, "int32"))
    if config.get("dynamic"):
        raise ModelFormatError(f"config.json: gptq: dynamic gives modules widths of their own, which is not computed; {_GIVE}")
    first = config.get("checkpoint_format", config.get("format")) != "gptq_v2"
    return Quantisation("gptq", "gptq", _bits(config.get("bits"), (4, 8), "gptq"), _group(config.get("group_size")), int(first))


def _awq(config: Mapping[str, Any]) -> Quantisation:
    """Lin et al. 2024; keys of AutoAWQ, its own and those of transformers."""
    version = config.get("version", config.get("checkpoint_format", "gemm"))
    _only("awq: version", version.lower() if isinstance(version, str) else version, ("gemm",))
    _only("awq: zero_point", config.get("zero_point", True), (True,))
    bits, group = config.get("bits", config.get("w_bit")), config.get("group_size", config.get("q_group_size"))
    return Quantisation("awq", "awq", _bits(bits, (4,), "awq"), _group(group))


def _compressed(config: Mapping[str, Any]) -> Quantisation:
    """Schemes of the compressed-tensors library: integers for weights; activations of 8 bits that are scaled when they are there."""
    for key in ("kv_cache_scheme", "transform_config"):
        if config.get(key):
            raise ModelFormatError(f"config.json: compressed-tensors: {key} is set, which is not computed; {_GIVE}")
    sparsity = config.get("sparsity_config")
    _only("sparsity_config: format", sparsity.get("format") if isinstance(sparsity, dict) else sparsity, (None, "dense"))
    # Older files of integers call themselves frozen. Frozen ones that hold floats have tensors that belong to nothing: refused for that.
    _only("quantization_status", config.get("quantization_status"), (None, "compressed", "frozen"))
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not groups or not all(isinstance(scheme, dict) for scheme in groups.values()):
        raise ModelFormatError(f"config.json: compressed-tensors: config_groups is {groups!r:.40}, schemes by name were expected; {_GIVE}")
    found = {_scheme(scheme, config.get("format")) for scheme in groups.values()}
    if len(found) > 1:
        raise ModelFormatError(f"config.json: compressed-tensors: {len(found)} schemes of weights in one model are not computed; {_GIVE}")
    return found.pop()


def _fp8(config: Mapping[str, Any]) -> Quantisation:
    """DeepSeek-AI 2024, section 3.3; keys of its checkpoints and of transformers: scales of blocks, called inverse, or one per tensor."""
    _only("fp8: fmt", config.get("fmt"), (None, "e4m3"))
    _only("fp8: activation_scheme", config.get("activation_scheme"), (None, "dynamic"))
    block = config.get("weight_block_size")
    if block is None:
        return Quantisation("fp8", "e4m3", 8, 0, tall=0)
    tall, group = _block("fp8: weight_block_size", block)
    return Quantisation("fp8", "e4m3 inverse", 8, group, tall=tall)


def _block(name: str, value: object) -> tuple[int, int]:
    """Outputs and inputs of a block."""
    sides = value if isinstance(value, list) else []
    if len(sides) != 2 or not all(type(side) is int and 0 < side <= MAX_GROUP and side % _BLOCK == 0 for side in sides):
        raise ModelFormatError(f"config.json: {name} is {value!r:.40}, which is not computed; two multiples of {_BLOCK} are: {_GIVE}")
    return sides[0], sides[1]


def _floats(weights: Mapping[str, Any], activations: object) -> Quantisation:
    """A scheme of compressed-tensors whose weights are e4m3; activations are scaled when they are there, or left as they are."""
    _only("compressed-tensors: num_bits of floats", weights.get("num_bits"), (8,))
    if activations is not None:
        said = activations if isinstance(activations, dict) else {}
        stated = (said.get("type", "float"), said.get("num_bits"), said.get("dynamic"))
        _only("compressed-tensors: type, bits and dynamic of input_activations", stated, (("float", 8, True),))
    strategy = weights.get("strategy")
    _only("compressed-tensors: strategy of floats", strategy, ("tensor", "channel", "block"))
    tall, group = (0 if strategy == "tensor" else 1), 0
    if strategy == "block":
        tall, group = _block("compressed-tensors: block_structure", weights.get("block_structure"))
    return Quantisation("compressed-tensors", "e4m3", 8, group, tall=tall)


def _scheme(scheme: Mapping[str, Any], format_of_all: object) -> Quantisation:
    weights, activations = scheme.get("weights"), scheme.get("input_activations")
    if not isinstance(weights, dict):
        raise ModelFormatError(f"config.json: compressed-tensors: weights is {weights!r:.40}, an object was expected; {_GIVE}")
    stored = scheme.get("format") or format_of_all
    _only("compressed-tensors: output_activations", scheme.get("output_activations"), (None,))
    if weights.get("type") == "float":
        _only("compressed-tensors: format of floats", stored, ("float-quantized", "naive-quantized"))
        return _floats(weights, activations)
    _only("compressed-tensors: format", stored, tuple(_LAYOUTS))
    _only("compressed-tensors: type of weights", weights.get("type", "int"), ("int",))
    if activations is not None:
        said = activations if isinstance(activations, dict) else {}
        stated = (said.get("type", "int"), said.get("num_bits"), said.get("dynamic"))
        _only("compressed-tensors: type, bits and dynamic of input_activations", stated, (("int", 8, True),))
    strategy = weights.get("strategy") or ("group" if weights.get("group_size") else None)
    _only("compressed-tensors: strategy of weights", strategy, ("channel", "group"))
    layout = _LAYOUTS[str(stored)]
    bits = _bits(weights.get("num_bits"), (8,) if layout == "bytes" else (4, 8), "compressed-tensors")
    return Quantisation("compressed-tensors", layout, bits, _group(weights.get("group_size")) if strategy == "group" else 0)


_READERS = {"gptq": _gptq, "awq": _awq, "compressed-tensors": _compressed, "fp8": _fp8}
_NAMES = {"gptq": "GPTQ", "awq": "AWQ", "compressed-tensors": "INT"}
_LAYOUTS = {"pack-quantized": "packed", "int-quantized": "bytes", "naive-quantized": "bytes"}


def _bits(value: object, allowed: tuple[int, ...], method: str) -> int:
    if type(value) is not int or value not in allowed:
        raise ModelFormatError(
            f"config.json: {method} of {value!r:.40} bits is not computed; {' and '.join(map(str, allowed))} bits are: {_GIVE}"
        )
    return value


def _group(value: object) -> int:
    """Inputs of a group; 0 for all, which files write as -1."""
    if type(value) is not int or (value != -1 and (not 0 < value <= MAX_GROUP or value % _UNIT)):
        raise ModelFormatError(
            f"config.json: groups of {value!r:.40} weights are not computed; multiples of {_UNIT} are, and -1 for a scale per row: {_GIVE}"
        )
    return max(0, value)


def _flags(config: Mapping[str, Any], *keys: str) -> None:
    for key in keys:
        if config.get(key) is not None and not isinstance(config[key], bool):
            raise ModelFormatError(f"config.json: {key} is {config[key]!r:.40}, true or false was expected")


def _only(name: str, found: object, allowed: tuple[object, ...]) -> None:
    if not any(type(found) is type(value) and found == value for value in allowed):
        wanted = ", ".join(repr(value) for value in allowed if value is not None) or "nothing"
        raise ModelFormatError(f"config.json: {name} is {found!r:.60}, which is not computed; {wanted} is: {_GIVE}")
