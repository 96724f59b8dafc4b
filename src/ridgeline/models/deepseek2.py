"""DeepSeek-V2 and V3. DeepSeek-AI 2024: K and V are a latent per token (MLA), and experts are many and shared."""

from ridgeline.models.declare import (
    COMMON_NAMES,
    EXPERT_NAMES,
    EXPERTS,
    GATED_FFN,
    LATENT_ATTENTION,
    LAYER_NAMES,
    NO_BIASES,
    SHARED_EXPERT_NAMES,
    SHARED_EXPERTS,
    UNTIED,
    Architecture,
    TensorNames,
)
from ridgeline.models.decoder import step

__all__ = ["ARCHITECTURE", "step"]

ARCHITECTURE = Architecture(
    model_types=("deepseek_v2", "deepseek_v3"),
    tensors=(*LATENT_ATTENTION, GATED_FFN[0]),
    parts={"dense": GATED_FFN[1:], "sparse": (*EXPERTS, ("exp_probs_b.bias", "corrected"), *SHARED_EXPERTS)},
    defaults={
        **UNTIED,
        "moe_layer_freq": 1,
        "first_k_dense_replace": 0,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
    },
    required_config=(*NO_BIASES, ("rope_interleave", True)),
    checkpoint=TensorNames(
        {
            **COMMON_NAMES,
            **{name: LAYER_NAMES[name] for name in ("self_attn.q_proj", "mlp.gate_proj", "mlp.up_proj")},
            "self_attn.q_a_proj": ("attn_q_a",),
            "self_attn.q_a_layernorm": ("attn_q_a_norm",),
            "self_attn.q_b_proj": ("attn_q_b",),
            "self_attn.kv_a_proj_with_mqa": ("attn_kv_a_mqa",),
            "self_attn.kv_a_layernorm": ("attn_kv_a_norm",),
            "self_attn.kv_b_proj": ("attn_k_b", "attn_v_b"),
            **EXPERT_NAMES,
            **SHARED_EXPERT_NAMES,
        }
    ),
    routings={"deepseek_v3": {"scores": "sigmoid", "group_score": "top2", "bias_selects": True}},
    fused={"attn_kv_b": ("attn_k_b", "attn_v_b")},
    yarn_scores=True,
)
