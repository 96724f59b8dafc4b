"""Batching: what sharing a read of the weights brings, what waiting for the longest costs, and where more stops paying."""

from collections.abc import Sequence
from math import ceil

from ridgeline.planning.roofline import compute_utilisation


def throughput(batch: int, step_seconds: float) -> float:
    """Output tokens/s where each of `batch` sequences gets one token a step. Notes on inference, part 3, "Throughput vs Latency"."""
    return batch / step_seconds


def batch_utilisation(batch: int, ridge: float) -> float:
    """Compute utilisation of batched decode in 16 bits, whose intensity is the batch. 32 of 156 is about 20 %, 64 about 40 %.

    Notes on inference, part 3, "Batch Size Impact on Throughput and Latency".
    """
    return compute_utilisation(batch, ridge)


def knee_batch(fixed_seconds: float, seconds_per_sequence: float) -> int:
    """Batch at which throughput / latency is greatest, for a step that takes fixed + batch · seconds_per_sequence: their ratio.

    Below it a user more costs little; beyond it the latency grows faster than the throughput. Kleinrock's power, 1979.
    """
    return max(1, round(fixed_seconds / seconds_per_sequence))


def static_idle_share(output_tokens: Sequence[int]) -> float:
    """Share of slot-steps without work where a batch ends with its longest member.

    Lengths 10 and 500: the short one's slot idles 98 % of the time, the batch 49 %. Notes on inference, part 3, "Why Naive Inference
    Wastes GPU" and "Static Batching".
    """
    longest = max(output_tokens)
    return 1.0 - sum(output_tokens) / (longest * len(output_tokens))


def chunks(prompt_tokens: int, chunk_tokens: int) -> list[int]:
    """Sizes of the pieces of a prompt; running streams get a step after each. 6,144 in chunks of 2,048 is three.

    Notes on inference, part 2, `chunked_schedule`.
    """
    return [min(chunk_tokens, prompt_tokens - start) for start in range(0, prompt_tokens, chunk_tokens)]


def paged_waste(tokens: Sequence[int], block_tokens: int) -> float:
    """Share of allocated KV slots that hold no token, where sequences get whole blocks. Notes on inference, parts 3 and 5."""
    allocated = sum(ceil(length / block_tokens) * block_tokens for length in tokens)
    return 1.0 - sum(tokens) / allocated


def contiguous_waste(tokens: Sequence[int], reserved_tokens: int) -> float:
    """Share of KV slots that hold no token, where each sequence gets the greatest length at once.

    10 and 6 of 20: 60 %. Notes on inference, part 5, "Paged Attention: Virtual Memory for KV Cache".
    """
    return 1.0 - sum(tokens) / (reserved_tokens * len(tokens))
