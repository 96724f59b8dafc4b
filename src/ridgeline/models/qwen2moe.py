"""Qwen 1.5 and 2 with experts. Qwen Team 2024, "Qwen2 Technical Report": one wide expert that every token has, with a gate of its own."""

from ridgeline.models.declare import (
    ATTENTION,
    EXPERT_NAMES,
    EXPERTS,
    GATED_FFN,
    GATED_SHARED_EXPERT,
    GATED_SHARED_EXPERT_NAMES,
    LAYER_NAMES,
    QKV,
    UNTIED,
    Architecture,
    TensorNames,
)
from ridgeline.models.decoder import step

__all__ = ["ARCHITECTURE", "step"]

ARCHITECTURE = Architecture(
    model_types=("qwen2_moe",),
    tensors=(*ATTENTION, GATED_FFN[0]),
    parts={"dense": GATED_FFN[1:], "sparse": (*EXPERTS, *GATED_SHARED_EXPERT)},
    defaults={
        **UNTIED,
        "use_sliding_window": False,
        "max_window_layers": 28,
        "decoder_sparse_step": 1,
        "norm_topk_prob": False,
        "shared_expert_intermediate_size": 5632,
        "qkv_bias": True,
    },
    checkpoint=TensorNames({**LAYER_NAMES, **EXPERT_NAMES, **GATED_SHARED_EXPERT_NAMES}),
    biases=dict.fromkeys(QKV, "qkv_bias"),
)
