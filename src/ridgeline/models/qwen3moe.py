"""Qwen 3 with experts. Qwen Team 2025, "Qwen3 Technical Report": heads of queries and keys are normalised; some layers may be dense."""

from ridgeline.models.declare import (
    ATTENTION,
    ATTENTION_BIASES,
    EXPERT_NAMES,
    EXPERTS,
    GATED_FFN,
    HEAD_NORM_NAMES,
    HEAD_NORMS,
    LAYER_NAMES,
    UNTIED,
    Architecture,
    TensorNames,
)
from ridgeline.models.decoder import step

__all__ = ["ARCHITECTURE", "step"]

ARCHITECTURE = Architecture(
    model_types=("qwen3_moe",),
    tensors=(*ATTENTION, *HEAD_NORMS, GATED_FFN[0]),
    parts={"dense": GATED_FFN[1:], "sparse": EXPERTS},
    defaults={
        **UNTIED,
        "head_dim": 128,
        "use_sliding_window": False,
        "max_window_layers": 28,
        "decoder_sparse_step": 1,
        "norm_topk_prob": False,
    },
    checkpoint=TensorNames({**LAYER_NAMES, **HEAD_NORM_NAMES, **EXPERT_NAMES}),
    biases=ATTENTION_BIASES,
    routing={"normalise": True},
)
