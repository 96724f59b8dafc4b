"""Formulas of the notes that the planner has no use for, as plainly as they stand there; `test_physics_rows.py` computes their tables."""

OVERHEAD_FACTOR = 1.2
TTFT_TARGETS = {"code completion": 0.100, "chat": 0.300, "document questions": 1.0}
TTFT_INTERACTIVE, TTFT_TOLERABLE, TTFT_BROKEN = 0.5, 2.0, 5.0
ITL_SMOOTH, ITL_CHOPPY, ITL_TYPEWRITER = 0.030, 0.080, 0.100
KV_ALERT, KV_TROUBLE = 0.85, 0.90


def kv_token_bytes(layers: int, kv_heads: int, head_dim: int, element_bytes: float) -> float:
    return 2 * layers * kv_heads * head_dim * element_bytes


def kv_bytes(layers: int, kv_heads: int, head_dim: int, tokens: int, element_bytes: float, sequences: int = 1) -> float:
    return kv_token_bytes(layers, kv_heads, head_dim, element_bytes) * tokens * sequences


def max_sequences(memory: float, weights: float, overhead: float, sequence_bytes: float) -> int:
    return max(0, int((memory - weights - overhead) / sequence_bytes))


def matmul_intensity(tokens: int, inputs: int, outputs: int, weight_bytes: float) -> float:
    return 2 * tokens * inputs * outputs / (inputs * outputs * weight_bytes)


def utilisation(intensity: float, ridge: float) -> float:
    return min(1.0, intensity / ridge)


def min_devices(weights: float, device_memory: float) -> int:
    return -int(-weights // device_memory)
