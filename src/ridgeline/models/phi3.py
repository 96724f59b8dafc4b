"""Phi-3. Abdin et al. 2024, "Phi-3 Technical Report": files keep q, k, v in one matrix, gate and up in another.

A rotation may turn the first part of a head alone, and has long or short divisors, settled before the step is recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.models.declare import ATTENTION, COMMON_NAMES, GATED_FFN, NO_BIASES, QKV, UNTIED, Architecture, TensorNames

if TYPE_CHECKING:
    from ridgeline.compute.graph import Handle, Recorder, Weights
    from ridgeline.facts.model import ModelFacts

ARCHITECTURE = Architecture(
    model_types=("phi3",),
    tensors=(*ATTENTION, *GATED_FFN),
    defaults={**UNTIED, "rms_norm_eps": 1e-5, "sliding_window": None, "original_max_position_embeddings": 4096},
    required_config=NO_BIASES,
    checkpoint=TensorNames({**COMMON_NAMES, "self_attn.qkv_proj": QKV, "mlp.gate_up_proj": ("ffn_gate", "ffn_up")}),
    fused={"attn_qkv": QKV, "ffn_up": ("ffn_gate", "ffn_up")},
    rope_tensors=("rope_factors_long", "rope_factors_short"),
    windows_everywhere=("gguf", "config"),
)


def step(g: Recorder, facts: ModelFacts, w: Weights) -> Handle:
    """Records one step; returns the logits [S, vocabulary]."""
    x = g.embed(g.input.ids, w["token_embd"])
    for i, kind in enumerate(facts.layer_kinds):
        a = g.rms_norm(x, w[i, "attn_norm"], facts.eps)
        q, k, v = g.linear(a, w[i, "attn_q"]), g.linear(a, w[i, "attn_k"]), g.linear(a, w[i, "attn_v"])
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
