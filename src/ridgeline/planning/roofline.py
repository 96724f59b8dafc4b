"""The roofline: what a device can do at best, given how many operations it gets for every byte it moves.

Plain numbers in and out: FLOP, bytes, seconds. Knows no model and no device.
"""

from typing import Literal

Bound = Literal["compute", "bandwidth", "capacity"]
"""The three scarce resources (Notes on inference, part 3, "The Three Resources")."""


def ridge_intensity(flops_per_second: float, bytes_per_second: float) -> float:
    """FLOP a byte at which compute and bandwidth take equally long; below it a kernel waits for memory.

    A100: 312e12 / 2.0e12 = 156; H100: 989e12 / 3.35e12 = 295. Notes on inference, part 3, "The Roofline Perspective".
    """
    return flops_per_second / bytes_per_second


def attainable_flops(intensity: float, flops_per_second: float, bytes_per_second: float) -> float:
    """FLOP/s of a kernel of this intensity: the lower of the two ceilings.

    Notes on inference, part 2 (Williams, Waterman & Patterson 2009).
    """
    return min(flops_per_second, bytes_per_second * intensity)


def compute_utilisation(intensity: float, ridge: float) -> float:
    """Share of the compute ceiling that a kernel of this intensity can use, 0 … 1. One decode stream on an A100: 1 / 156.

    Notes on inference, part 3, "Prefill vs Decode: Arithmetic Intensity Comparison".
    """
    return min(1.0, intensity / ridge)


def roofline_seconds(flops: float, moved_bytes: float, flops_per_second: float, bytes_per_second: float) -> float:
    """Least time of work that needs both: the two overlap, the longer one counts."""
    return max(flops / flops_per_second, moved_bytes / bytes_per_second)


def matmul_flops(tokens: int, inputs: int, outputs: int) -> int:
    """FLOP of [tokens, inputs] × [inputs, outputs]: a multiplication and an addition a weight and token.

    Notes on inference, part 3, "Phase 1: Prefill".
    """
    return 2 * tokens * inputs * outputs


def matmul_intensity(tokens: int, inputs: int, outputs: int, weight_bytes: float, activation_bytes: float = 0.0) -> float:
    """FLOP a byte of one matrix product, bytes per element given. Without activations it is 2 · tokens / weight_bytes.

    So in 16 bits prefill has intensity P and decode has intensity B: Notes on inference, part 3, "Phase 1", "Phase 2" and "The
    Mechanics of Batched Decode". With 8-bit weights the same batch has twice the intensity, with 4-bit weights four times.
    """
    moved = inputs * outputs * weight_bytes + tokens * (inputs + outputs) * activation_bytes
    return matmul_flops(tokens, inputs, outputs) / moved


def forward_flops(parameters: float, tokens: float = 1) -> float:
    """FLOP of a forward pass without attention: about 2 N a token. Notes on inference, part 1, section 1."""
    return 2.0 * parameters * tokens


def training_flops(parameters: float, tokens: float = 1) -> float:
    """FLOP of forward and backward pass: about 6 N a token. Notes on inference, part 1, section 1."""
    return 6.0 * parameters * tokens


def attention_flops(tokens: float, context: float, heads: int, head_dim: int, layers: int) -> float:
    """FLOP of scores and weighted values: 4 · heads · head dimension for each pair of a token and a position it looks at.

    With tokens = context = P this is the O(P² · d) term of Notes on inference, part 3, "Phase 1: Prefill" (causal masking halves it).
    """
    return 4.0 * tokens * context * heads * head_dim * layers


def recomputed_tokens(prompt: int, outputs: int) -> int:
    """Token positions computed for `outputs` tokens without a KV cache: every step recomputes all before it, so O(T²).

    With a cache it is prompt + outputs − 1. Notes on inference, part 3, "The KV Cache: Avoiding Redundant Computation".
    """
    return sum(prompt + produced for produced in range(outputs))
