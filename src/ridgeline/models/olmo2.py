"""OLMo 2. OLMo Team 2024, "2 OLMo 2 Furious": norms stand behind attention and feed-forward; queries and keys are norm whole.

Projections of attention have a bias where the checkpoint has one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.models.declare import (
    ATTENTION,
    ATTENTION_BIASES,
    GATED_FFN,
    HEAD_NORM_NAMES,
    LAYER_NAMES,
    POST_NORM_NAMES,
    POST_NORMS,
    UNTIED,
    Architecture,
    TensorNames,
)

if TYPE_CHECKING:
    from ridgeline.compute.graph import Handle, Recorder, Weights
    from ridgeline.facts.model import ModelFacts

ARCHITECTURE = Architecture(
    model_types=("olmo2",),
    tensors=(*ATTENTION[1:], ("attn_q_norm", "queries"), ("attn_k_norm", "keys"), *GATED_FFN[1:], *POST_NORMS),
    defaults={**UNTIED, "rms_norm_eps": 1e-5},
    checkpoint=TensorNames({**LAYER_NAMES, **HEAD_NORM_NAMES, **POST_NORM_NAMES}),
    biases=ATTENTION_BIASES,
    least_rope_bases=((1, 100_000, 1e5),),
)


def step(g: Recorder, facts: ModelFacts, w: Weights) -> Handle:
    """Records one step; returns the logits [S, vocabulary]."""
    x = g.embed(g.input.ids, w["token_embd"])
    for i, kind in enumerate(facts.layer_kinds):
        q = g.rms_norm(_linear(g, w, x, i, "attn_q"), w[i, "attn_q_norm"], facts.eps)
        k = g.rms_norm(_linear(g, w, x, i, "attn_k"), w[i, "attn_k_norm"], facts.eps)
        q = g.rope(q, g.input.positions, facts.rope[kind], head_dim=facts.head_dim)
        k = g.rope(k, g.input.positions, facts.rope[kind], head_dim=facts.head_dim)
        g.kv_write(k, _linear(g, w, x, i, "attn_v"), layer=i)
        window = facts.window if kind == "window" else 0
        o = g.attention(q, layer=i, head_dim=facts.head_dim, scale=facts.attn_scale, window=window)
        x = g.add(x, g.rms_norm(_linear(g, w, o, i, "attn_output"), w[i, "post_attention_norm"], facts.eps))
        h = g.glu(g.linear(x, w[i, "ffn_gate"]), g.linear(x, w[i, "ffn_up"]), "silu")
        x = g.add(x, g.rms_norm(g.linear(h, w[i, "ffn_down"]), w[i, "post_ffw_norm"], facts.eps))
    x = g.rms_norm(x, w["output_norm"], facts.eps)
    g.tap("hidden", x)
    return g.linear(g.select(x), w["token_embd" if facts.tied else "output"])


def _linear(g: Recorder, w: Weights, x: Handle, layer: int, name: str) -> Handle:
    y = g.linear(x, w[layer, name])
    return g.add_bias(y, w[layer, f"{name}.bias"]) if (layer, f"{name}.bias") in w else y
