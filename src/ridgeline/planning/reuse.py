"""Prefix reuse: prompt tokens whose K and V are there already are neither computed nor stored again. Tokens and shares."""


def hit_ratio(reused_tokens: int, prompt_tokens: int) -> float:
    """Share of prompt tokens served from the cache; above 0.5 is usual with a fixed system prompt.

    Notes on inference, part 5, section 13.
    """
    return reused_tokens / prompt_tokens


def reused_prefill_speedup(hit: float) -> float:
    """Prompts are computed so many times faster at a hit ratio `hit` < 1, where time is linear in tokens: 1 / (1 − hit).

    Ratios of 0.5 … 0.9 give the 2 … 10 times of Notes on inference, part 3, "Inference Optimization Hierarchy".
    """
    return 1.0 / (1.0 - hit)


def shared_kv_tokens(sequences: int, tokens: int, shared_tokens: int) -> int:
    """KV positions of `sequences` sequences of which the first `shared_tokens` are the same: that part is stored once.

    Notes on inference, part 5, "Paged Attention: Virtual Memory for KV Cache".
    """
    return shared_tokens + sequences * (tokens - shared_tokens) if sequences else 0
