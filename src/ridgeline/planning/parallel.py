"""Communication of tensor, pipeline and expert parallelism, in bytes and seconds.

A link's bytes/s is a data sheet's total of both directions, so one direction carries half of it.
"""

from math import ceil


def kv_heads_per_device(kv_heads: int, tensor_parallel: int) -> int:
    """KV heads per tensor rank. With more ranks than KV heads every rank stores a copy of one, so the cache stops shrinking."""
    return max(1, ceil(kv_heads / tensor_parallel))


def all_reduce_bytes(message: float, devices: int) -> float:
    """Bytes that each rank sends and receives in a ring all-reduce of `message` bytes: 2 · (n − 1) / n."""
    return 2.0 * message * (devices - 1) / devices


def all_reduce_seconds(message: float, devices: int, link_bytes_per_second: float, hop_seconds: float) -> float:
    """Seconds of one all-reduce: a ring's bytes over one direction of the link, and a tree's 2 · ⌈log₂ n⌉ hops. 0 on one device."""
    if devices == 1:
        return 0.0
    return all_reduce_bytes(message, devices) / (link_bytes_per_second / 2) + 2 * (devices - 1).bit_length() * hop_seconds


def tensor_parallel_seconds(
    tokens: int, hidden: int, layers: int, element_bytes: float, devices: int, link_bytes_per_second: float, hop_seconds: float
) -> float:
    """Seconds of communication per step: two all-reduces of [tokens, hidden] per layer (after attention and after the FFN).

    Notes on inference, part 4, section 8.
    """
    return 2 * layers * all_reduce_seconds(tokens * hidden * element_bytes, devices, link_bytes_per_second, hop_seconds)


def pipeline_bubble(stages: int, micro_batches: int) -> float:
    """Share of time that a pipeline stage is idle: (p − 1) / (m + p − 1). Two stages with 4 … 9 micro-batches lose 20 … 10 %.

    Notes on inference, part 3, "Llama 3 405B: The Scale Challenge"; part 4, section 8.
    """
    return (stages - 1) / (micro_batches + stages - 1)


def pipeline_seconds(
    tokens: int, hidden: int, element_bytes: float, stages: int, link_bytes_per_second: float, hop_seconds: float
) -> float:
    """Seconds to send activations from the first stage to the last. Notes on inference, part 4, section 8."""
    return (stages - 1) * (tokens * hidden * element_bytes / (link_bytes_per_second / 2) + hop_seconds)


def expert_parallel_seconds(
    tokens: int,
    hidden: int,
    moe_layers: int,
    active_experts: int,
    element_bytes: float,
    devices: int,
    link_bytes_per_second: float,
    hop_seconds: float,
) -> float:
    """Seconds of two all-to-alls per layer: tokens are sent to their experts and back; (n − 1) / n of them leave the device.

    Notes on inference, part 4, section 8. 0 on one device.
    """
    if devices == 1:
        return 0.0
    sent = tokens / devices * active_experts * hidden * element_bytes * (devices - 1) / devices
    return 2 * moe_layers * (sent / (link_bytes_per_second / 2) + hop_seconds)


def experts_touched(experts: int, active: int, tokens: float) -> float:
    """Expected experts per layer that a step of `tokens` tokens reads, if routing is uniform: E · (1 − (1 − k / E)ᵗ).

    `active` for one token, all for many: batched decode of a mixture of experts reads nearly the whole model.
    """
    missed: float = (1.0 - active / experts) ** tokens
    return experts * (1.0 - missed)


def kv_transfer_seconds(kv_bytes: float, link_bytes_per_second: float) -> float:
    """Seconds to move one prompt's KV cache over one direction of a link. Notes on inference, part 2 (Splitwise, DistServe, Mooncake)."""
    return kv_bytes / (link_bytes_per_second / 2)
