"""Jamba, planned only. Lieber et al. 2024: attention in every eighth layer, else Mamba; a mixture in every second."""

from ridgeline.models.declare import ATTENTION, EXPERTS, GATED_FFN, MAMBA_BIASES, UNTIED, Architecture

ARCHITECTURE = Architecture(
    model_types=("jamba",),
    tensors=(ATTENTION[0], GATED_FFN[0]),
    parts={
        "attention": ATTENTION[1:],
        "state": (
            ("ssm_in", "in_proj", "hidden"),
            ("ssm_conv1d", "inner", "kernel"),
            ("ssm_x", "x_proj", "inner"),
            ("ssm_dt", "inner", "rank"),
            ("ssm_dt_norm", "rank"),
            ("ssm_b_norm", "state"),
            ("ssm_c_norm", "state"),
            ("ssm_a", "inner", "state"),
            ("ssm_d", "inner"),
            ("ssm_out", "hidden", "inner"),
        ),
        "dense": GATED_FFN[1:],
        "sparse": EXPERTS,
    },
    defaults={
        **UNTIED,
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "attn_layer_period": 8,
        "attn_layer_offset": 4,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_conv_bias": True,
    },
    biases={**MAMBA_BIASES, "ssm_dt": "always"},
    recurrence="mamba",
)
