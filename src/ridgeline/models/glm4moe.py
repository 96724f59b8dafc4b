"""GLM-4.5. GLM-4.5 Team 2025, "GLM-4.5": experts chosen by sigmoids and a bias, one for every token; the first layers are dense."""

from ridgeline.models.declare import (
    ATTENTION,
    CORRECTION,
    EXPERT_NAMES,
    EXPERTS,
    GATED_FFN,
    HEAD_NORM_NAMES,
    LAYER_NAMES,
    QKV,
    SHARED_EXPERT_NAMES,
    SHARED_EXPERTS,
    UNTIED,
    Architecture,
    TensorNames,
)
from ridgeline.models.decoder import step

__all__ = ["ARCHITECTURE", "step"]

ARCHITECTURE = Architecture(
    model_types=("glm4_moe",),
    tensors=(*ATTENTION, ("attn_q_norm", "normed_head"), ("attn_k_norm", "normed_head"), ("post_attention_norm", "hidden")),
    parts={"dense": GATED_FFN[1:], "sparse": (*EXPERTS, CORRECTION, *SHARED_EXPERTS)},
    defaults={
        **UNTIED,
        "rms_norm_eps": 1e-5,
        "use_qk_norm": False,
        "first_k_dense_replace": 1,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
    },
    checkpoint=TensorNames(
        {
            **LAYER_NAMES,
            "post_attention_layernorm": ("post_attention_norm",),
            **HEAD_NORM_NAMES,
            **EXPERT_NAMES,
            **SHARED_EXPERT_NAMES,
        }
    ),
    biases=dict.fromkeys(QKV, "attention_bias"),
    routing={"scores": "sigmoid", "group_score": "top2", "bias_selects": True, "normalise": True},
)
