"""Tables by which an architecture is declared. Plain data: both wings read it, and nothing of either is imported.

An architecture is one module beside this one. It holds `ARCHITECTURE`, an `Architecture`, and, if runners compute it, `step(g, facts, w)`,
which records its op list. A module without `step` can be planned. `table.py` finds modules by themselves; no list names them.

A module that is computed goes by the name that GGUF files give the architecture. Canonical tensor names are those of GGUF.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

Row = tuple[str, ...]
"""(name of a tensor, its dimensions by name, outermost first). Where a dimension is 0 there is no such tensor."""
Sizes = dict[str, int]
"""Dimensions of a model by the names that rows give them."""
Neutral = tuple[tuple[str, float | str | bool], ...]

ENDS: Final = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
"""Names outside layers in safetensors files."""
ROTARY: Final = r".*\.rotary_emb\.(inv_freq|cos_cached|sin_cached)"
"""Buffers of safetensors files that hold what is computed from the header."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Names of an architecture's tensors in one kind of file; the defaults are those of most decoders in safetensors files.

    layers    stored name in a layer → its canonical parts, one after the other along the outputs
    prefix    in front of a layer's number
    ends      stored name outside layers → canonical name
    roots     what may stand in front of all names
    views     canonical name → view of what is stored (`facts.model.TensorFacts.view`); "transposed" concerns matrices only
    ignored   pattern of names that change nothing: buffers, and parts of a model that text does not pass
    """

    layers: Mapping[str, tuple[str, ...]]
    prefix: str = "layers."
    ends: Mapping[str, str] = field(default_factory=lambda: ENDS)
    roots: tuple[str, ...] = ("model.", "")
    views: Mapping[str, str] = field(default_factory=dict)
    ignored: str = ROTARY


@dataclass(frozen=True, slots=True)
class Architecture:
    """Supplements to a header: what files of an architecture leave out, and what they call the rest.

    Names and numbers of a config.json:
    model_types        values of `model_type` that mean this architecture
    defaults           key → value where the file has no such key
    keys               our key → the file's key, where they differ
    neutral_config     keys that change the network in ways that are not computed, and the only value that leaves it as it is
    activations        names of the activation that is computed
    checkpoint         names of tensors in safetensors files; None: such files are planned only

    Tensors:
    tensors            of each layer
    parts              of layers that have a part: "attention", "state", "dense" or "sparse" (feed-forward); see `facts.headers.layers`
    biases             tensors of a layer that may have a bias → "always", or the flag of config.json that says so; a GGUF file has it in
                       all layers or none
    ends               tensors outside layers, beside token_embd and the head
    end_biases         those of `ends` that have a bias
    fused              of GGUF files: stored tensor → its parts, one after the other along the rows
    interleaved        tensors that GGUF files store in the order of pairwise RoPE
    rope_tensors       tensors of a GGUF file that carry divisors of RoPE

    Layers:
    pattern            every `pattern`-th layer attends to everything, the others to a window; 1: all are full (a file may say otherwise)
    windowed           kinds of files ("gguf", "config") in which a window that the file names holds in all layers
    window             tokens of the window where a GGUF file does not say; 0: it must, if there are window layers
    recurrence         "mamba", "mamba2" or "delta" of `facts.headers.layers`; `beside`: every layer has it beside attention

    Numbers:
    rope               positions are turned into queries and keys, else they are a learned table
    window_rope_base   RoPE base of window layers where the file does not say; None: the same as the full layers'
    eps                key of a GGUF file for the norms' epsilon
    softcaps           of scores and of logits, where a GGUF file does not say
    hidden_scaled      layers of the sizes whose scores are scaled by (hidden / heads)^-½ instead of head_dim^-½; GGUF files do not say
    """

    model_types: tuple[str, ...]
    tensors: tuple[Row, ...]
    defaults: Mapping[str, object] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    neutral_config: Neutral = ()
    activations: tuple[str, ...] = ("silu", "swish")
    checkpoint: Layout | None = None
    parts: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)
    biases: Mapping[str, str] = field(default_factory=dict)
    ends: tuple[Row, ...] = (("output_norm", "hidden"),)
    end_biases: tuple[str, ...] = ()
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    interleaved: tuple[str, ...] = ()
    rope_tensors: tuple[str, ...] = ()
    pattern: int = 1
    windowed: tuple[str, ...] = ()
    window: int = 0
    recurrence: str = ""
    beside: bool = False
    rope: bool = True
    window_rope_base: float | None = None
    eps: str = "attention.layer_norm_rms_epsilon"
    softcaps: tuple[float, float] = (0.0, 0.0)
    hidden_scaled: tuple[int, ...] = ()


# Rows that architectures share.

ATTENTION: Final = (
    ("attn_norm", "hidden"),
    ("attn_q", "queries", "hidden"),
    ("attn_k", "keys", "hidden"),
    ("attn_v", "keys", "hidden"),
    ("attn_output", "hidden", "queries"),
)
HEAD_NORMS: Final = (("attn_q_norm", "head"), ("attn_k_norm", "head"))
GATED: Final = (
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
MAMBA2: Final = (
    ("ssm_in", "inward", "hidden"),
    ("ssm_conv1d", "channels", "kernel"),
    ("ssm_dt", "state_heads"),
    ("ssm_a", "state_heads"),
    ("ssm_d", "state_heads"),
    ("ssm_norm", "normed"),
    ("ssm_out", "hidden", "inner"),
)
MAMBA_BIASES: Final = {"ssm_conv1d": "mamba_conv_bias", "ssm_in": "mamba_proj_bias", "ssm_out": "mamba_proj_bias"}

QKV: Final = ("attn_q", "attn_k", "attn_v")
ATTENTION_BIASES: Final = dict.fromkeys((*QKV, "attn_output"), "attention_bias")
MLP_BIASES: Final = dict.fromkeys(("ffn_gate", "ffn_up", "ffn_down"), "mlp_bias")

# Keys of config.json that architectures share.

UNTIED: Final = {"tie_word_embeddings": False, "rms_norm_eps": 1e-6}
TIED: Final = {"tie_word_embeddings": True, "rms_norm_eps": 1e-6}
NO_BIASES: Final[Neutral] = (("attention_bias", False), ("mlp_bias", False))
GELU_TANH: Final = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast")

# Names in safetensors files that architectures share.

BLOCK: Final = {
    "input_layernorm": ("attn_norm",),
    "self_attn.o_proj": ("attn_output",),
    "post_attention_layernorm": ("ffn_norm",),
    "mlp.down_proj": ("ffn_down",),
}
LAYER: Final = {
    **BLOCK,
    "self_attn.q_proj": ("attn_q",),
    "self_attn.k_proj": ("attn_k",),
    "self_attn.v_proj": ("attn_v",),
    "mlp.gate_proj": ("ffn_gate",),
    "mlp.up_proj": ("ffn_up",),
}
LAYER_HEAD_NORMS: Final = {"self_attn.q_norm": ("attn_q_norm",), "self_attn.k_norm": ("attn_k_norm",)}
LAYER_POST_NORMS: Final = {
    "post_attention_layernorm": ("post_attention_norm",),
    "pre_feedforward_layernorm": ("ffn_norm",),
    "post_feedforward_layernorm": ("post_ffw_norm",),
}
PLUS_ONE: Final = dict.fromkeys(
    ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "attn_q_norm", "attn_k_norm", "output_norm"), "plus_one"
)
DECODER: Final = Layout(LAYER)
