"""More than one device: how a model is cut, what the pieces tell each other, and how long that takes. Bytes and seconds.

A link's bytes/s is a data sheet's total of both directions, so one direction carries half of it.
"""

from math import ceil


def kv_heads_per_device(kv_heads: int, tensor_parallel: int) -> int:
    """KV heads that a rank stores. With more ranks than KV heads each rank keeps a copy of one: the cache stops shrinking."""
    return max(1, ceil(kv_heads / tensor_parallel))


def all_reduce_bytes(message: float, devices: int) -> float:
    """Bytes that each rank sends (and receives) in a ring all-reduce of `message` bytes: 2 · (n − 1) / n."""
    return 2.0 * message * (devices - 1) / devices


def all_reduce_seconds(message: float, devices: int, link_bytes_per_second: float, hop_seconds: float) -> float:
    """Time of one all-reduce: a ring's bytes over one direction of the link, and a tree's 2 · ⌈log₂ n⌉ hops. 0 on one device."""
    if devices == 1:
        return 0.0
    return all_reduce_bytes(message, devices) / (link_bytes_per_second / 2) + 2 * (devices - 1).bit_length() * hop_seconds


def tensor_parallel_seconds(
    tokens: int, hidden: int, layers: int, element_bytes: float, devices: int, link_bytes_per_second: float, hop_seconds: float
) -> float:
    """Communication of one step: two all-reduces of [tokens, hidden] per layer (after attention and after the FFN).

    Notes on inference, part 4, section 8.
    """
    return 2 * layers * all_reduce_seconds(tokens * hidden * element_bytes, devices, link_bytes_per_second, hop_seconds)


def pipeline_bubble(stages: int, micro_batches: int) -> float:
    """Share of time in which a stage waits: (p − 1) / (m + p − 1). Two stages with 4 … 9 micro-batches lose 20 … 10 %.

    Notes on inference, part 3, "Llama 3 405B: The Scale Challenge"; part 4, section 8.
    """
    return (stages - 1) / (micro_batches + stages - 1)


def pipeline_seconds(
    tokens: int, hidden: int, element_bytes: float, stages: int, link_bytes_per_second: float, hop_seconds: float
) -> float:
    """Time in which activations pass from the first stage to the last. Notes on inference, part 4, section 8."""
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
    """Two all-to-alls per layer: each token goes to its experts and back; (n − 1) / n of that leaves the device.

    Notes on inference, part 4, section 8. 0 on one device.
    """
    if devices == 1:
        return 0.0
    sent = tokens / devices * active_experts * hidden * element_bytes * (devices - 1) / devices
    return 2 * moe_layers * (sent / (link_bytes_per_second / 2) + hop_seconds)


def experts_touched(experts: int, active: int, tokens: float) -> float:
    """Experts of a layer whose weights a step of `tokens` tokens reads, if each token chooses evenly: E · (1 − (1 − k / E)ᵗ).

    At one token it is `active`, at many it is all: batched decode of a mixture of experts reads nearly the whole model.
    """
    missed: float = (1.0 - active / experts) ** tokens
    return experts * (1.0 - missed)


def kv_transfer_seconds(kv_bytes: float, link_bytes_per_second: float) -> float:
    """Time to move one prompt's KV cache over one direction of a link. Notes on inference, part 2 (Splitwise, DistServe, Mooncake)."""
    return kv_bytes / (link_bytes_per_second / 2)
