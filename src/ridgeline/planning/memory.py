"""Memory arithmetic of the paged KV cache: pure functions of facts and limits. Bytes, tokens and pages, never arrays."""

from collections.abc import Sequence
from functools import reduce
from math import gcd
from typing import Final

from ridgeline.config.resolve import KVCosts
from ridgeline.core.plan import KVGroup
from ridgeline.facts.model import ModelFacts

GRAPH_BYTES: Final = 2 << 20
"""Bytes that a captured graph takes of a device beside the values that it shares with all others: published sizes are 1 to 2 MB."""

RESERVE_SHARE: Final = 0.03
"""Share of a device's memory that stays free: fragments, and libraries that ask for more when they first see a size."""

HOST_LINK: Final = 128e9
"""Bytes per second between a device and its host, both directions together: PCIe 5 x 16. Faster links of a device lead to its like."""


def host_copy_seconds(nbytes: float, link_bytes_per_second: float) -> float:
    """Seconds in which so many bytes go to the host or come back: one direction of PCIe, nothing else on it."""
    return nbytes / (min(link_bytes_per_second, HOST_LINK) / 2)


def kv_head_bytes(head_dim: int, kv_dtype: str) -> int:
    """Bytes of one token's K, or V, of one head: f32, bf16, fp16, fp8 without a scale, or int8 with one fp32 scale."""
    return {"f32": 4 * head_dim, "bf16": 2 * head_dim, "fp16": 2 * head_dim, "fp8": head_dim, "int8": head_dim + 4}[kv_dtype]


def left_for_cache(device_bytes: int, free_bytes: int, graphs: int) -> int:
    """Bytes of a device that its KV cache may take, of those that weights and the largest step leave free; below 0 where too few are."""
    return free_bytes - int(RESERVE_SHARE * device_bytes) - graphs * GRAPH_BYTES


def kv_groups(facts: ModelFacts) -> tuple[KVGroup, ...]:
    """Layers of one kind share a table; kinds are cut to the greatest common number of layers, so that all pages have one size.

    Fifteen window layers and three full ones become five groups and one, of three layers each.
    """
    return groups_of(facts.layer_kinds, facts.window)


def groups_of(layer_kinds: Sequence[str], window: int) -> tuple[KVGroup, ...]:
    """`kv_groups` for layers of these kinds, of which "window" ones look back `window` tokens and "none" have no keys and values."""
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


def page_bytes(facts: ModelFacts, group: KVGroup, block_tokens: int, kv_dtype: str) -> int:
    """Bytes of one page: K and V of `block_tokens` tokens for the group's layers.

    2 · layers · tokens · KV heads · bytes of a head
    """
    return 2 * len(group.layers) * block_tokens * facts.kv_heads * kv_head_bytes(facts.head_dim, kv_dtype)


def block_bytes(layers: int, block_tokens: int, elements: int, element_bits: int) -> int:
    """Bytes of one page for `elements` cached numbers per token and layer: layers · tokens · elements · bits, in whole bytes."""
    return -(-layers * block_tokens * elements * element_bits // 8)


def sequence_pages(groups: tuple[KVGroup, ...], block_tokens: int, tokens: int, chunk: int) -> int:
    """Pages that a sequence of `tokens` positions holds at most when it is computed in chunks of `chunk` tokens.

    A full group keeps ⌈tokens / B⌉ blocks; a window group those of the window before a chunk, the chunk's own, and one for alignment.
    """
    full = -(-tokens // block_tokens)
    pages = 0
    for group in groups:
        needed = -(-(group.window + min(chunk, tokens)) // block_tokens) + 1
        pages += full if group.window == 0 else min(full, needed)
    return pages


def kv_costs(facts: ModelFacts, block_tokens: int, chunk: int, kv_dtype: str) -> KVCosts:
    """Costs of a model's KV cache, for `config.resolve`."""
    groups = kv_groups(facts)
    return KVCosts(
        page_bytes=page_bytes(facts, groups[0], block_tokens, kv_dtype),
        sequence_pages=lambda tokens: sequence_pages(groups, block_tokens, tokens, chunk),
        longest=lambda pages, limit: longest_sequence(groups, block_tokens, pages, chunk, limit),
    )


def longest_sequence(groups: tuple[KVGroup, ...], block_tokens: int, pages: int, chunk: int, limit: int) -> int:
    """The most positions, at most `limit`, that one sequence can have in `pages` pages; 0 if not even one fits."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if sequence_pages(groups, block_tokens, middle, chunk) <= pages:
            low = middle
        else:
            high = middle - 1
    return low
