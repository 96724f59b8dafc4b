"""Gemma 3 (text). Gemma Team 2025, "Gemma 3 Technical Report".

Norm weights already contain the + 1 of the paper's (1 + w).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.models.declare import (
    ATTENTION,
    GATED_FFN,
    GELU_TANH,
    HEAD_NORM_NAMES,
    HEAD_NORMS,
    LAYER_NAMES,
    NO_BIASES,
    NORMS_PLUS_ONE,
    POST_NORM_NAMES,
    POST_NORMS,
    ROTARY_BUFFERS,
    TIED,
    Architecture,
    TensorNames,
)

if TYPE_CHECKING:
    from ridgeline.compute.graph import Handle, Recorder, Weights
    from ridgeline.facts.model import ModelFacts

ARCHITECTURE = Architecture(
    model_types=("gemma3", "gemma3_text"),
    tensors=(*ATTENTION, *HEAD_NORMS, *GATED_FFN, *POST_NORMS),
    defaults={
        **TIED,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    },
    keys={"hidden_act": "hidden_activation"},
    required_config=(*NO_BIASES, ("use_bidirectional_attention", False)),
    activations=GELU_TANH,
    checkpoint=TensorNames(
        {**LAYER_NAMES, **HEAD_NORM_NAMES, **POST_NORM_NAMES},
        roots=("model.language_model.", "language_model.model.", "language_model.", "model.", ""),
        transforms=NORMS_PLUS_ONE,
        ignored=rf"{ROTARY_BUFFERS}|(model\.)?(vision_tower|multi_modal_projector)\..*",
    ),
    window_pattern=6,
    window_rope_base=10_000.0,
    hidden_scaled_layers=(62,),
    least_rope_bases=((1, 1, 1e6),),
)


def step(g: Recorder, facts: ModelFacts, w: Weights) -> Handle:
    """Records one step; returns the logits [S, vocabulary]."""
    x = g.scale(g.embed(g.input.ids, w["token_embd"]), facts.hidden**0.5)
    for i, kind in enumerate(facts.layer_kinds):
        a = g.rms_norm(x, w[i, "attn_norm"], facts.eps)
        q, k, v = g.linear(a, w[i, "attn_q"]), g.linear(a, w[i, "attn_k"]), g.linear(a, w[i, "attn_v"])
        q = g.rms_norm(q, w[i, "attn_q_norm"], facts.eps)
        k = g.rms_norm(k, w[i, "attn_k_norm"], facts.eps)
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
