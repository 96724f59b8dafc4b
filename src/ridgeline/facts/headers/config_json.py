"""Reader of config.json to `ModelFacts` without tensors: typed and bounded, unknown keys ignored, duplicate keys rejected.

Owns all keys except those of layers (`layers.py`), RoPE (`config_rope.py`) and quantised weights (`quantisation.py`). `auto_map` and
`trust_remote_code` are unknown keys: no code is ever loaded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ridgeline.errors import ModelFormatError
from ridgeline.facts.files.json_file import parse_object, read_object, read_text
from ridgeline.facts.headers.experts import expert_sizes, routed_experts
from ridgeline.facts.headers.fields import MAX_CONTEXT, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH, Fields
from ridgeline.facts.headers.latent import latent_sizes, latent_widths
from ridgeline.facts.headers.layers import layer_kinds, layer_parts, listed_layers
from ridgeline.facts.headers.recurrence import state_sizes
from ridgeline.facts.headers.tensors import Shapes, expected_shapes, sum_by_class
from ridgeline.facts.model import AttentionWidths, Latent, ModelFacts
from ridgeline.models.declare import Sizes
from ridgeline.models.table import ARCHITECTURES, MODEL_TYPES

MODELOPT_FILE = "hf_quant_config.json"
_DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True)
class Config:
    """A parsed config.json: its facts without tensors, and what determines its tensors (`expected_shapes`)."""

    text: str
    fields: Fields
    facts: ModelFacts
    sizes: Sizes
    parts: Sequence[frozenset[str]]
    flags: Mapping[str, bool]

    def shapes(self, *, tied: bool) -> Shapes:
        """Shapes of the required tensors by canonical name."""
        return expected_shapes(self.fields.architecture, self.sizes, self.parts, tied=tied, flags=self.flags)[0]


def read_config(path: Path, name: str | None = None) -> Config:
    """Reads the config.json at `path`, and what ModelOpt writes beside it. Raises ModelFormatError, ModelNotFoundError."""
    beside = path.with_name(MODELOPT_FILE)
    stated = read_object(beside) if path.name == "config.json" and beside.is_file() else {}
    return parse_config(read_text(path), name or path.resolve().parent.name, stated)


def parse_config(text: str, name: str, modelopt: Mapping[str, Any] = MappingProxyType({})) -> Config:
    """Parses the text of a config.json; `name` is the model's, `modelopt` what ModelOpt says beside it. Raises ModelFormatError."""
    fields, architecture = _fields(text, modelopt)
    layers = fields.integer("num_hidden_layers", 1, MAX_LAYERS, default=listed_layers(fields))
    hidden = fields.integer("hidden_size", 1, MAX_WIDTH)
    heads = fields.integer("num_attention_heads", 1, MAX_WIDTH)
    vocab = fields.integer("vocab_size", 1, MAX_VOCAB)
    context = fields.integer("max_position_embeddings", 1, MAX_CONTEXT)
    tied = fields.flag("tie_word_embeddings")
    routed = routed_experts(fields)
    parts = layer_parts(fields, layers, routed)
    ffn, experts = expert_sizes(fields, hidden, routed, sum("sparse" in each for each in parts))
    state_dims, state = state_sizes(fields, hidden, sum("state" in each for each in parts))
    kv_heads, head_dim, attention_sizes, attention = _attention(fields, hidden, heads)
    kinds, window = layer_kinds(fields, parts)
    facts = ModelFacts(
        architecture=architecture,
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=ffn["ffn"],
        vocab=vocab,
        tokens=vocab,
        context=context,
        layer_kinds=kinds,
        window=window,
        tied=tied,
        dtype=_dtype(fields.values),
        attention=attention,
        experts=experts,
        state=state,
    )
    flags = {flag: fields.flag(flag) for flag in {*fields.architecture.biases.values()} - {"always"}}
    sizes = {"hidden": hidden, "vocab": vocab, "context": context, **ffn, **state_dims, **attention_sizes}
    config = Config(text, fields, facts, sizes, parts, flags)
    counted = sum_by_class((each, prod(shape)) for each, shape in config.shapes(tied=tied).items())
    return replace(config, facts=replace(facts, parameters=counted))


def _fields(text: str, modelopt: Mapping[str, Any]) -> tuple[Fields, str]:
    """(keys of the text model, name of its architecture). Raises ModelFormatError where the model_type is not known."""
    values = parse_object(text, "config.json")
    if modelopt:
        values.setdefault("quantization_config", {"quant_method": "modelopt", **modelopt})
    nested = values.get("text_config")
    if isinstance(nested, dict):
        outer = ("torch_dtype", "dtype", "quantization_config", "tie_word_embeddings")
        values = {**{key: values[key] for key in outer if key in values}, **nested}
    kind = values.get("model_type")
    name = MODEL_TYPES.get(kind) if isinstance(kind, str) else None
    if name is None:
        raise ModelFormatError(f"config.json: model_type {kind!r:.60} is not known; known: {', '.join(sorted(MODEL_TYPES))}")
    return Fields(values, ARCHITECTURES[name]), name


def _attention(fields: Fields, hidden: int, heads: int) -> tuple[int, int, Sizes, AttentionWidths | None]:
    """(KV heads, head dimension, sizes, widths of MLA or None)."""
    if "kv_lora_rank" in fields.values:
        return _latent_attention(fields, heads)
    kv_heads = fields.integer("num_key_value_heads", 1, MAX_WIDTH, default=heads)
    if heads % kv_heads:
        raise ModelFormatError(f"config.json: {heads} query heads are not a multiple of {kv_heads} KV heads")
    head_dim = fields.integer("head_dim", 1, MAX_WIDTH, default=max(1, hidden // heads))
    sizes = {"head": head_dim, "heads": heads, "normed_head": head_dim * fields.flag("use_qk_norm")}
    sizes |= {"queries": heads * head_dim, "gated_queries": 2 * heads * head_dim, "keys": kv_heads * head_dim}
    return kv_heads, head_dim, sizes, None


def _latent_attention(fields: Fields, heads: int) -> tuple[int, int, Sizes, AttentionWidths]:
    """Multi-head latent attention: one latent and one rotary key per token are cached, whatever the number of heads."""
    keys = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    latent = Latent(*(fields.integer(key, 1, MAX_WIDTH) for key in keys))
    rank = 0 if fields.is_absent("q_lora_rank") else fields.integer("q_lora_rank", 1, MAX_WIDTH)
    return 1, latent.plain + latent.rotary, latent_sizes(latent, heads, rank), latent_widths(latent, heads)


def _dtype(values: Mapping[str, Any]) -> str:
    """Weight format of the checkpoint: from `quantization_config`, else `dtype` or `torch_dtype`, else bf16."""
    quantised = values.get("quantization_config")
    found = _quantised_format(quantised) if isinstance(quantised, dict) else None
    if found is not None:
        return found
    dtype = values.get("dtype", values.get("torch_dtype"))
    return _DTYPES.get(dtype, "bf16") if isinstance(dtype, str) else "bf16"


def _quantised_format(config: Mapping[str, Any]) -> str | None:
    """Weight format of a `quantization_config`, also of those that can be planned only; None for an unknown one."""
    method, bits = config.get("quant_method"), config.get("bits", 4)
    if method in ("fp8", "mxfp4"):
        return str(method)
    if method in ("awq", "gptq"):
        return _METHODS.get((method, str(bits)))
    if method == "modelopt":
        inner = config.get("quantization")
        return _ALGORITHMS.get(str((inner if isinstance(inner, dict) else config).get("quant_algo")))
    groups = config.get("config_groups")
    schemes = [scheme for scheme in groups.values() if isinstance(scheme, dict)] if isinstance(groups, dict) else []
    if method != "compressed-tensors" or not schemes:
        return None
    weights = schemes[0].get("weights")
    weights = weights if isinstance(weights, dict) else {}
    if (weights.get("type"), weights.get("num_bits")) == ("float", 4):
        return "mxfp4" if weights.get("group_size") == 32 else "nvfp4"
    quantised_inputs = schemes[0].get("input_activations") is not None
    return _SCHEMES.get((str(weights.get("type", "int")), str(weights.get("num_bits")), quantised_inputs))


_ALGORITHMS = {"FP8": "fp8", "NVFP4": "nvfp4"}
_METHODS = {("awq", "4"): "awq", ("gptq", "4"): "gptq", ("gptq", "8"): "gptq8"}
_SCHEMES = {
    ("int", "4", False): "w4a16",
    ("int", "8", False): "w8a16",
    ("int", "8", True): "w8a8",
    ("float", "8", True): "fp8",
    ("float", "8", False): "fp8",
}
"""compressed-tensors: (type of the weights, their bits, activations are quantised) → weight format."""
