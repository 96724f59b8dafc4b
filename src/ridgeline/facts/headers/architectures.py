"""What files leave out, as data: one row an architecture, one a layout of its tensors. The only place outside `models` and
`facts/headers/families.py` that names model families.

A row is named as the module in `models` that computes it. Canonical tensor names are those of GGUF.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

Rows = tuple[tuple[str, str, str], ...]
"""(name, rows, columns) a tensor, each dimension by its name; columns "" for a vector."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """Supplements to a header.

    tensors            of each layer
    biases             tensors of a layer that may have a bias → "always", or the flag of config.json that says so; a GGUF file has it in
                       all layers or none
    ends               tensors outside layers, beside token_embd and the head
    end_biases         those of `ends` that have a bias
    pattern            every `pattern`-th layer attends to everything, the others to a window; 1: all are full (a file may say otherwise)
    windowed           a window that the file names holds in all layers
    window_rope_base   RoPE base of window layers where the file does not say; None: the same as the full layers'
    window             tokens of the window where a GGUF file does not say; 0: it must, if there are window layers
    rope               positions are turned into queries and keys, else they are a learned table
    rope_tensors       tensors of a GGUF file that carry divisors of RoPE
    eps                key of a GGUF file for the norms' epsilon
    softcaps           of scores and of logits, where a GGUF file does not say
    hidden_scaled      layers of the sizes whose scores are scaled by (hidden / heads)^-½ instead of head_dim^-½; GGUF files do not say
    fused              of GGUF files: stored tensor → its parts, one after the other along the rows
    interleaved        tensors that GGUF files store in the order of pairwise RoPE
    activations        names in config.json of the activation that is computed
    neutral_config     keys of config.json that change the network in ways that are not computed, and the only value that leaves it as it is
    """

    tensors: Rows
    biases: Mapping[str, str] = field(default_factory=dict)
    ends: Rows = (("output_norm", "hidden", ""),)
    end_biases: tuple[str, ...] = ()
    pattern: int = 1
    windowed: bool = False
    window_rope_base: float | None = None
    window: int = 0
    rope: bool = True
    rope_tensors: tuple[str, ...] = ()
    eps: str = "attention.layer_norm_rms_epsilon"
    softcaps: tuple[float, float] = (0.0, 0.0)
    hidden_scaled: tuple[int, ...] = ()
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    interleaved: tuple[str, ...] = ()
    activations: tuple[str, ...] = ("silu", "swish")
    neutral_config: tuple[tuple[str, float | str | bool], ...] = ()


@dataclass(frozen=True, slots=True)
class Layout:
    """What a kind of file calls the tensors of an architecture.

    prefix    in front of a layer's number
    layers    stored name in a layer → its canonical parts, one after the other along the outputs
    ends      stored name outside layers → canonical name
    roots     what may stand in front of all names
    views     canonical name → view of what is stored (`facts.model.TensorFacts.view`); "transposed" concerns matrices only
    ignored   pattern of names that change nothing: buffers, and parts of a model that text does not pass
    """

    prefix: str
    layers: Mapping[str, tuple[str, ...]]
    ends: Mapping[str, str]
    roots: tuple[str, ...] = ("",)
    views: Mapping[str, str] = field(default_factory=dict)
    ignored: str = r"(?!)"


GGUF_NEUTRAL: tuple[tuple[str, float | str | bool], ...] = (
    ("expert_count", 0),
    ("attention.causal", True),
    ("attention.scale", 0.0),
    ("attention.clamp_kqv", 0.0),
    ("attention.max_alibi_bias", 0.0),
    ("attention.temperature_scale", 0.0),
    ("logit_scale", 0.0),
    ("embedding_scale", 0.0),
    ("residual_scale", 0.0),
    ("use_parallel_residual", False),
    ("rope.scale_linear", 1.0),
    ("rope.scaling.yarn_ext_factor", 1.0),
    ("rope.scaling.yarn_attn_factor", 1.0),
    ("rope.scaling.yarn_log_multiplier", 0.0),
)
"""The same of GGUF files, without the architecture's prefix, for every row."""

ROPE_SCALINGS = {
    "default": "none",
    "linear": "linear",
    "llama3": "ramped",
    "yarn": "yarn",
    "longrope": "longrope",
    "su": "longrope",
}
"""`rope_type` of a config.json → the function of `facts.headers.rope` that computes it; "none": no scaling."""

_ATTENTION: Rows = (
    ("attn_norm", "hidden", ""),
    ("attn_q", "queries", "hidden"),
    ("attn_k", "keys", "hidden"),
    ("attn_v", "keys", "hidden"),
    ("attn_output", "hidden", "queries"),
)
_HEAD_NORMS: Rows = (("attn_q_norm", "head", ""), ("attn_k_norm", "head", ""))
_GATED: Rows = (
    ("ffn_norm", "hidden", ""),
    ("ffn_gate", "ffn", "hidden"),
    ("ffn_up", "ffn", "hidden"),
    ("ffn_down", "hidden", "ffn"),
)
_POST_NORMS: Rows = (("post_attention_norm", "hidden", ""), ("post_ffw_norm", "hidden", ""))
_QKV = ("attn_q", "attn_k", "attn_v")
_GELU_TANH = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast")
_NO_BIASES: tuple[tuple[str, float | str | bool], ...] = (("attention_bias", False), ("mlp_bias", False))
_CAUSAL: tuple[tuple[str, float | str | bool], ...] = (*_NO_BIASES, ("use_bidirectional_attention", False))

ARCHITECTURES = {
    "llama": Architecture(
        tensors=(*_ATTENTION, *_GATED),
        biases=dict.fromkeys((*_QKV, "attn_output"), "attention_bias") | dict.fromkeys(("ffn_gate", "ffn_up", "ffn_down"), "mlp_bias"),
        windowed=True,
        rope_tensors=("rope_freqs",),
        interleaved=("attn_q", "attn_k"),
    ),
    "mistral": Architecture(tensors=(*_ATTENTION, *_GATED), windowed=True, neutral_config=_NO_BIASES),
    "qwen2": Architecture(tensors=(*_ATTENTION, *_GATED), biases=dict.fromkeys(_QKV, "always")),
    "qwen3": Architecture(
        tensors=(*_ATTENTION, *_HEAD_NORMS, *_GATED),
        biases=dict.fromkeys((*_QKV, "attn_output"), "attention_bias"),
        neutral_config=(("mlp_bias", False),),
    ),
    "gemma2": Architecture(
        tensors=(*_ATTENTION, *_GATED, *_POST_NORMS),
        pattern=2,
        window=4096,
        softcaps=(50.0, 30.0),
        hidden_scaled=(46,),
        activations=_GELU_TANH,
        neutral_config=_CAUSAL,
    ),
    "gemma3": Architecture(
        tensors=(*_ATTENTION, *_HEAD_NORMS, *_GATED, *_POST_NORMS),
        pattern=6,
        window_rope_base=10_000.0,
        hidden_scaled=(62,),
        activations=_GELU_TANH,
        neutral_config=_CAUSAL,
    ),
    "phi3": Architecture(
        tensors=(*_ATTENTION, *_GATED),
        windowed=True,
        rope_tensors=("rope_factors_long", "rope_factors_short"),
        fused={"attn_qkv": _QKV, "ffn_up": ("ffn_gate", "ffn_up")},
        neutral_config=_NO_BIASES,
    ),
    "gpt2": Architecture(
        tensors=(*_ATTENTION, ("ffn_norm", "hidden", ""), ("ffn_up", "ffn", "hidden"), ("ffn_down", "hidden", "ffn")),
        biases=dict.fromkeys(("attn_norm", *_QKV, "attn_output", "ffn_norm", "ffn_up", "ffn_down"), "always"),
        ends=(("output_norm", "hidden", ""), ("position_embd", "context", "hidden")),
        end_biases=("output_norm",),
        rope=False,
        eps="attention.layer_norm_epsilon",
        fused={"attn_qkv": _QKV},
        activations=_GELU_TANH,
        neutral_config=(("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False), ("add_cross_attention", False)),
    ),
}


def gguf_layout(architecture: Architecture) -> Layout:
    """The layout of GGUF files: canonical names, fused tensors apart."""
    whole = {name: (name,) for name, _, _ in architecture.tensors}
    ends = {name: name for name in ("token_embd", "output", *(name for name, _, _ in architecture.ends))}
    ignored = "|".join(rf"{name}\.weight" for name in architecture.rope_tensors) or r"(?!)"
    views = dict.fromkeys(architecture.interleaved, "interleaved")
    return Layout("blk.", {**whole, **architecture.fused}, ends, views=views, ignored=ignored)


_BLOCK = {
    "input_layernorm": ("attn_norm",),
    "self_attn.o_proj": ("attn_output",),
    "post_attention_layernorm": ("ffn_norm",),
    "mlp.down_proj": ("ffn_down",),
}
_LAYER = {
    **_BLOCK,
    "self_attn.q_proj": ("attn_q",),
    "self_attn.k_proj": ("attn_k",),
    "self_attn.v_proj": ("attn_v",),
    "mlp.gate_proj": ("ffn_gate",),
    "mlp.up_proj": ("ffn_up",),
}
_LAYER_HEAD_NORMS = {"self_attn.q_norm": ("attn_q_norm",), "self_attn.k_norm": ("attn_k_norm",)}
_LAYER_POST_NORMS = {
    "post_attention_layernorm": ("post_attention_norm",),
    "pre_feedforward_layernorm": ("ffn_norm",),
    "post_feedforward_layernorm": ("post_ffw_norm",),
}
_ENDS = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
_ROTARY = r".*\.rotary_emb\.(inv_freq|cos_cached|sin_cached)"
_PLUS_ONE = dict.fromkeys(
    ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "attn_q_norm", "attn_k_norm", "output_norm"), "plus_one"
)
_DECODER = Layout("layers.", _LAYER, _ENDS, roots=("model.", ""), ignored=_ROTARY)
_GEMMA3 = Layout(
    "layers.",
    {**_LAYER, **_LAYER_HEAD_NORMS, **_LAYER_POST_NORMS},
    _ENDS,
    roots=("model.language_model.", "language_model.model.", "language_model.", "model.", ""),
    views=_PLUS_ONE,
    ignored=rf"{_ROTARY}|(model\.)?(vision_tower|multi_modal_projector)\..*",
)

CHECKPOINTS: dict[str, tuple[str, Layout]] = {
    "llama": ("llama", _DECODER),
    "mistral": ("mistral", _DECODER),
    "qwen2": ("qwen2", _DECODER),
    "qwen3": ("qwen3", Layout("layers.", {**_LAYER, **_LAYER_HEAD_NORMS}, _ENDS, roots=("model.", ""), ignored=_ROTARY)),
    "gemma2": (
        "gemma2",
        Layout("layers.", {**_LAYER, **_LAYER_POST_NORMS}, _ENDS, roots=("model.", ""), views=_PLUS_ONE, ignored=_ROTARY),
    ),
    "gemma3": ("gemma3", _GEMMA3),
    "gemma3_text": ("gemma3", _GEMMA3),
    "phi3": (
        "phi3",
        Layout(
            "layers.",
            {**_BLOCK, "self_attn.qkv_proj": _QKV, "mlp.gate_up_proj": ("ffn_gate", "ffn_up")},
            _ENDS,
            roots=("model.", ""),
            ignored=_ROTARY,
        ),
    ),
    "gpt2": (
        "gpt2",
        Layout(
            "h.",
            {
                "ln_1": ("attn_norm",),
                "attn.c_attn": _QKV,
                "attn.c_proj": ("attn_output",),
                "ln_2": ("ffn_norm",),
                "mlp.c_fc": ("ffn_up",),
                "mlp.c_proj": ("ffn_down",),
            },
            {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "lm_head": "output"},
            roots=("transformer.", ""),
            views=dict.fromkeys((*_QKV, "attn_output", "ffn_up", "ffn_down"), "transposed"),
            ignored=r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)",
        ),
    ),
}
"""`model_type` of a config.json → the architecture that computes it and the layout of its safetensors files."""
