"""From a config.json to its fields and a `ModelShape`: typed and bounded, unknown keys ignored, duplicates refused, code never followed.

Owns the reading and the counting of parameters; `checkpoint.py` makes facts of the same fields. `auto_map` and `trust_remote_code` are
keys like any other unknown one.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ridgeline.errors import ModelFormatError
from ridgeline.facts.files.json_file import parse_object, read_text
from ridgeline.facts.headers.families import FAMILIES, Family
from ridgeline.facts.headers.shape import Attention, Experts, ModelShape, attention_kind
from ridgeline.facts.headers.state_layers import RECURRENCES, Recurrence, blocks, listed_layers

MAX_LAYERS = 1_024
MAX_WIDTH = 1 << 20
MAX_VOCAB = 4 << 20
MAX_CONTEXT = 1 << 27
MAX_EXPERTS = 4_096
_KINDS = {"full_attention": "full", "sliding_attention": "window"}
_DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


class Fields:
    """The keys of one config, with the defaults and the names of its family. Every number is bounded where it is read."""

    def __init__(self, values: Mapping[str, Any], family: Family) -> None:
        self.values = {**family.defaults, **values}
        self.family = family

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """The integer at `key`; `default` where it is absent or null, an error where there is none."""
        name = self.family.keys.get(key, key)
        value = self.values.get(name)
        if value is None:
            value = default
        if value is None:
            raise ModelFormatError(f"config.json lacks {name}; give the whole file of the model")
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelFormatError(f"config.json: {name} is {value!r:.40}, an integer was expected")
        if not low <= value <= high:
            raise ModelFormatError(f"config.json: {name} is {value!s:.40}, outside {low} … {high}")
        return value

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """The number at `key`, as `integer`."""
        name = self.family.keys.get(key, key)
        return bounded_number(self.values.get(name), name, low, high, default)

    def own_number(self, key: str, low: float, high: float, default: float) -> float:
        """The number at a key that only some families have; `default` for the others, whatever the file says, and for null."""
        return self.number(key, low, high, default) if key in self.family.defaults else default

    def flag(self, key: str) -> bool:
        """The boolean at `key`; absent or null is false."""
        value = self.values.get(self.family.keys.get(key, key))
        if value is not None and not isinstance(value, bool):
            raise ModelFormatError(f"config.json: {key} is {value!r:.40}, true or false was expected")
        return bool(value)

    def absent(self, key: str) -> bool:
        """Whether `key` has no value."""
        return self.values.get(self.family.keys.get(key, key)) is None


def bounded_number(value: object, name: str, low: float, high: float, default: float | None = None) -> float:
    """`value` as a number within [low, high]; `default` where it is None, an error where there is none."""
    if value is None:
        value = default
    if value is None:
        raise ModelFormatError(f"config.json lacks {name}; give the whole file of the model")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ModelFormatError(f"config.json: {name} is {value!r:.40}, a number was expected")
    if not low <= value <= high:
        raise ModelFormatError(f"config.json: {name} is {value!s:.40}, outside {low} … {high}")
    return float(value)


def read_config(path: Path, name: str | None = None) -> ModelShape:
    """The shape that the config.json at `path` describes. Raises ModelFormatError, ModelNotFoundError."""
    return parse_config(read_text(path), name or path.resolve().parent.name)


def parse_config(text: str, name: str) -> ModelShape:
    """The shape that the text of a config.json describes. Raises ModelFormatError."""
    fields, kind = config_fields(text)
    return _shape(fields, kind, name)


def config_fields(text: str) -> tuple[Fields, str]:
    """(keys of the text model, its `model_type`). Raises ModelFormatError where the model_type is not known."""
    values = parse_object(text, "config.json")
    nested = values.get("text_config")
    if isinstance(nested, dict):
        outer = ("torch_dtype", "dtype", "quantization_config", "tie_word_embeddings")
        values = {**{key: values[key] for key in outer if key in values}, **nested}
    kind = values.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        raise ModelFormatError(f"config.json: model_type {kind!r:.60} is not known; known: {', '.join(sorted(FAMILIES))}")
    return Fields(values, family), str(kind)


def _shape(fields: Fields, architecture: str, name: str) -> ModelShape:
    layers = fields.integer("num_hidden_layers", 1, MAX_LAYERS, default=listed_layers(fields))
    hidden = fields.integer("hidden_size", 1, MAX_WIDTH)
    heads = fields.integer("num_attention_heads", 1, MAX_WIDTH)
    vocab = fields.integer("vocab_size", 1, MAX_VOCAB)
    context = fields.integer("max_position_embeddings", 1, MAX_CONTEXT)
    tied = fields.flag("tie_word_embeddings")
    positions = context if fields.family.positions else 0
    attention = _latent_attention(fields, hidden, heads) if "kv_lora_rank" in fields.values else _attention(fields, hidden, heads)
    ffn, experts, routed = _feed_forward(fields, hidden, layers)
    kinds, window = layer_kinds(fields, layers)
    attending, recurring = _mixers(fields, kinds)
    recurrence = RECURRENCES[fields.family.recurrence](fields, hidden) if recurring else Recurrence(0, 0, 0, 0)
    one_norm = hidden * (2 if fields.family.norm_bias else 1)
    return ModelShape(
        name=name,
        architecture=architecture,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=attention["kv_heads"],
        head_dim=attention["head_dim"],
        ffn=fields.integer("intermediate_size", 1, MAX_WIDTH, default=4 * hidden),
        vocab=vocab,
        context=context,
        attention=_kind(fields, heads, attention["kv_heads"]),
        layer_kinds=kinds,
        window=window,
        kv_elements=attention["kv_elements"],
        decode_width=attention["decode_width"],
        prefill_width=attention["prefill_width"],
        parameters={
            "embedding": (vocab + positions) * hidden,
            "head": 0 if tied else vocab * hidden,
            "attention": attending * attention["parameters"] + recurring * recurrence.parameters,
            "ffn": ffn,
            "experts": routed,
            "norms": (layers * fields.family.norms + 1) * one_norm + attending * attention["norms"] + recurring * recurrence.norms,
        },
        dtype=_dtype(fields.values),
        experts=experts,
        state=recurrence.layers(recurring) if recurring else None,
    )


def _mixers(fields: Fields, kinds: tuple[str, ...]) -> tuple[int, int]:
    """Layers with attention, and layers with a recurrence."""
    attending = len(kinds) - kinds.count("none")
    if fields.family.beside:
        return attending, attending
    return attending, blocks(fields, len(kinds)).count("state") if fields.family.recurrence else 0


def _kind(fields: Fields, heads: int, kv_heads: int) -> Attention:
    return "MLA" if "kv_lora_rank" in fields.values else attention_kind(heads, kv_heads)


def _attention(fields: Fields, hidden: int, heads: int) -> dict[str, int]:
    """Numbers of ordinary attention: parameters of one layer without and with norms apart, widths, cached elements."""
    kv_heads = fields.integer("num_key_value_heads", 1, MAX_WIDTH, default=heads)
    if heads % kv_heads:
        raise ModelFormatError(f"config.json: {heads} query heads are no multiple of {kv_heads} KV heads")
    head_dim = fields.integer("head_dim", 1, MAX_WIDTH, default=max(1, hidden // heads))
    queries, keys = heads * head_dim, kv_heads * head_dim
    biases = fields.family.biases | ({"qkv", "output"} if fields.flag("attention_bias") else frozenset())
    parameters = hidden * (queries * (2 if fields.family.gate else 1) + 2 * keys) + queries * hidden
    parameters += (queries + 2 * keys if "qkv" in biases else 0) + (hidden if "output" in biases else 0)
    return {
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "kv_elements": 2 * keys,
        "decode_width": 2 * queries,
        "prefill_width": 2 * queries,
        "parameters": parameters,
        "norms": 2 * head_dim if fields.family.qk_norm else 0,
    }


def _latent_attention(fields: Fields, hidden: int, heads: int) -> dict[str, int]:
    """Multi-head latent attention: one latent and one rotary key a token are cached, whatever the number of heads.

    DeepSeek-V2, section 2.1. In decode queries are multiplied into the latent space, so scores run over latent + rotary dimensions.
    """
    latent = fields.integer("kv_lora_rank", 1, MAX_WIDTH)
    rotary = fields.integer("qk_rope_head_dim", 1, MAX_WIDTH)
    plain = fields.integer("qk_nope_head_dim", 1, MAX_WIDTH)
    value = fields.integer("v_head_dim", 1, MAX_WIDTH)
    low_rank = 0 if fields.absent("q_lora_rank") else fields.integer("q_lora_rank", 1, MAX_WIDTH)
    queries = heads * (plain + rotary)
    query = hidden * low_rank + low_rank * queries if low_rank else hidden * queries
    return {
        "kv_heads": 1,
        "head_dim": plain + rotary,
        "kv_elements": latent + rotary,
        "decode_width": heads * (2 * latent + rotary),
        "prefill_width": heads * (plain + rotary + value),
        "parameters": query + hidden * (latent + rotary) + latent * heads * (plain + value) + heads * value * hidden,
        "norms": latent + low_rank,
    }


def _feed_forward(fields: Fields, hidden: int, layers: int) -> tuple[int, Experts | None, int]:
    """(parameters of dense layers, shared experts and routers; the mixture; parameters of all routed experts)."""
    width = fields.integer("intermediate_size", 1, MAX_WIDTH, default=4 * hidden)
    matrices = 3 if fields.family.gated else 2
    biased = "ffn" in fields.family.biases or fields.flag("mlp_bias")

    def dense(width: int) -> int:
        return matrices * hidden * width + ((matrices - 1) * width + hidden if biased else 0)

    count = next((key for key in ("num_local_experts", "num_experts", "n_routed_experts") if not fields.absent(key)), None)
    routed = fields.integer(count, 0, MAX_EXPERTS) if count else 0
    plain, sparse = _feed_forward_layers(fields, layers, routed)
    beside = fields.integer("shared_intermediate_size", 0, MAX_WIDTH, default=0)  # a dense part of every layer, beside its mixture
    rest = layers * dense(beside) if beside else plain * dense(width)
    if not sparse:
        return rest, None, 0
    active = fields.integer("num_experts_per_tok", 1, routed)
    expert = matrices * hidden * fields.integer("moe_intermediate_size", 1, MAX_WIDTH, default=width)
    rest += sparse * (hidden * routed + _shared_experts(fields, hidden, matrices, expert))
    return rest, Experts(routed, active, sparse), sparse * routed * expert


def _shared_experts(fields: Fields, hidden: int, matrices: int, expert: int) -> int:
    """Parameters of the experts of one layer that every token uses: as wide as the routed ones, of a width of their own, or gated."""
    gated = fields.integer("shared_expert_intermediate_size", 0, MAX_WIDTH, default=0)
    if gated:
        return matrices * hidden * gated + hidden
    shared = fields.integer("n_shared_experts", 0, MAX_EXPERTS, default=0)
    own = fields.integer("moe_shared_expert_intermediate_size", 0, MAX_WIDTH, default=0)
    return shared * (matrices * hidden * own if own else expert)


def _feed_forward_layers(fields: Fields, layers: int, routed: int) -> tuple[int, int]:
    """Layers whose feed-forward is dense, and those where it is a mixture of more than one expert."""
    if fields.family.recurrence:
        named = blocks(fields, layers)
        if "mlp" in named or "moe" in named:
            return named.count("mlp"), named.count("moe") if routed > 1 else 0
    sparse = _sparse_layers(fields, layers) if routed > 1 else 0
    return layers - sparse, sparse


def _sparse_layers(fields: Fields, layers: int) -> int:
    """Layers whose feed-forward is a mixture, where rules say so."""
    first = fields.integer("first_k_dense_replace", 0, layers, default=0)
    every = fields.integer("moe_layer_freq", 1, layers, default=1)
    step = fields.integer("decoder_sparse_step", 1, layers, default=1)
    period = fields.integer("expert_layer_period", 1, MAX_LAYERS, default=1)
    offset = fields.integer("expert_layer_offset", 0, period - 1, default=0)
    dense = fields.values.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise ModelFormatError(f"config.json: mlp_only_layers is {dense!r:.40}, a list was expected")
    ruled = (i for i in range(layers) if i >= first and i % every == 0 and (i + 1) % step == 0 and i % period == offset)
    return sum(i not in dense for i in ruled)


def layer_kinds(fields: Fields, layers: int) -> tuple[tuple[str, ...], int]:
    """(kind of each layer, tokens of the window or 0)."""
    if fields.family.recurrence:
        return tuple("full" if each == "full" else "none" for each in blocks(fields, layers)), 0
    kinds = _listed_kinds(fields, layers) or _ruled_kinds(fields, layers)
    if "window" not in kinds:
        return kinds, 0
    return kinds, fields.integer("sliding_window", 1, MAX_CONTEXT)


def _listed_kinds(fields: Fields, layers: int) -> tuple[str, ...] | None:
    listed = fields.values.get("layer_types")
    if listed is None:
        return None
    if not isinstance(listed, list) or len(listed) != layers:
        raise ModelFormatError(f"config.json: layer_types must list the {layers} layers")
    unknown = sorted({str(kind)[:40] for kind in listed if kind not in _KINDS})
    if unknown:
        raise ModelFormatError(f"config.json: layers of kind {', '.join(unknown)} are not known; known: {', '.join(_KINDS)}")
    return tuple(_KINDS[kind] for kind in listed)


def _ruled_kinds(fields: Fields, layers: int) -> tuple[str, ...]:
    if fields.absent("sliding_window"):
        return ("full",) * layers
    if fields.flag("use_sliding_window"):
        first = fields.integer("max_window_layers", 0, MAX_LAYERS)
        return tuple("window" if i >= first else "full" for i in range(layers))
    pattern = fields.family.pattern
    if pattern > 1:
        pattern = fields.integer("sliding_window_pattern", 1, MAX_LAYERS, default=pattern)
        return tuple("full" if (i + 1) % pattern == 0 else "window" for i in range(layers))
    return (("window",) if pattern == 1 else ("full",)) * layers


def _dtype(values: Mapping[str, Any]) -> str:
    """The format of the checkpoint: what `quantization_config` says, else the data type, else bf16."""
    quantised = values.get("quantization_config")
    found = _quantised(quantised) if isinstance(quantised, dict) else None
    if found is not None:
        return found
    stated = values.get("dtype", values.get("torch_dtype"))
    return _DTYPES.get(stated, "bf16") if isinstance(stated, str) else "bf16"


def _quantised(config: Mapping[str, Any]) -> str | None:
    """The weight format that a `quantization_config` names, of any that arithmetic knows; `quantisation.py` says what is computed."""
    method, bits = config.get("quant_method"), config.get("bits", 4)
    if method == "fp8":
        return "fp8"
    if method in ("awq", "gptq"):
        return _METHODS.get((method, str(bits)))
    groups = config.get("config_groups")
    schemes = [scheme for scheme in groups.values() if isinstance(scheme, dict)] if isinstance(groups, dict) else []
    if method != "compressed-tensors" or not schemes:
        return None
    weights = schemes[0].get("weights")
    weights = weights if isinstance(weights, dict) else {}
    narrow = schemes[0].get("input_activations") is not None
    return _SCHEMES.get((str(weights.get("type", "int")), str(weights.get("num_bits")), narrow))


_METHODS = {("awq", "4"): "awq", ("gptq", "4"): "gptq", ("gptq", "8"): "gptq8"}
_SCHEMES = {
    ("int", "4", False): "w4a16",
    ("int", "8", False): "w8a16",
    ("int", "8", True): "w8a8",
    ("float", "8", True): "fp8",
}
"""(type and bits of the weights, whether activations are quantised too), of compressed-tensors → weight format."""
