"""Qwen 1.5 and 2 with experts. Qwen Team 2024, "Qwen2 Technical Report": one wide expert that every token has, with a gate of its own."""

from ridgeline.models.declare import (
    ATTENTION,
    EXPERT_NAMES,
    EXPERTS,
    GATED_FFN,
    LAYER_NAMES,
    QKV,
    SHARED_EXPERTS,
    UNTIED,
    Architecture,
    TensorNames,
)
from ridgeline.models.decoder import step

__all__ = ["ARCHITECTURE", "step"]

ARCHITECTURE = Architecture(
    model_types=("qwen2_moe",),
    tensors=(*ATTENTION, GATED_FFN[0]),
    parts={
        "dense": GATED_FFN[1:],
        "sparse": (*EXPERTS, *SHARED_EXPERTS, ("ffn_gate_inp_shexp", "shared_gates", "hidden")),
    },
    defaults={
        **UNTIED,
        "use_sliding_window": False,
        "max_window_layers": 28,
        "decoder_sparse_step": 1,
        "norm_topk_prob": False,
        "shared_expert_intermediate_size": 5632,
        "qkv_bias": True,
    },
    checkpoint=TensorNames(
        {
            **LAYER_NAMES,
            **EXPERT_NAMES,
            "mlp.shared_expert.gate_proj": ("ffn_gate_shexp",),
            "mlp.shared_expert.up_proj": ("ffn_up_shexp",),
            "mlp.shared_expert.down_proj": ("ffn_down_shexp",),
            "mlp.shared_expert_gate": ("ffn_gate_inp_shexp",),
        }
    ),
    biases=dict.fromkeys(QKV, "qkv_bias"),
)
