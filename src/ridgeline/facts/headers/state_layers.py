"""Layers that keep a state of fixed size in place of keys and values: which layers those are, their parameters, what a sequence keeps.

Owns the three recurrences and the rules by which families mix them with attention. `config_json.py` counts everything else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Final

from ridgeline.errors import ModelFormatError
from ridgeline.facts.headers.shape import StateLayers

if TYPE_CHECKING:
    from ridgeline.facts.headers.config_json import Fields

MAX_STATE: Final = 1 << 20
"""No dimension of a recurrence is larger."""
_NAMES: Final = {
    **dict.fromkeys(("mamba", "linear_attention", "M"), "state"),
    **dict.fromkeys(("attention", "full_attention", "*"), "full"),
    **dict.fromkeys(("mlp", "-"), "mlp"),
    **dict.fromkeys(("moe", "E"), "moe"),
}
"""What a block is called in lists and in Nemotron-H's pattern."""


@dataclass(frozen=True, slots=True)
class Recurrence:
    """One layer: parameters (those of its norms apart), and the elements that a sequence keeps of its state and of its convolution."""

    parameters: int
    norms: int
    state: int
    convolution: int

    def layers(self, count: int) -> StateLayers:
        """So many of them."""
        return StateLayers(count, self.state, self.convolution)


def mamba(fields: "Fields", hidden: int) -> Recurrence:
    """A selective state space with one state a channel (Gu & Dao 2023), with Jamba's norms on step, input and output projections."""
    inner = fields.integer("mamba_expand", 1, MAX_STATE) * hidden
    size, kernel = fields.integer("mamba_d_state", 1, MAX_STATE), fields.integer("mamba_d_conv", 1, MAX_STATE)
    given = fields.values.get("mamba_dt_rank", "auto")
    rank = ceil(hidden / 16) if given == "auto" else fields.integer("mamba_dt_rank", 1, MAX_STATE)
    parameters = 2 * hidden * inner + inner * (rank + 2 * size) + (rank + 1) * inner + inner * size + inner + inner * hidden
    parameters += inner * (kernel + fields.flag("mamba_conv_bias")) + fields.flag("mamba_proj_bias") * (2 * inner + hidden)
    return Recurrence(parameters, rank + 2 * size, inner * size, inner * (kernel - 1))


def mamba2(fields: "Fields", hidden: int) -> Recurrence:
    """A selective state space with one decay a head (Dao & Gu 2024), as in Nemotron-H, Falcon-H1 and Granite 4."""
    heads, groups = fields.integer("mamba_n_heads", 1, MAX_STATE), fields.integer("mamba_n_groups", 1, MAX_STATE)
    size, kernel = fields.integer("mamba_d_state", 1, MAX_STATE), fields.integer("mamba_d_conv", 1, MAX_STATE)
    if not fields.absent("mamba_head_dim"):
        inner = heads * fields.integer("mamba_head_dim", 1, MAX_STATE)
    elif not fields.absent("mamba_d_ssm"):
        inner = fields.integer("mamba_d_ssm", 1, MAX_STATE)
    else:
        inner = fields.integer("mamba_expand", 1, MAX_STATE) * hidden
    channels = inner + 2 * groups * size
    inward = inner + channels + heads
    parameters = hidden * inward + channels * (kernel + fields.flag("mamba_conv_bias")) + 3 * heads + inner * hidden
    parameters += fields.flag("mamba_proj_bias") * (inward + hidden)
    return Recurrence(parameters, inner if fields.flag("mamba_rms_norm") else 0, inner * size, channels * (kernel - 1))


def delta(fields: "Fields", hidden: int) -> Recurrence:
    """The gated delta rule (Yang et al. 2024), as in Qwen3-Next: a matrix of keys × values a value head."""
    heads, kernel = fields.integer("linear_num_value_heads", 1, MAX_STATE), fields.integer("linear_conv_kernel_dim", 1, MAX_STATE)
    key, value = fields.integer("linear_key_head_dim", 1, MAX_STATE), fields.integer("linear_value_head_dim", 1, MAX_STATE)
    keys, values = fields.integer("linear_num_key_heads", 1, MAX_STATE) * key, heads * value
    channels = 2 * keys + values
    parameters = hidden * (2 * keys + 2 * values + 2 * heads) + channels * kernel + 2 * heads + values * hidden
    return Recurrence(parameters, value, heads * key * value, channels * (kernel - 1))


RECURRENCES: Final[Mapping[str, Callable[["Fields", int], Recurrence]]] = {"mamba": mamba, "mamba2": mamba2, "delta": delta}
"""By `Family.recurrence`."""


def blocks(fields: "Fields", layers: int) -> tuple[str, ...]:
    """What each layer mixes tokens with: "full" attention or "state"; "mlp" and "moe" where a feed-forward is a layer by itself."""
    values = fields.values
    listed = values.get("hybrid_override_pattern") or values.get("layers_block_type") or values.get("layer_types")
    if listed:
        if not isinstance(listed, (list, str)) or len(listed) != layers:
            raise ModelFormatError(f"config.json: the list of layer types does not name the {layers} layers")
        unknown = sorted({str(each)[:40] for each in listed if not isinstance(each, str) or each not in _NAMES})
        if unknown:
            raise ModelFormatError(f"config.json: layers of kind {', '.join(unknown)} are not known; known: {', '.join(_NAMES)}")
        return tuple(_NAMES[each] for each in listed)
    if fields.family.beside:
        return ("full",) * layers
    if not fields.absent("full_attention_interval"):
        every = fields.integer("full_attention_interval", 1, layers)
        return tuple("full" if (i + 1) % every == 0 else "state" for i in range(layers))
    if fields.absent("attn_layer_period"):
        return ("state",) * layers
    period = fields.integer("attn_layer_period", 1, MAX_STATE)
    offset = fields.integer("attn_layer_offset", 0, period - 1)
    return tuple("full" if i % period == offset else "state" for i in range(layers))


def listed_layers(fields: "Fields") -> int | None:
    """How many layers a pattern or a list names, where the file has one."""
    given = fields.values.get("hybrid_override_pattern") or fields.values.get("layers_block_type")
    return len(given) if isinstance(given, (list, str)) else None
