"""Tables by which an architecture is declared. Plain data: both wings read it, and nothing of either is imported.

An architecture is one module of this folder. It holds `ARCHITECTURE`, an `Architecture`, and, if runners support it, `step(g, facts, w)`,
which records its op list. A module without `step` can be planned and not run. `table.py` discovers the modules; no list names them.

A module with a `step` has the name that GGUF files give the architecture. Canonical tensor names are those of GGUF.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

Row = tuple[str, ...]
"""(name of a tensor, its dimensions by name, outermost first). A tensor with a dimension of 0 does not exist. Names are those of weights,
but for names that end in ".bias"."""
Sizes = dict[str, int]
"""Dimensions of a model by the names that rows give them."""
RequiredValues = tuple[tuple[str, float | str | bool | None], ...]
"""(key of a file, the only value of it that is supported)."""

DIMENSIONS: Final = (
    {"hidden", "ffn", "head", "heads", "normed_head", "queries", "gated_queries", "keys", "context"}
    | {"experts", "expert_ffn", "shared_ffn", "shared_gates", "dense_ffn"}
    | {"latent", "latent_queries", "plain_queries", "query_rank", "cached", "plain", "corrected"}
    | {"inner", "in_proj", "channels", "kernel", "state", "state_heads", "rank", "x_proj", "norm", "value", "values", "beta_alpha"}
    | {"apart_channels", "apart_gates"}
)
"""Names of dimensions that rows may use: dense decoders, experts, latent attention, recurrences."""
OUTER_NAMES: Final = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
"""Names of tensors outside layers in safetensors files → canonical names."""
ROTARY_BUFFERS: Final = r".*\.rotary_emb\.(inv_freq|cos_cached|sin_cached)"
"""Buffers of safetensors files that are computed from the header and not read."""


@dataclass(frozen=True, slots=True)
class TensorNames:
    """Names of an architecture's tensors in one kind of file; the defaults are those of most decoders in safetensors files.

    layers      stored name in a layer → canonical names of its parts, concatenated along the outputs. "experts.*.up_proj" are tensors of
                experts, by their number; a name that does not end in ".weight" or ".bias" in the file stands whole
    prefix      in front of a layer's number
    outer       stored name outside layers → canonical name
    roots       prefixes that all names may have
    transforms  canonical name → how the stored tensor differs (`facts.model.TensorFacts.transform`); "transposed" applies to matrices only;
                "first_row": the first row of the stored matrix is the vector
    alternating  canonical names of parts that take turns along the outputs of the stored tensor, instead of following each other
    ignored     pattern of names that are not read: buffers, and parts of the model that text does not use
    """

    layers: Mapping[str, tuple[str, ...]]
    prefix: str = "layers."
    outer: Mapping[str, str] = field(default_factory=lambda: OUTER_NAMES)
    roots: tuple[str, ...] = ("model.", "")
    transforms: Mapping[str, str] = field(default_factory=dict)
    alternating: frozenset[str] = frozenset()
    ignored: str = ROTARY_BUFFERS


@dataclass(frozen=True, slots=True)
class Architecture:
    """Properties of an architecture that its files leave out, and the names that they use.

    config.json:
    model_types        values of `model_type` that mean this architecture
    defaults           key → value where the file has no such key
    keys               key of Llama's config.json → this architecture's key, where they differ; `defaults` has the latter
    required_config    keys that change the network in unsupported ways, each with the only supported value
    activations        names of the activation that `step` uses
    checkpoint         names of tensors in safetensors files; None: such files can be planned only

    Tensors:
    tensors            of each layer
    parts              of layers that have a part: "attention", "state", "dense" or "sparse" (feed-forward); see `facts.headers.layers`
    biases             tensor that may have a bias → "always", or a flag of config.json; a GGUF file has it in all layers or none
    routing            what `facts.model.Experts` has, where the files do not say it; a config.json says what `defaults` has keys for
    routings           by `model_type`, what these have in place of it; a GGUF file is of the type whose scores it states
    outer_tensors      tensors outside layers, besides token_embd and the head
    outer_biases       those of `outer_tensors` that have a bias
    fused              of GGUF files: stored tensor → canonical names of its parts, concatenated along the rows
    interleaved        tensors that GGUF files store in the order of pairwise RoPE
    first_rows         tensors of which the first stored row alone is used: a vector
    rope_tensors       tensors of a GGUF file that hold divisors of RoPE angles

    Layers:
    window_pattern     every `window_pattern`-th layer has full attention, the others a sliding window; 1: all full, unless the file says
    windows_everywhere  kinds of files ("gguf", "config") whose sliding window, if given, applies to all layers
    default_window     tokens of the window where a GGUF file does not say; 0: it must, if there are window layers
    recurrence         "mamba", "mamba2" or "delta" of `facts.headers.layers`; ""
    parallel_recurrence  every layer has the recurrence in parallel to attention
    predictor          prefix of safetensors names of a layer that predicts further tokens as Qwen3-Next's does, which hands on hidden
                       states behind its last norm; "": it follows the last layer and hands on those in front of that norm, as DeepSeek-V3's

    Numbers:
    bidirectional      tokens see those behind them too: an encoder, which has no head
    has_rope           positions are encoded by RoPE; False: by a learned table
    window_rope_base   RoPE base of window layers where the file does not say; None: that of the full layers
    yarn_scores        YaRN with `mscale` multiplies scores; False: it is refused
    yarn_truncated     YaRN's ramp begins and ends at whole pairs; GGUF files do not say
    least_rope_bases   (context, rows of the embedding, base): published models with at least this context and these rows have at least this
                       RoPE base in layers of full attention; files that leave the base out get 10,000
    eps_key            key of a GGUF file for the epsilon of norms
    softcaps           of scores and of logits, where a GGUF file does not say
    hidden_scaled_layers  models with so many layers scale scores by (hidden / heads)^-½ instead of head_dim^-½; GGUF files do not say
    """

    model_types: tuple[str, ...]
    tensors: tuple[Row, ...]
    defaults: Mapping[str, object] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    required_config: RequiredValues = ()
    activations: tuple[str, ...] = ("silu", "swish")
    checkpoint: TensorNames | None = None
    parts: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)
    biases: Mapping[str, str] = field(default_factory=dict)
    routing: Mapping[str, str | bool | float] = field(default_factory=dict)
    routings: Mapping[str, Mapping[str, str | bool | float]] = field(default_factory=dict)
    outer_tensors: tuple[Row, ...] = (("output_norm", "hidden"),)
    outer_biases: tuple[str, ...] = ()
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    interleaved: tuple[str, ...] = ()
    first_rows: tuple[str, ...] = ()
    rope_tensors: tuple[str, ...] = ()
    window_pattern: int = 1
    windows_everywhere: tuple[str, ...] = ()
    default_window: int = 0
    recurrence: str = ""
    parallel_recurrence: bool = False
    predictor: str = ""
    has_rope: bool = True
    bidirectional: bool = False
    window_rope_base: float | None = None
    yarn_scores: bool = False
    yarn_truncated: bool = True
    least_rope_bases: tuple[tuple[int, int, float], ...] = ()
    eps_key: str = "attention.layer_norm_rms_epsilon"
    softcaps: tuple[float, float] = (0.0, 0.0)
    hidden_scaled_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, *dimensions in (*self.tensors, *self.outer_tensors, *(row for rows in self.parts.values() for row in rows)):
            unknown = set(dimensions) - DIMENSIONS
            if unknown:
                raise ValueError(f"{name} has the unknown dimension {min(unknown)!r}; known are {', '.join(sorted(DIMENSIONS))}")


# Rows that architectures share.

ATTENTION: Final = (
    ("attn_norm", "hidden"),
    ("attn_q", "queries", "hidden"),
    ("attn_k", "keys", "hidden"),
    ("attn_v", "keys", "hidden"),
    ("attn_output", "hidden", "queries"),
)
HEAD_NORMS: Final = (("attn_q_norm", "head"), ("attn_k_norm", "head"))
GATED_FFN: Final = (
    ("ffn_norm", "hidden"),
    ("ffn_gate", "ffn", "hidden"),
    ("ffn_up", "ffn", "hidden"),
    ("ffn_down", "hidden", "ffn"),
)
POST_NORMS: Final = (("post_attention_norm", "hidden"), ("post_ffw_norm", "hidden"))
EXPERTS: Final = (
    ("ffn_gate_inp", "experts", "hidden"),
    ("ffn_gate_exps", "experts", "expert_ffn", "hidden"),
    ("ffn_up_exps", "experts", "expert_ffn", "hidden"),
    ("ffn_down_exps", "experts", "hidden", "expert_ffn"),
)
SHARED_EXPERTS: Final = (
    ("ffn_gate_shexp", "shared_ffn", "hidden"),
    ("ffn_up_shexp", "shared_ffn", "hidden"),
    ("ffn_down_shexp", "hidden", "shared_ffn"),
)
GATED_SHARED_EXPERT: Final = (*SHARED_EXPERTS, ("ffn_gate_inp_shexp", "shared_gates", "hidden"))
LATENT_ATTENTION: Final = (
    ("attn_norm", "hidden"),
    ("attn_q", "plain_queries", "hidden"),
    ("attn_q_a", "query_rank", "hidden"),
    ("attn_q_a_norm", "query_rank"),
    ("attn_q_b", "latent_queries", "query_rank"),
    ("attn_kv_a_mqa", "cached", "hidden"),
    ("attn_kv_a_norm", "latent"),
    ("attn_k_b", "heads", "latent", "plain"),
    ("attn_v_b", "heads", "value", "latent"),
    ("attn_output", "hidden", "values"),
)
CORRECTION: Final = ("exp_probs_b.bias", "experts")
GATED_DELTA: Final = (
    ("ssm_in", "in_proj", "hidden"),
    ("attn_qkv", "apart_channels", "hidden"),
    ("attn_gate", "apart_gates", "hidden"),
    ("ssm_ba", "beta_alpha", "hidden"),
    ("ssm_conv1d", "channels", "kernel"),
    ("ssm_dt.bias", "state_heads"),
    ("ssm_a", "state_heads"),
    ("ssm_norm", "value"),
    ("ssm_out", "hidden", "inner"),
)
MAMBA2: Final = (
    ("ssm_in", "in_proj", "hidden"),
    ("ssm_conv1d", "channels", "kernel"),
    ("ssm_dt", "state_heads"),
    ("ssm_a", "state_heads"),
    ("ssm_d", "state_heads"),
    ("ssm_norm", "norm"),
    ("ssm_out", "hidden", "inner"),
)
MAMBA_BIASES: Final = {"ssm_conv1d": "mamba_conv_bias", "ssm_in": "mamba_proj_bias", "ssm_out": "mamba_proj_bias"}

QKV: Final = ("attn_q", "attn_k", "attn_v")
ATTENTION_BIASES: Final = dict.fromkeys((*QKV, "attn_output"), "attention_bias")
MLP_BIASES: Final = dict.fromkeys(("ffn_gate", "ffn_up", "ffn_down"), "mlp_bias")

# Keys of config.json that architectures share.

UNTIED: Final = {"tie_word_embeddings": False, "rms_norm_eps": 1e-6}
TIED: Final = {"tie_word_embeddings": True, "rms_norm_eps": 1e-6}
NO_BIASES: Final[RequiredValues] = (("attention_bias", False), ("mlp_bias", False))
GELU_TANH: Final = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast")

# Names in safetensors files that architectures share.

COMMON_NAMES: Final = {
    "input_layernorm": ("attn_norm",),
    "self_attn.o_proj": ("attn_output",),
    "post_attention_layernorm": ("ffn_norm",),
    "mlp.down_proj": ("ffn_down",),
}
LAYER_NAMES: Final = {
    **COMMON_NAMES,
    "self_attn.q_proj": ("attn_q",),
    "self_attn.k_proj": ("attn_k",),
    "self_attn.v_proj": ("attn_v",),
    "mlp.gate_proj": ("ffn_gate",),
    "mlp.up_proj": ("ffn_up",),
}
EXPERT_NAMES: Final = {
    "mlp.gate": ("ffn_gate_inp",),
    "mlp.experts.*.gate_proj": ("ffn_gate_exps",),
    "mlp.experts.*.up_proj": ("ffn_up_exps",),
    "mlp.experts.*.down_proj": ("ffn_down_exps",),
    "mlp.gate.e_score_correction_bias": ("exp_probs_b.bias",),
}
SHARED_EXPERT_NAMES: Final = {
    "mlp.shared_experts.gate_proj": ("ffn_gate_shexp",),
    "mlp.shared_experts.up_proj": ("ffn_up_shexp",),
    "mlp.shared_experts.down_proj": ("ffn_down_shexp",),
}
GATED_SHARED_EXPERT_NAMES: Final = {
    "mlp.shared_expert.gate_proj": ("ffn_gate_shexp",),
    "mlp.shared_expert.up_proj": ("ffn_up_shexp",),
    "mlp.shared_expert.down_proj": ("ffn_down_shexp",),
    "mlp.shared_expert_gate": ("ffn_gate_inp_shexp",),
}
HEAD_NORM_NAMES: Final = {"self_attn.q_norm": ("attn_q_norm",), "self_attn.k_norm": ("attn_k_norm",)}
POST_NORM_NAMES: Final = {
    "post_attention_layernorm": ("post_attention_norm",),
    "pre_feedforward_layernorm": ("ffn_norm",),
    "post_feedforward_layernorm": ("post_ffw_norm",),
}
NORMS_PLUS_ONE: Final = dict.fromkeys(
    ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "attn_q_norm", "attn_k_norm", "output_norm"), "plus_one"
)
DECODER_NAMES: Final = TensorNames(LAYER_NAMES)
