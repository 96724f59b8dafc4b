"""Layers of a config.json: the parts of each (attention, a recurrent state, a dense or a sparse feed-forward).

Owns the layer patterns of model families. `config_json.py` reads everything else.
"""

from collections.abc import Mapping
from typing import Final

from ridgeline.errors import ModelFormatError
from ridgeline.facts.headers.fields import MAX_CONTEXT, MAX_LAYERS, MAX_WIDTH, Fields

_ATTENTION_KINDS: Final = {"full_attention": "full", "sliding_attention": "window"}
_LAYER_PARTS: Final = {
    **dict.fromkeys(("mamba", "linear_attention", "M"), "state"),
    **dict.fromkeys(("attention", "full_attention", "*"), "attention"),
    **dict.fromkeys(("mlp", "-"), "dense"),
    **dict.fromkeys(("moe", "E"), "sparse"),
}
"""Name of a layer type in lists and in Nemotron-H's pattern → part."""


def listed_layers(fields: Fields) -> int | None:
    """Number of layers in the file's pattern or list of layer types; None without one."""
    rank_key = fields.values.get("hybrid_override_pattern") or fields.values.get("layers_block_type")
    return len(rank_key) if isinstance(rank_key, (list, str)) else None


def layer_parts(fields: Fields, layers: int, routed: int) -> tuple[frozenset[str], ...]:
    """Parts of each layer, of "attention", "state", "dense" and "sparse"; `routed` experts."""
    mixers = _mixers(fields, layers) if fields.architecture.recurrence else ("attention",) * layers
    if "dense" in mixers or "sparse" in mixers:  # a feed-forward is a layer by itself
        return tuple(frozenset() if each == "sparse" and routed < 2 else frozenset((each,)) for each in mixers)
    sparse = _sparse_layers(fields, layers) if routed > 1 else frozenset()
    return tuple(
        frozenset((mixer, "sparse" if i in sparse else "dense", *(("state",) if fields.architecture.parallel_recurrence else ())))
        for i, mixer in enumerate(mixers)
    )


def layer_kinds(fields: Fields, parts: tuple[frozenset[str], ...]) -> tuple[tuple[str, ...], int]:
    """(kind of each layer's attention, tokens of the window or 0)."""
    if fields.architecture.recurrence:
        return tuple("full" if "attention" in each else "none" for each in parts), 0
    kinds = _listed_kinds(fields, len(parts)) or _ruled_kinds(fields, len(parts))
    if "window" not in kinds:
        return kinds, 0
    return kinds, fields.integer("sliding_window", 1, MAX_CONTEXT)


def _mixers(fields: Fields, layers: int) -> tuple[str, ...]:
    """The token mixer of each layer, "attention" or "state"; "dense" and "sparse" where a feed-forward is a layer by itself."""
    values = fields.values
    listed = values.get("hybrid_override_pattern") or values.get("layers_block_type") or values.get("layer_types")
    if listed:
        return _translate(listed, _LAYER_PARTS, layers)
    if fields.architecture.parallel_recurrence:
        return ("attention",) * layers
    if not fields.is_absent("full_attention_interval"):
        interval = fields.integer("full_attention_interval", 1, layers)
        return tuple("attention" if (i + 1) % interval == 0 else "state" for i in range(layers))
    if fields.is_absent("attn_layer_period"):
        return ("state",) * layers
    period = fields.integer("attn_layer_period", 1, MAX_WIDTH)
    offset = fields.integer("attn_layer_offset", 0, period - 1)
    return tuple("attention" if i % period == offset else "state" for i in range(layers))


def _sparse_layers(fields: Fields, layers: int) -> frozenset[int]:
    """Layers whose feed-forward is a mixture of experts."""
    first = fields.integer("first_k_dense_replace", 0, layers, default=0)
    interval = fields.integer("moe_layer_freq", 1, layers, default=1)
    step = fields.integer("decoder_sparse_step", 1, layers, default=1)
    period = fields.integer("expert_layer_period", 1, MAX_LAYERS, default=1)
    offset = fields.integer("expert_layer_offset", 0, period - 1, default=0)
    end = fields.integer("moe_layer_end_index", -1, layers - 1, default=-1) % layers
    dense = fields.values.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise ModelFormatError(f"config.json: mlp_only_layers is {dense!r:.40}, a list was expected")
    sparse = (i for i in range(layers) if first <= i <= end and i % interval == 0 and (i + 1) % step == 0 and i % period == offset)
    return frozenset(i for i in sparse if i not in dense)


def _listed_kinds(fields: Fields, layers: int) -> tuple[str, ...] | None:
    listed = fields.values.get("layer_types")
    return None if listed is None else _translate(listed, _ATTENTION_KINDS, layers)


def _translate(listed: object, names: Mapping[str, str], layers: int) -> tuple[str, ...]:
    """The listed layer types, translated by `names`. Raises ModelFormatError unless there is a known one for every layer."""
    if not isinstance(listed, (list, str)) or len(listed) != layers:
        raise ModelFormatError(f"config.json: the list of layer types does not name the {layers} layers")
    unknown = sorted({str(each)[:40] for each in listed if not isinstance(each, str) or each not in names})
    if unknown:
        raise ModelFormatError(f"config.json: layers of kind {', '.join(unknown)} are not known; known: {', '.join(names)}")
    return tuple(names[each] for each in listed)


def _ruled_kinds(fields: Fields, layers: int) -> tuple[str, ...]:
    if fields.is_absent("sliding_window"):
        return ("full",) * layers
    if fields.flag("use_sliding_window"):
        first = fields.integer("max_window_layers", 0, MAX_LAYERS)
        return tuple("window" if i >= first else "full" for i in range(layers))
    pattern = fields.architecture.window_pattern
    if pattern > 1:
        pattern = fields.integer("sliding_window_pattern", 1, MAX_LAYERS, default=pattern)
        return tuple("full" if (i + 1) % pattern == 0 else "window" for i in range(layers))
    return (("window",) if "config" in fields.architecture.windows_everywhere else ("full",)) * layers
