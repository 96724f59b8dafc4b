"""Qwen 3 with experts, planned only. Qwen Team 2025, "Qwen3 Technical Report"."""

from ridgeline.models.declare import ATTENTION, ATTENTION_BIASES, EXPERTS, GATED_FFN, HEAD_NORMS, UNTIED, Architecture

ARCHITECTURE = Architecture(
    model_types=("qwen3_moe",),
    tensors=(*ATTENTION, *HEAD_NORMS, GATED_FFN[0]),
    parts={"dense": GATED_FFN[1:], "sparse": EXPERTS},
    defaults={**UNTIED, "head_dim": 128, "use_sliding_window": False, "max_window_layers": 28, "decoder_sparse_step": 1},
    biases=ATTENTION_BIASES,
)
