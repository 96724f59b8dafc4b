"""Qwen3-Next. Qwen Team 2025, "Qwen3-Next: Towards Ultimate Training & Inference Efficiency": gated attention in every fourth layer, else
the gated delta rule (Yang, Kautz and Hatamizadeh 2024, "Gated Delta Networks"); many experts, and one with a gate that every token has."""

from ridgeline.models.declare import (
    ATTENTION,
    ATTENTION_BIASES,
    EXPERT_NAMES,
    EXPERTS,
    GATED_DELTA,
    GATED_FFN,
    GATED_SHARED_EXPERT,
    GATED_SHARED_EXPERT_NAMES,
    HEAD_NORM_NAMES,
    HEAD_NORMS,
    LAYER_NAMES,
    NORMS_PLUS_ONE,
    UNTIED,
    Architecture,
    TensorNames,
)
from ridgeline.models.decoder import step

__all__ = ["ARCHITECTURE", "step"]

ARCHITECTURE = Architecture(
    model_types=("qwen3_next",),
    tensors=(ATTENTION[0], ("post_attention_norm", "hidden")),
    parts={
        "attention": (("attn_q", "gated_queries", "hidden"), *ATTENTION[2:], *HEAD_NORMS),
        "state": GATED_DELTA,
        "dense": GATED_FFN[1:],
        "sparse": (*EXPERTS, *GATED_SHARED_EXPERT),
    },
    defaults={
        **UNTIED,
        "head_dim": 256,
        "partial_rotary_factor": 0.25,
        "full_attention_interval": 4,
        "decoder_sparse_step": 1,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "norm_topk_prob": True,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
    },
    required_config=(("use_sliding_window", False),),
    checkpoint=TensorNames(
        {
            **LAYER_NAMES,
            "post_attention_layernorm": ("post_attention_norm",),
            **HEAD_NORM_NAMES,
            "linear_attn.in_proj_qkvz": ("ssm_in",),
            "linear_attn.in_proj_ba": ("ssm_ba",),
            "linear_attn.conv1d": ("ssm_conv1d",),
            "linear_attn.dt_bias": ("ssm_dt.bias",),
            "linear_attn.A_log": ("ssm_a",),
            "linear_attn.norm": ("ssm_norm",),
            "linear_attn.out_proj": ("ssm_out",),
            **EXPERT_NAMES,
            **GATED_SHARED_EXPERT_NAMES,
        },
        transforms={**NORMS_PLUS_ONE, **dict.fromkeys(("enorm", "hnorm", "next_norm"), "plus_one"), "ssm_a": "minus_exp"},
    ),
    biases=ATTENTION_BIASES,
    routing={"normalise": True},
    recurrence="delta",
    predictor="mtp.",
)
