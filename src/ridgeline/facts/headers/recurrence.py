"""Recurrent layers in headers: the dimensions of three recurrences, and the state that a sequence keeps in them.

Owns their keys in both kinds of files. Which layers are recurrent is said by `layers.py` and `gguf.py`.
"""

from collections.abc import Callable, Mapping
from math import ceil
from typing import Final

from ridgeline.errors import ModelFormatError
from ridgeline.facts.files.gguf import Header
from ridgeline.facts.headers.fields import MAX_WIDTH, Fields
from ridgeline.facts.model import StateLayers
from ridgeline.models.declare import Sizes


def _mamba(fields: Fields, hidden: int, layers: int) -> tuple[Sizes, StateLayers]:
    """A selective state space with one state per channel (Gu & Dao 2023), with Jamba's norms on step, input and output projections."""
    inner = fields.integer("mamba_expand", 1, MAX_WIDTH) * hidden
    state, kernel = fields.integer("mamba_d_state", 1, MAX_WIDTH), fields.integer("mamba_d_conv", 1, MAX_WIDTH)
    rank_key = fields.values.get("mamba_dt_rank", "auto")
    rank = ceil(hidden / 16) if rank_key == "auto" else fields.integer("mamba_dt_rank", 1, MAX_WIDTH)
    sizes = {"inner": inner, "in_proj": 2 * inner, "state": state, "rank": rank, "x_proj": rank + 2 * state}
    return sizes | {"channels": inner, "kernel": kernel}, StateLayers(layers, inner * state, inner * (kernel - 1))


def _mamba2(fields: Fields, hidden: int, layers: int) -> tuple[Sizes, StateLayers]:
    """A selective state space with one decay per head (Dao & Gu 2024), as in Nemotron-H, Falcon-H1 and Granite 4."""
    heads, groups = fields.integer("mamba_n_heads", 1, MAX_WIDTH), fields.integer("mamba_n_groups", 1, MAX_WIDTH)
    state, kernel = fields.integer("mamba_d_state", 1, MAX_WIDTH), fields.integer("mamba_d_conv", 1, MAX_WIDTH)
    if not fields.is_absent("mamba_head_dim"):
        inner = heads * fields.integer("mamba_head_dim", 1, MAX_WIDTH)
    elif not fields.is_absent("mamba_d_ssm"):
        inner = fields.integer("mamba_d_ssm", 1, MAX_WIDTH)
    else:
        inner = fields.integer("mamba_expand", 1, MAX_WIDTH) * hidden
    channels = inner + 2 * groups * state
    sizes = {"inner": inner, "channels": channels, "in_proj": inner + channels + heads, "state_heads": heads, "kernel": kernel}
    sizes["norm"] = inner if fields.flag("mamba_rms_norm") else 0
    return sizes, StateLayers(layers, inner * state, channels * (kernel - 1))


def _delta(fields: Fields, hidden: int, layers: int) -> tuple[Sizes, StateLayers]:
    """The gated delta rule (Yang et al. 2024), as in Qwen3-Next: a matrix of keys × values per value head."""
    names = ("num_key_heads", "key_head_dim", "num_value_heads", "value_head_dim", "conv_kernel_dim")
    state = _delta_state("config.json", layers, *(fields.integer(f"linear_{name}", 1, MAX_WIDTH) for name in names))
    return delta_sizes(state), state


def _delta_state(where: str, layers: int, key_heads: int, key_dim: int, value_heads: int, value_dim: int, kernel: int) -> StateLayers:
    """The state whose numbers a file has; raises ModelFormatError, with `where` they stand, if they do not go together."""
    if value_heads % key_heads:
        raise ModelFormatError(f"{where}: {value_heads} value heads of recurrent layers are not a multiple of {key_heads} key heads")
    inputs = (kernel - 1) * (2 * key_heads * key_dim + value_heads * value_dim)
    return StateLayers(layers, value_heads * key_dim * value_dim, inputs, key_heads, key_dim, value_heads, value_dim, kernel)


def delta_sizes(state: StateLayers) -> Sizes:
    """Dimensions of the gated delta rule by the names that rows have, where one matrix makes queries, keys, values and gates."""
    values = state.value_heads * state.value_dim
    sizes = {"inner": values, "channels": state.channels, "in_proj": state.channels + values, "kernel": state.kernel}
    return sizes | {"value": state.value_dim, "state_heads": state.value_heads, "beta_alpha": 2 * state.value_heads}


_RECURRENCES: Final[Mapping[str, Callable[[Fields, int, int], tuple[Sizes, StateLayers]]]] = {
    "mamba": _mamba,
    "mamba2": _mamba2,
    "delta": _delta,
}
"""`Architecture.recurrence` → function that gives its dimensions and its state in so many layers."""


def state_sizes(fields: Fields, hidden: int, layers: int) -> tuple[Sizes, StateLayers | None]:
    """(dimensions of the recurrence, its state per sequence in `layers` layers or None)."""
    return _RECURRENCES[fields.architecture.recurrence](fields, hidden, layers) if layers else ({}, None)


def gguf_state(header: Header, arch: str, layers: int, recurrence: str) -> StateLayers | None:
    """The state of a GGUF file's recurrent layers; `recurrence` "" for an architecture that is only planned.

    Mamba's is channels × size, and the convolution's last inputs are those of its channels and of the grouped B and C projections; the
    delta rule's heads of values and of keys are written as their ranks and groups.
    """
    if not layers:
        return None
    channels, size = (header.integer(f"{arch}.ssm.{key}", 1, MAX_WIDTH) for key in ("inner_size", "state_size"))
    kernel = header.integer(f"{arch}.ssm.conv_kernel", 1, MAX_WIDTH)
    if recurrence != "delta":
        groups = header.integer(f"{arch}.ssm.group_count", 0, MAX_WIDTH, default=0)
        return StateLayers(layers, channels * size, (kernel - 1) * (channels + 2 * groups * size))
    heads, groups = (header.integer(f"{arch}.ssm.{key}", 1, MAX_WIDTH) for key in ("time_step_rank", "group_count"))
    if channels % heads:
        raise ModelFormatError(f"{arch}.ssm.inner_size is {channels}, a multiple of the {heads} value heads was expected")
    return _delta_state(f"{arch}.ssm", layers, groups, size, heads, channels // heads, kernel)


def gguf_delta_sizes(header: Header, state: StateLayers) -> Sizes:
    """Dimensions of the gated delta rule in a GGUF file: llama.cpp's older ones have one matrix that makes queries, keys, values and gates,
    as checkpoints do, later ones one for the convolution's channels and one for the gates."""
    sizes = delta_sizes(state)
    if any(name.endswith(".ssm_in.weight") for name in header.tensors):
        return sizes
    return sizes | {"in_proj": 0, "apart_channels": sizes["channels"], "apart_gates": sizes["inner"]}
