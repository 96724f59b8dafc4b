"""ERNIE 4.5 with experts. Baidu 2025, "ERNIE 4.5 Technical Report": a bias takes part in the choice; pairs of RoPE are neighbours."""

from ridgeline.models.declare import (
    ATTENTION,
    CORRECTION,
    EXPERT_NAMES,
    EXPERTS,
    GATED_FFN,
    LAYER_NAMES,
    SHARED_EXPERT_NAMES,
    SHARED_EXPERTS,
    TIED,
    Architecture,
    TensorNames,
)
from ridgeline.models.decoder import step

__all__ = ["ARCHITECTURE", "step"]

ARCHITECTURE = Architecture(
    model_types=("ernie4_5_moe",),
    tensors=(*ATTENTION, GATED_FFN[0]),
    parts={"dense": GATED_FFN[1:], "sparse": (*EXPERTS, CORRECTION, *SHARED_EXPERTS)},
    defaults={
        **TIED,
        "rms_norm_eps": 1e-5,
        "moe_num_experts": 64,
        "moe_k": 6,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
        "moe_layer_interval": 1,
    },
    keys={
        "num_experts": "moe_num_experts",
        "num_experts_per_tok": "moe_k",
        "n_shared_experts": "moe_num_shared_experts",
        "first_k_dense_replace": "moe_layer_start_index",
        "decoder_sparse_step": "moe_layer_interval",
    },
    required_config=(("use_bias", False),),
    checkpoint=TensorNames(
        {
            **LAYER_NAMES,
            **EXPERT_NAMES,
            **SHARED_EXPERT_NAMES,
            "mlp.moe_statics.e_score_correction_bias": ("exp_probs_b.bias",),
        },
        transforms={"attn_q": "interleaved", "attn_k": "interleaved"},
    ),
    interleaved=("attn_q", "attn_k"),
    routing={"normalise": True, "bias_selects": True},
)
