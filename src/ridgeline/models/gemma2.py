"""Gemma 2. Gemma Team 2024, "Gemma 2": capped scores and logits, a window in every second layer.

Norm weights already contain the + 1 of the paper's (1 + w).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.models.declare import (
    ATTENTION,
    GATED_FFN,
    GELU_TANH,
    LAYER_NAMES,
    NO_BIASES,
    NORMS_PLUS_ONE,
    POST_NORM_NAMES,
    POST_NORMS,
    TIED,
    Architecture,
    TensorNames,
)

if TYPE_CHECKING:
    from ridgeline.compute.graph import Handle, Recorder, Weights
    from ridgeline.facts.model import ModelFacts

ARCHITECTURE = Architecture(
    model_types=("gemma2",),
    tensors=(*ATTENTION, *GATED_FFN, *POST_NORMS),
    defaults={
        **TIED,
        "head_dim": 256,
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    keys={"hidden_act": "hidden_activation"},
    required_config=(*NO_BIASES, ("use_bidirectional_attention", False)),
    activations=GELU_TANH,
    checkpoint=TensorNames({**LAYER_NAMES, **POST_NORM_NAMES}, transforms=NORMS_PLUS_ONE),
    window_pattern=2,
    default_window=4096,
    softcaps=(50.0, 30.0),
    hidden_scaled_layers=(46,),
)


def step(g: Recorder, facts: ModelFacts, w: Weights) -> Handle:
    """Records one step; returns the logits [S, vocabulary]."""
    x = g.scale(g.embed(g.input.ids, w["token_embd"]), facts.hidden**0.5)
    for i, kind in enumerate(facts.layer_kinds):
        a = g.rms_norm(x, w[i, "attn_norm"], facts.eps)
        q, k, v = g.linear(a, w[i, "attn_q"]), g.linear(a, w[i, "attn_k"]), g.linear(a, w[i, "attn_v"])
        q = g.rope(q, g.input.positions, facts.rope[kind], head_dim=facts.head_dim)
        k = g.rope(k, g.input.positions, facts.rope[kind], head_dim=facts.head_dim)
        g.kv_write(k, v, layer=i)
        window = facts.window if kind == "window" else 0
        o = g.attention(q, layer=i, head_dim=facts.head_dim, scale=facts.attn_scale, window=window, softcap=facts.attn_softcap)
        x = g.add(x, g.rms_norm(g.linear(o, w[i, "attn_output"]), w[i, "post_attention_norm"], facts.eps))
        f = g.rms_norm(x, w[i, "ffn_norm"], facts.eps)
        h = g.glu(g.linear(f, w[i, "ffn_gate"]), g.linear(f, w[i, "ffn_up"]), "gelu_tanh")
        x = g.add(x, g.rms_norm(g.linear(h, w[i, "ffn_down"]), w[i, "post_ffw_norm"], facts.eps))
    x = g.rms_norm(x, w["output_norm"], facts.eps)
    g.tap("hidden", x)
    logits = g.linear(g.select(x), w["token_embd" if facts.tied else "output"])
    return g.softcap(logits, facts.final_softcap) if facts.final_softcap else logits
