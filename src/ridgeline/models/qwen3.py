"""Qwen 3 (dense). Qwen Team 2025, "Qwen3 Technical Report": heads of queries and keys are normalised.

Projections of attention have a bias where the checkpoint has one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.models.declare import (
    ATTENTION,
    ATTENTION_BIASES,
    GATED_FFN,
    HEAD_NORM_NAMES,
    HEAD_NORMS,
    LAYER_NAMES,
    UNTIED,
    Architecture,
    TensorNames,
)

if TYPE_CHECKING:
    from ridgeline.compute.graph import Handle, Recorder, Weights
    from ridgeline.facts.model import ModelFacts

ARCHITECTURE = Architecture(
    model_types=("qwen3",),
    tensors=(*ATTENTION, *HEAD_NORMS, *GATED_FFN),
    defaults={**UNTIED, "head_dim": 128, "use_sliding_window": False, "max_window_layers": 28},
    required_config=(("mlp_bias", False),),
    checkpoint=TensorNames({**LAYER_NAMES, **HEAD_NORM_NAMES}),
    biases=ATTENTION_BIASES,
    least_rope_bases=((8_193, 1, 1e5),),
)


def step(g: Recorder, facts: ModelFacts, w: Weights) -> Handle:
    """Records one step; returns the logits [S, vocabulary]."""
    x = g.embed(g.input.ids, w["token_embd"])
    for i, kind in enumerate(facts.layer_kinds):
        a = g.rms_norm(x, w[i, "attn_norm"], facts.eps)
        q, k, v = _linear(g, w, a, i, "attn_q"), _linear(g, w, a, i, "attn_k"), _linear(g, w, a, i, "attn_v")
        q = g.rms_norm(q, w[i, "attn_q_norm"], facts.eps)
        k = g.rms_norm(k, w[i, "attn_k_norm"], facts.eps)
        q = g.rope(q, g.input.positions, facts.rope[kind], head_dim=facts.head_dim)
        k = g.rope(k, g.input.positions, facts.rope[kind], head_dim=facts.head_dim)
        g.kv_write(k, v, layer=i)
        window = facts.window if kind == "window" else 0
        o = g.attention(q, layer=i, head_dim=facts.head_dim, scale=facts.attn_scale, window=window)
        x = g.add(x, _linear(g, w, o, i, "attn_output"))
        f = g.rms_norm(x, w[i, "ffn_norm"], facts.eps)
        h = g.glu(g.linear(f, w[i, "ffn_gate"]), g.linear(f, w[i, "ffn_up"]), "silu")
        x = g.add(x, g.linear(h, w[i, "ffn_down"]))
    x = g.rms_norm(x, w["output_norm"], facts.eps)
    g.tap("hidden", x)
    return g.linear(g.select(x), w["token_embd" if facts.tied else "output"])


def _linear(g: Recorder, w: Weights, x: Handle, layer: int, name: str) -> Handle:
    y = g.linear(x, w[layer, name])
    return g.add_bias(y, w[layer, f"{name}.bias"]) if (layer, f"{name}.bias") in w else y
