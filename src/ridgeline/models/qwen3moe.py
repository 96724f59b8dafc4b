"""Qwen 3 with experts. Qwen Team 2025, "Qwen3 Technical Report": heads of queries and keys are normalised; some layers may be dense."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.models.declare import (
    ATTENTION,
    ATTENTION_BIASES,
    EXPERT_NAMES,
    EXPERTS,
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
    model_types=("qwen3_moe",),
    tensors=(*ATTENTION, *HEAD_NORMS, GATED_FFN[0]),
    parts={"dense": GATED_FFN[1:], "sparse": EXPERTS},
    defaults={
        **UNTIED,
        "head_dim": 128,
        "use_sliding_window": False,
        "max_window_layers": 28,
        "decoder_sparse_step": 1,
        "norm_topk_prob": False,
    },
    checkpoint=TensorNames({**LAYER_NAMES, **HEAD_NORM_NAMES, **EXPERT_NAMES}),
    biases=ATTENTION_BIASES,
    routing={"normalise": True},
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
        x = g.add(x, _experts(g, facts, w, f, i) if (i, "ffn_gate_inp") in w else _dense(g, w, f, i))
    x = g.rms_norm(x, w["output_norm"], facts.eps)
    g.tap("hidden", x)
    return g.linear(g.select(x), w["token_embd" if facts.tied else "output"])


def _experts(g: Recorder, facts: ModelFacts, w: Weights, f: Handle, layer: int) -> Handle:
    assert facts.experts is not None
    ids, weights = g.route(f, w[layer, "ffn_gate_inp"], **facts.experts.routing)
    gate, up = g.linear_experts(f, ids, w[layer, "ffn_gate_exps"]), g.linear_experts(f, ids, w[layer, "ffn_up_exps"])
    return g.combine(g.linear_experts(g.glu(gate, up, "silu"), ids, w[layer, "ffn_down_exps"]), weights)


def _dense(g: Recorder, w: Weights, f: Handle, layer: int) -> Handle:
    h = g.glu(g.linear(f, w[layer, "ffn_gate"]), g.linear(f, w[layer, "ffn_up"]), "silu")
    return g.linear(h, w[layer, "ffn_down"])


def _linear(g: Recorder, w: Weights, x: Handle, layer: int, name: str) -> Handle:
    y = g.linear(x, w[layer, name])
    return g.add_bias(y, w[layer, f"{name}.bias"]) if (layer, f"{name}.bias") in w else y
