"""KV blocks that a request needs, and the check at admission that it can be served at all."""

from ridgeline.core.plan import KVGroup, KVShape


def blocks_needed(shape: KVShape, positions: int) -> int:
    """Returns the blocks that a sequence of `positions` computed positions holds at once if it runs alone, one token per step.

    A full-attention group keeps ⌈positions / B⌉ blocks, B tokens each. A group with a sliding window keeps the blocks of the window − 1
    positions before the next one, and that one's.
    """
    return sum([blocks_needed_in_group(group, shape.block_tokens, positions) for group in shape.groups])


def blocks_needed_in_group(group: KVGroup, size: int, positions: int) -> int:
    """Returns `blocks_needed` of one KV group, with blocks of `size` tokens."""
    full = -(-positions // size)
    return min(full, -(-(group.window - 1) // size) + 1) if group.window else full


def rejection_reason(shape: KVShape, max_model_len: int, prompt_tokens: int, max_tokens: int) -> str | None:
    """Returns None if the request can be served when it runs alone; else the reason, with the numbers and a fix.

    The last output is never an input, so `prompt + max_tokens − 1` positions are computed at most.
    """
    total = prompt_tokens + max_tokens
    if total > max_model_len:
        return (
            f"{prompt_tokens} prompt tokens and {max_tokens} output tokens exceed the context of {max_model_len}; "
            "shorten the prompt or lower max_tokens"
        )
    needed = blocks_needed(shape, max(prompt_tokens, total - 1))
    if needed > shape.blocks:
        return (
            f"{total} tokens need {needed} blocks of KV cache, there are {shape.blocks}; lower max_tokens or raise --kv-cache-memory-bytes"
        )
    return None


def whole_text_reason(token_budget: int, tokens: int) -> str | None:
    """Returns None if a text that is computed in one step fits into one; else the reason, as `rejection_reason`."""
    if tokens <= token_budget:
        return None
    return f"a text of {tokens} tokens is computed in one step, which has {token_budget}; shorten it or raise --max-num-batched-tokens"
