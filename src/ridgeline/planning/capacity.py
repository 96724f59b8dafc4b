"""What fits: weights, KV cache, activations, reserve, and what is left for sequences. Bytes and tokens, plain numbers.

1 GB = 10⁹ bytes; functions take and return bytes. Integer arithmetic on pages, as the engine allocates them, is in `planning.memory`.
"""

from collections.abc import Iterable

OVERHEAD_FACTOR = 1.2
"""Rule of thumb: memory needed = weights · 1.2. Notes on inference, part 1, section 3, "The VRAM budget"."""

BYTES_PER_PARAMETER = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}
"""Payload of a weight or cached value. Notes on inference, part 1, section 3, "Weight Memory by Precision"; scales come on top."""


def weight_bytes(parameters: float, bytes_per_parameter: float) -> float:
    """Memory of the weights. Notes on inference, part 1, section 3; part 3, "Model Weights"."""
    return parameters * bytes_per_parameter


def training_bytes(parameters: float) -> float:
    """Weights and gradients in 16 bits and two 32-bit moments of Adam: 12 bytes a parameter, 84 GB for 7 B.

    Notes on inference, part 1, section 1, "Training vs Inference".
    """
    return parameters * (2 + 2 + 4 + 4)


def needed_bytes(weights: float) -> float:
    """Rule of thumb for one small deployment, activations and framework included."""
    return weights * OVERHEAD_FACTOR


def kv_token_bytes(layers: int, kv_heads: int, head_dim: int, element_bytes: float) -> float:
    """K and V of one token: 2 · layers · KV heads · head dimension · bytes an element. KV heads, never query heads.

    Notes on inference, part 2; part 3, "KV Cache Memory"; part 4, section 3. Part 1 writes "num_heads", right only where both are equal.
    """
    return 2 * layers * kv_heads * head_dim * element_bytes


def kv_bytes(layers: int, kv_heads: int, head_dim: int, tokens: int, element_bytes: float, sequences: int = 1) -> float:
    """K and V of `sequences` sequences of `tokens` tokens each. Same sources as `kv_token_bytes`."""
    return kv_token_bytes(layers, kv_heads, head_dim, element_bytes) * tokens * sequences


def max_sequences(memory: float, weights: float, overhead: float, sequence_bytes: float) -> int:
    """B_max = ⌊(memory − weights − overhead) / KV of one sequence⌋, 0 where nothing is left.

    Notes on inference, part 1, section 3; part 3, "The Memory Wall".
    """
    return max(0, int((memory - weights - overhead) / sequence_bytes))


def max_context(memory: float, weights: float, reserve: float, token_bytes: float, sequences: int = 1) -> int:
    """Tokens that each of `sequences` sequences may have: context is a budget that all users share. 0 where nothing is left.

    Notes on inference, part 2, `max_context_for_budget`.
    """
    return max(0, int((memory - weights - reserve) / sequences / token_bytes))


def fits(memory: float, weights: float, kv: float, reserve: float) -> bool:
    """Whether weights, KV and a runtime reserve fit. The reserve decides: 8 or 16 GB turn the answer of part 2's exercise.

    Notes on inference, part 2, "Try it yourself".
    """
    return weights + kv + reserve <= memory


def may_admit(existing_tokens: Iterable[int], new_tokens: int, token_bytes: float, kv_budget: float) -> bool:
    """Online admission: prompt + output budget of every active request and the new one, against the KV budget in bytes.

    Notes on inference, part 2, `admit`.
    """
    return (sum(existing_tokens) + new_tokens) * token_bytes <= kv_budget


def attention_score_bytes(heads: int, tokens: int, element_bytes: float, batch: int = 1) -> float:
    """Scores of one layer where the whole matrix is stored: batch · heads · tokens² · bytes; × layers where all are kept.

    32 heads at 4,096 tokens in 16 bits: 1 GiB a layer. Notes on inference, part 3, "Activation Memory".
    """
    return batch * heads * tokens * tokens * element_bytes


def tiled_score_bytes(heads: int, tokens: int, element_bytes: float, batch: int = 1) -> float:
    """Running maximum and sum of each row, all that tiled attention keeps: O(batch · heads · tokens).

    Notes on inference, part 3, "Activation Memory" (FlashAttention).
    """
    return 2 * batch * heads * tokens * element_bytes


def activation_bytes(tokens: int, hidden: int, ffn: int, queries: int, element_bytes: float) -> float:
    """Working memory of one layer in a step of `tokens` tokens; layers run one after the other and reuse it.

    Residual and normed input (2 · hidden), queries and attention output (2 · queries), gate and up (2 · ffn).
    The O(B · P · d_ff) term of Notes on inference, part 3, "Activation Memory".
    """
    return tokens * (2 * hidden + 2 * queries + 2 * ffn) * element_bytes
