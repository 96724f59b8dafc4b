"""Memory arithmetic of the KV cache: pure functions of facts and limits, in bytes, tokens and blocks."""

from collections.abc import Sequence
from functools import reduce
from math import gcd
from typing import Final

from ridgeline.config.groups import EngineConfig
from ridgeline.config.resolve import KVCosts
from ridgeline.core.plan import KVGroup
from ridgeline.facts.model import ModelFacts

GRAPH_BYTES: Final = 2 << 20
"""Device memory of one captured CUDA graph, without the buffers that all graphs share: published sizes are 1 to 2 MB."""

DRAFT_SHARE: Final = 0.10
"""Share of the memory that the process may use for a draft model's cache, at most."""

RESERVE_SHARE: Final = 0.03
"""Share of a device's memory that is left free for fragmentation and for libraries that allocate later."""

HOST_LINK: Final = 128e9
"""Bytes per second between a device and its host, both directions together: PCIe 5 x 16. Faster links lead to other devices."""


def host_copy_seconds(nbytes: float, link_bytes_per_second: float) -> float:
    """Seconds to copy `nbytes` between device and host over an otherwise idle PCIe link."""
    return nbytes / (min(link_bytes_per_second, HOST_LINK) / 2)


def kv_head_bytes(head_dim: int, kv_dtype: str) -> int:
    """Bytes of K (or V) per token and head: f32, bf16, fp16, fp8 without a scale, or int8 with one fp32 scale."""
    return {"f32": 4 * head_dim, "bf16": 2 * head_dim, "fp16": 2 * head_dim, "fp8": head_dim, "int8": head_dim + 4}[kv_dtype]


def adapter_bytes(facts: ModelFacts, rank: int) -> int:
    """Bytes of a LoRA adapter of all linear layers in 16 bits, but for routed experts: 2 · rank · (inputs + outputs) of each matrix.

    Hu et al. 2021, "LoRA". Of latent attention and shared experts about: as if their matrices were the usual ones.
    """
    queries, keys = facts.heads * facts.head_dim, facts.kv_heads * facts.head_dim
    widths = 2 * (facts.hidden + queries) + 2 * (facts.hidden + keys) + (0 if facts.experts else 3 * (facts.hidden + facts.ffn))
    return 2 * rank * facts.layers * widths


def available_kv_bytes(device_bytes: int, free_bytes: int, graphs: int) -> int:
    """Bytes for the KV cache, of the `free_bytes` that weights and the largest step leave on the device; negative where too few are."""
    return free_bytes - int(RESERVE_SHARE * device_bytes) - graphs * GRAPH_BYTES


def kv_groups(facts: ModelFacts) -> tuple[KVGroup, ...]:
    """KV groups of a model: layers of one kind, split into groups of equal size so that all blocks have one size.

    Fifteen window layers and three full ones become five groups and one group, of three layers each.
    """
    return groups_of(facts.layer_kinds, facts.window)


def groups_of(layer_kinds: Sequence[str], window: int) -> tuple[KVGroup, ...]:
    """`kv_groups` for layers of these kinds: "full", "window" (attends to `window` tokens), or "none" (without KV cache)."""
    kinds: dict[str, list[int]] = {}
    for layer, kind in enumerate(layer_kinds):
        if kind != "none":
            kinds.setdefault(kind, []).append(layer)
    size = reduce(gcd, (len(layers) for layers in kinds.values()), 0)
    return tuple(
        KVGroup(kind=kind, layers=tuple(layers[i : i + size]), window=window if kind == "window" else 0)
        for kind, layers in sorted(kinds.items())
        for i in range(0, len(layers), size)
    )


def block_bytes(facts: ModelFacts, group: KVGroup, block_tokens: int, kv_dtype: str) -> int:
    """Bytes of one block: K and V of `block_tokens` tokens for the group's layers.

    2 · layers · tokens · KV heads · bytes per head; of a latent, which is K and V, once
    """
    cached = facts.cached
    return cached.records * len(group.layers) * block_tokens * cached.heads * kv_head_bytes(cached.head_dim, kv_dtype)


def kv_bytes(layers: int, tokens: int, elements: int, element_bits: int) -> int:
    """Bytes of KV cache for `elements` cached elements per token and layer: layers · tokens · elements · bits / 8, rounded up."""
    return -(-layers * tokens * elements * element_bits // 8)


def sequence_blocks(groups: tuple[KVGroup, ...], block_tokens: int, tokens: int, chunk: int) -> int:
    """Most blocks that a sequence of `tokens` positions holds at once when it is computed in chunks of `chunk` tokens.

    A full group keeps ⌈tokens / B⌉ blocks; a window group those of the window before a chunk, the chunk's own, and one for alignment.
    """
    full = -(-tokens // block_tokens)
    blocks = 0
    for group in groups:
        needed = -(-(group.window + min(chunk, tokens)) // block_tokens) + 1
        blocks += full if group.window == 0 else min(full, needed)
    return blocks


def kept_positions(config: EngineConfig) -> int:
    """Positions of a row behind which its recurrent states are kept: the last one, and one more for each draft of a step."""
    return 1 if config.speculative == "off" else 1 + config.num_speculative_tokens


def state_bytes(facts: ModelFacts, positions: int) -> int:
    """Bytes of a row's recurrent states, kept behind so many positions: of a convolution its last inputs, and those of these positions."""
    state = facts.state
    return 0 if state is None else 4 * state.layers * (positions * (state.recurrent + state.channels) + state.convolution)


def kv_costs(facts: ModelFacts, config: EngineConfig) -> KVCosts:
    """Costs of a model's KV cache with these settings, for `config.resolve`."""
    groups, size, chunk = kv_groups(facts), config.block_size, config.tokens
    return KVCosts(
        block_bytes=block_bytes(facts, groups[0], size, config.kv_dtype),
        sequence_blocks=lambda tokens: sequence_blocks(groups, size, tokens, chunk),
        longest_sequence=lambda blocks, limit: longest_sequence(groups, size, blocks, chunk, limit),
        row_bytes=state_bytes(facts, kept_positions(config)),
    )


def longest_sequence(groups: tuple[KVGroup, ...], block_tokens: int, blocks: int, chunk: int, limit: int) -> int:
    """Most positions, up to `limit`, that one sequence can have in `blocks` blocks; 0 if not even one fits."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if sequence_blocks(groups, block_tokens, middle, chunk) <= blocks:
            low = middle
        else:
            high = middle - 1
    return low
