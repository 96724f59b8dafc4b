"""Falcon-H1, planned only. Falcon LLM Team 2025: every layer has attention and Mamba-2 in parallel."""

from ridgeline.models.declare import ATTENTION, ATTENTION_BIASES, GATED_FFN, MAMBA2, MAMBA_BIASES, MLP_BIASES, UNTIED, Architecture

ARCHITECTURE = Architecture(
    model_types=("falcon_h1",),
    tensors=(*ATTENTION, *MAMBA2, *GATED_FFN),
    defaults={
        **UNTIED,
        "mamba_n_heads": 128,
        "mamba_n_groups": 1,
        "mamba_d_state": 256,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_conv_bias": True,
        "mamba_d_ssm": 1024,
    },
    biases={**ATTENTION_BIASES, **MLP_BIASES, **MAMBA_BIASES},
    recurrence="mamba2",
    parallel_recurrence=True,
)
