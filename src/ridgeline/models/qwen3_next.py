"""Qwen3-Next, planned only. Qwen Team 2025: gated attention in every fourth layer, else the gated delta rule; experts."""

from ridgeline.models.declare import ATTENTION, ATTENTION_BIASES, EXPERTS, GATED_FFN, HEAD_NORMS, SHARED_EXPERTS, UNTIED, Architecture

ARCHITECTURE = Architecture(
    model_types=("qwen3_next",),
    tensors=(ATTENTION[0], GATED_FFN[0]),
    parts={
        "attention": (*ATTENTION[1:], *HEAD_NORMS, ("attn_gate", "queries", "hidden")),
        "state": (
            ("ssm_in", "in_proj", "hidden"),
            ("ssm_beta_alpha", "beta_alpha", "hidden"),
            ("ssm_conv1d", "channels", "kernel"),
            ("ssm_dt", "state_heads"),
            ("ssm_a", "state_heads"),
            ("ssm_norm", "value"),
            ("ssm_out", "hidden", "inner"),
        ),
        "dense": GATED_FFN[1:],
        "sparse": (*EXPERTS, *SHARED_EXPERTS, ("ffn_gate_inp_shexp", "shared_gates", "hidden")),
    },
    defaults={
        **UNTIED,
        "head_dim": 256,
        "full_attention_interval": 4,
        "decoder_sparse_step": 1,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
    },
    biases=ATTENTION_BIASES,
    recurrence="delta",
)
