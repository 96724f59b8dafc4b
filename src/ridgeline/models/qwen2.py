"""Qwen 2 and 2.5. Qwen Team 2024, "Qwen2 Technical Report": queries, keys and values have biases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.models.declare import ATTENTION, DECODER_NAMES, GATED_FFN, QKV, UNTIED, Architecture

if TYPE_CHECKING:
    from ridgeline.compute.graph import Handle, Recorder, Weights
    from ridgeline.facts.model import ModelFacts

ARCHITECTURE = Architecture(
    model_types=("qwen2",),
    tensors=(*ATTENTION, *GATED_FFN),
    defaults={**UNTIED, "use_sliding_window": False, "max_window_layers": 28},
    checkpoint=DECODER_NAMES,
    biases=dict.fromkeys(QKV, "always"),
    least_rope_bases=((8_193, 1, 1e5),),
)


def step(g: Recorder, facts: ModelFacts, w: Weights) -> Handle:
    """Records one step; returns the logits [S, vocabulary]."""
    x = g.embed(g.input.ids, w["token_embd"])
    for i, kind in enumerate(facts.layer_kinds):
        a = g.rms_norm(x, w[i, "attn_norm"], facts.eps)
        q = g.add_bias(g.linear(a, w[i, "attn_q"]), w[i, "attn_q.bias"])
        k = g.add_bias(g.linear(a, w[i, "attn_k"]), w[i, "attn_k.bias"])
        v = g.add_bias(g.linear(a, w[i, "attn_v"]), w[i, "attn_v.bias"])
        q = g.rope(q, g.input.positions, facts.rope[kind], head_dim=facts.head_dim)
        k = g.rope(k, g.input.positions, facts.rope[kind], head_dim=facts.head_dim)
        g.kv_write(k, v, layer=i)
        window = facts.window if kind == "window" else 0
        o = g.attention(q, layer=i, head_dim=facts.head_dim, scale=facts.attn_scale, window=window)
        x = g.add(x, g.linear(o, w[i, "attn_output"]))
        f = g.rms_norm(x, w[i, "ffn_norm"], facts.eps)
        h = g.glu(g.linear(f, w[i, "ffn_gate"]), g.linear(f, w[i, "ffn_up"]), "silu")
        x = g.add(x, g.linear(h, w[i, "ffn_down"]))
    x = g.rms_norm(x, w["output_norm"], facts.eps)
    g.tap("hidden", x)
    return g.linear(g.select(x), w["token_embd" if facts.tied else "output"])
