"""Granite 4, planned only. IBM 2025: attention in few layers, else Mamba-2; dense feed-forward and experts in every layer."""

from ridgeline.models.declare import ATTENTION, ATTENTION_BIASES, EXPERTS, GATED_FFN, MAMBA2, MAMBA_BIASES, UNTIED, Architecture

ARCHITECTURE = Architecture(
    model_types=("granitemoehybrid",),
    tensors=(
        ATTENTION[0],
        GATED_FFN[0],
        ("ffn_gate_shexp", "dense_ffn", "hidden"),
        ("ffn_up_shexp", "dense_ffn", "hidden"),
        ("ffn_down_shexp", "hidden", "dense_ffn"),
    ),
    parts={"attention": ATTENTION[1:], "state": MAMBA2, "sparse": EXPERTS},
    defaults={
        **UNTIED,
        "mamba_n_heads": 128,
        "mamba_n_groups": 1,
        "mamba_d_state": 256,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_conv_bias": True,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 1024,
        "mamba_rms_norm": True,
    },
    biases={**ATTENTION_BIASES, **MAMBA_BIASES},
    recurrence="mamba2",
)
