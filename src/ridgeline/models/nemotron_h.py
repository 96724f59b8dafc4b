"""Nemotron-H, planned only. NVIDIA 2025: a layer is attention, Mamba-2 or a feed-forward, each by itself."""

from ridgeline.models.declare import (
    ATTENTION,
    ATTENTION_BIASES,
    EXPERTS,
    GATED_FFN,
    MAMBA2,
    MAMBA_BIASES,
    MLP_BIASES,
    SHARED_EXPERTS,
    UNTIED,
    Architecture,
)

ARCHITECTURE = Architecture(
    model_types=("nemotron_h",),
    tensors=(ATTENTION[0],),
    parts={
        "attention": ATTENTION[1:],
        "state": MAMBA2,
        "dense": GATED_FFN[2:],
        "sparse": tuple(row for row in (*EXPERTS, *SHARED_EXPERTS) if row[0] not in ("ffn_gate_exps", "ffn_gate_shexp")),
    },
    defaults={
        **UNTIED,
        "head_dim": 128,
        "ssm_state_size": 128,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "n_groups": 8,
        "conv_kernel": 4,
        "use_conv_bias": True,
        "mamba_rms_norm": True,
    },
    keys={
        "mamba_d_state": "ssm_state_size",
        "mamba_n_heads": "mamba_num_heads",
        "mamba_n_groups": "n_groups",
        "mamba_d_conv": "conv_kernel",
        "mamba_conv_bias": "use_conv_bias",
        "mamba_proj_bias": "use_bias",
    },
    biases={**ATTENTION_BIASES, **MLP_BIASES, **MAMBA_BIASES},
    recurrence="mamba2",
)
