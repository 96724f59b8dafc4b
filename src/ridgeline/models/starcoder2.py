"""StarCoder2. Lozhkov et al. 2024, "StarCoder 2 and The Stack v2": RoPE beside LayerNorm, a feed-forward without a gate.

Norms have biases, projections where the checkpoint has them; each layer looks back a window, where the file names one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.models.declare import ATTENTION, COMMON_NAMES, GELU_TANH, QKV, Architecture, TensorNames

if TYPE_CHECKING:
    from ridgeline.compute.graph import Handle, Recorder, Weights
    from ridgeline.facts.model import ModelFacts

ARCHITECTURE = Architecture(
    model_types=("starcoder2",),
    tensors=(*ATTENTION, ("ffn_norm", "hidden"), ("ffn_up", "ffn", "hidden"), ("ffn_down", "hidden", "ffn")),
    defaults={"tie_word_embeddings": True, "norm_epsilon": 1e-5, "use_bias": True, "num_key_value_heads": 2, "sliding_window": None},
    keys={"rms_norm_eps": "norm_epsilon"},
    activations=GELU_TANH,
    checkpoint=TensorNames(
        {
            **COMMON_NAMES,
            "self_attn.q_proj": ("attn_q",),
            "self_attn.k_proj": ("attn_k",),
            "self_attn.v_proj": ("attn_v",),
            "mlp.c_fc": ("ffn_up",),
            "mlp.c_proj": ("ffn_down",),
        }
    ),
    biases={
        **dict.fromkeys(("attn_norm", "ffn_norm"), "always"),
        **dict.fromkeys((*QKV, "attn_output", "ffn_up", "ffn_down"), "use_bias"),
    },
    outer_biases=("output_norm",),
    windows_everywhere=("gguf", "config"),
    eps_key="attention.layer_norm_epsilon",
)


def step(g: Recorder, facts: ModelFacts, w: Weights) -> Handle:
    """Records one step; returns the logits [S, vocabulary]."""
    x = g.embed(g.input.ids, w["token_embd"])
    for i, kind in enumerate(facts.layer_kinds):
        a = g.layer_norm(x, w[i, "attn_norm"], w[i, "attn_norm.bias"], facts.eps)
        q, k, v = _linear(g, w, a, i, "attn_q"), _linear(g, w, a, i, "attn_k"), _linear(g, w, a, i, "attn_v")
        q = g.rope(q, g.input.positions, facts.rope[kind], head_dim=facts.head_dim)
        k = g.rope(k, g.input.positions, facts.rope[kind], head_dim=facts.head_dim)
        g.kv_write(k, v, layer=i)
        window = facts.window if kind == "window" else 0
        o = g.attention(q, layer=i, head_dim=facts.head_dim, scale=facts.attn_scale, window=window)
        x = g.add(x, _linear(g, w, o, i, "attn_output"))
        f = g.layer_norm(x, w[i, "ffn_norm"], w[i, "ffn_norm.bias"], facts.eps)
        h = g.activate(_linear(g, w, f, i, "ffn_up"), "gelu_tanh")
        x = g.add(x, _linear(g, w, h, i, "ffn_down"))
    x = g.layer_norm(x, w["output_norm"], w["output_norm.bias"], facts.eps)
    g.tap("hidden", x)
    return g.linear(g.select(x), w["token_embd" if facts.tied else "output"])


def _linear(g: Recorder, w: Weights, x: Handle, layer: int, name: str) -> Handle:
    y = g.linear(x, w[layer, name])
    return g.add_bias(y, w[layer, f"{name}.bias"]) if (layer, f"{name}.bias") in w else y
