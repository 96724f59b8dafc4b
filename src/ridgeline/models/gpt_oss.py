"""gpt-oss. OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card": windows in every second layer, a sink per head, experts with biases.

Files of transformers hold gate and up of an expert in one tensor, whose outputs take turns, and MXFP4 as they were trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.models.declare import ATTENTION, ATTENTION_BIASES, EXPERTS, LAYER_NAMES, QKV, UNTIED, Architecture, TensorNames

if TYPE_CHECKING:
    from ridgeline.compute.graph import Handle, Recorder, Weights
    from ridgeline.facts.model import ModelFacts

_EXPERTS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")

ARCHITECTURE = Architecture(
    model_types=("gpt_oss",),
    tensors=(*ATTENTION, ("attn_sinks", "heads"), ("post_attention_norm", "hidden")),
    parts={"sparse": EXPERTS},
    defaults={**UNTIED, "head_dim": 64, "sliding_window": 128, "attention_bias": True, "rms_norm_eps": 1e-5, "rope_theta": 150_000.0},
    required_config=(("attention_bias", True), ("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)),
    checkpoint=TensorNames(
        {
            "input_layernorm": ("attn_norm",),
            "post_attention_layernorm": ("post_attention_norm",),
            **{name: parts for name, parts in LAYER_NAMES.items() if name.startswith("self_attn.")},
            "self_attn.sinks": ("attn_sinks",),
            "mlp.router": ("ffn_gate_inp",),
            "mlp.experts.gate_up_proj": ("ffn_gate_exps", "ffn_up_exps"),
            "mlp.experts.gate_up_proj_bias": ("ffn_gate_exps.bias", "ffn_up_exps.bias"),
            "mlp.experts.down_proj": ("ffn_down_exps",),
            "mlp.experts.down_proj_bias": ("ffn_down_exps.bias",),
        },
        transforms={"ffn_down_exps": "transposed"},
        alternating=frozenset(("ffn_gate_exps", "ffn_up_exps")),
    ),
    biases=dict.fromkeys((*ATTENTION_BIASES, "ffn_gate_inp", *_EXPERTS), "always"),
    window_pattern=2,
    default_window=128,
    yarn_truncated=False,
    routing={"scores": "softmax_chosen"},
)


def step(g: Recorder, facts: ModelFacts, w: Weights) -> Handle:
    """Records one step; returns the logits [S, vocabulary]."""
    x = g.embed(g.input.ids, w["token_embd"])
    for i, kind in enumerate(facts.layer_kinds):
        a = g.rms_norm(x, w[i, "attn_norm"], facts.eps)
        q, k, v = (g.add_bias(g.linear(a, w[i, name]), w[i, f"{name}.bias"]) for name in QKV)
        q = g.rope(q, g.input.positions, facts.rope[kind], head_dim=facts.head_dim)
        k = g.rope(k, g.input.positions, facts.rope[kind], head_dim=facts.head_dim)
        g.kv_write(k, v, layer=i)
        window = facts.window if kind == "window" else 0
        sinks = w[i, "attn_sinks"]
        o = g.attention(q, layer=i, sinks=sinks, head_dim=facts.head_dim, scale=facts.attn_scale, window=window)
        x = g.add(x, g.add_bias(g.linear(o, w[i, "attn_output"]), w[i, "attn_output.bias"]))
        x = g.add(x, _experts(g, facts, w, g.rms_norm(x, w[i, "post_attention_norm"], facts.eps), i))
    x = g.rms_norm(x, w["output_norm"], facts.eps)
    g.tap("hidden", x)
    return g.linear(g.select(x), w["token_embd" if facts.tied else "output"])


def _experts(g: Recorder, facts: ModelFacts, w: Weights, f: Handle, layer: int) -> Handle:
    assert facts.experts is not None
    ids, weights = g.route(f, w[layer, "ffn_gate_inp"], bias=w[layer, "ffn_gate_inp.bias"], **facts.experts.routing)

    def product(x: Handle, name: str) -> Handle:
        made: Handle = g.linear_experts(x, ids, w[layer, name], bias=w[layer, f"{name}.bias"])
        return made

    h = g.glu(product(f, "ffn_gate_exps"), product(f, "ffn_up_exps"), "clamped_swish")
    return g.combine(product(h, "ffn_down_exps"), weights)
