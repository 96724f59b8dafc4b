"""GPT-2: what its step computes. Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".

Positions are a learned table, every layer sees all of them, and every norm and projection has a bias.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ridgeline.compute.graph import Handle, Recorder, Weights
    from ridgeline.facts.model import ModelFacts


def step(g: Recorder, facts: ModelFacts, w: Weights) -> Handle:
    """Records one step; returns the logits [S, vocabulary]."""
    x = g.add(g.embed(g.input.ids, w["token_embd"]), g.embed(g.input.positions, w["position_embd"]))
    for i in range(facts.layers):
        a = g.layer_norm(x, w[i, "attn_norm"], w[i, "attn_norm.bias"], facts.eps)
        g.kv_write(_linear(g, w, a, i, "attn_k"), _linear(g, w, a, i, "attn_v"), layer=i)
        o = g.attention(_linear(g, w, a, i, "attn_q"), layer=i, head_dim=facts.head_dim, scale=facts.attn_scale)
        x = g.add(x, _linear(g, w, o, i, "attn_output"))
        f = g.layer_norm(x, w[i, "ffn_norm"], w[i, "ffn_norm.bias"], facts.eps)
        h = g.activate(_linear(g, w, f, i, "ffn_up"), "gelu_tanh")
        x = g.add(x, _linear(g, w, h, i, "ffn_down"))
    x = g.layer_norm(x, w["output_norm"], w["output_norm.bias"], facts.eps)
    g.tap("hidden", x)
    return g.linear(g.select(x), w["token_embd" if facts.tied else "output"])


def _linear(g: Recorder, w: Weights, x: Handle, layer: int, name: str) -> Handle:
    return g.add_bias(g.linear(x, w[layer, name]), w[layer, f"{name}.bias"])
