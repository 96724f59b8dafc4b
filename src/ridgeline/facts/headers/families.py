"""What a config.json leaves out, as data: one row a `model_type` of the transformers library, with the defaults of its config class."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

MEASURED: Final = "llama-3-8b"
"""The known model in whose shape GPUs are measured: published figures of other engines are of it."""


@dataclass(frozen=True, slots=True)
class Family:
    """How a family counts its parameters, and the values of keys that its files may omit.

    defaults    key → value where the file has no such key
    keys        our key → the file's key, where they differ
    gated       the FFN has three matrices (gate, up, down), else two
    biases      of "qkv", "output", "ffn": which linear layers have a bias whatever the file says
    qk_norm     query and key heads have a norm of their own
    norms       norms a layer; `norm_bias` doubles each
    pattern     every `pattern`-th layer is full, the others have a window; 1: all have the window; 0: the file's other keys say
    positions   positions are a learned table
    gate        attention's output is gated by a projection as wide as its queries
    recurrence  key of `state_layers.RECURRENCES`, "" for attention alone; `beside`: every layer has both
    """

    defaults: Mapping[str, object] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    gated: bool = True
    biases: frozenset[str] = frozenset()
    qk_norm: bool = False
    norms: int = 2
    norm_bias: bool = False
    pattern: int = 0
    positions: bool = False
    gate: bool = False
    recurrence: str = ""
    beside: bool = False


_UNTIED = {"tie_word_embeddings": False, "rms_norm_eps": 1e-6}
_TIED = {"tie_word_embeddings": True, "rms_norm_eps": 1e-6}
_GEMMA_KEYS = {"hidden_act": "hidden_activation"}
_GPT2_KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
    "rms_norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation_function",
}
_GEMMA3 = Family(
    defaults={
        **_TIED,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    },
    keys=_GEMMA_KEYS,
    qk_norm=True,
    norms=4,
    pattern=6,
)
_MAMBA2 = {
    "mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": True,
}  # fmt: skip
_DEEPSEEK = Family(defaults={**_UNTIED, "moe_layer_freq": 1, "first_k_dense_replace": 0})

FAMILIES: dict[str, Family] = {
    "llama": Family(defaults=_UNTIED),
    "mistral": Family(defaults={**_UNTIED, "num_key_value_heads": 8, "sliding_window": 4096}, pattern=1),
    "mixtral": Family(defaults={**_UNTIED, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None}, pattern=1),
    "qwen2": Family(defaults={**_UNTIED, "use_sliding_window": False, "max_window_layers": 28}, biases=frozenset({"qkv"})),
    "qwen3": Family(defaults={**_UNTIED, "head_dim": 128, "use_sliding_window": False, "max_window_layers": 28}, qk_norm=True),
    "qwen3_moe": Family(
        defaults={**_UNTIED, "head_dim": 128, "use_sliding_window": False, "max_window_layers": 28, "decoder_sparse_step": 1},
        qk_norm=True,
    ),
    "gemma": Family(defaults={**_TIED, "head_dim": 256}),
    "gemma2": Family(
        defaults={
            **_TIED,
            "head_dim": 256,
            "sliding_window": 4096,
            "query_pre_attn_scalar": 256,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        keys=_GEMMA_KEYS,
        norms=4,
        pattern=2,
    ),
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "phi3": Family(
        defaults={**_UNTIED, "rms_norm_eps": 1e-5, "sliding_window": None, "original_max_position_embeddings": 4096},
        pattern=1,
    ),
    "gpt2": Family(
        defaults={"tie_word_embeddings": True, "n_inner": None, "n_positions": 1024, "layer_norm_epsilon": 1e-5},
        keys=_GPT2_KEYS,
        gated=False,
        biases=frozenset({"qkv", "output", "ffn"}),
        norm_bias=True,
        positions=True,
    ),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "jamba": Family(
        defaults={
            **_UNTIED,
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
        recurrence="mamba",
    ),
    "nemotron_h": Family(
        defaults={
            **_UNTIED,
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
        gated=False,
        norms=1,
        recurrence="mamba2",
    ),
    "qwen3_next": Family(
        defaults={
            **_UNTIED,
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
        qk_norm=True,
        gate=True,
        recurrence="delta",
    ),
    "falcon_h1": Family(
        defaults={**_UNTIED, **_MAMBA2, "mamba_d_ssm": 1024},
        recurrence="mamba2",
        beside=True,
    ),
    "granitemoehybrid": Family(
        defaults={
            **_UNTIED,
            **_MAMBA2,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 1024,
            "mamba_rms_norm": True,
        },
        recurrence="mamba2",
    ),
}
