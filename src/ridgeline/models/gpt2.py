"""GPT-2. Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".

Positions are a learned table, every layer sees all of them, and every norm and projection has a bias.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.models.declare import ATTENTION, GELU_TANH, QKV, Architecture, TensorNames

if TYPE_CHECKING:
    from ridgeline.compute.graph import Handle, Recorder, Weights
    from ridgeline.facts.model import ModelFacts

ARCHITECTURE = Architecture(
    model_types=("gpt2",),
    tensors=(*ATTENTION, ("ffn_norm", "hidden"), ("ffn_up", "ffn", "hidden"), ("ffn_down", "hidden", "ffn")),
    defaults={"tie_word_embeddings": True, "n_inner": None, "n_positions": 1024, "layer_norm_epsilon": 1e-5},
    keys={
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
        "intermediate_size": "n_inner",
        "rms_norm_eps": "layer_norm_epsilon",
        "hidden_act": "activation_function",
    },
    required_config=(("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False), ("add_cross_attention", False)),
    activations=GELU_TANH,
    checkpoint=TensorNames(
        {
            "ln_1": ("attn_norm",),
            "attn.c_attn": QKV,
            "attn.c_proj": ("attn_output",),
            "ln_2": ("ffn_norm",),
            "mlp.c_fc": ("ffn_up",),
            "mlp.c_proj": ("ffn_down",),
        },
        "h.",
        {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "lm_head": "output"},
        roots=("transformer.", ""),
        transforms=dict.fromkeys((*QKV, "attn_output", "ffn_up", "ffn_down"), "transposed"),
        ignored=r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)",
    ),
    biases=dict.fromkeys(("attn_norm", *QKV, "attn_output", "ffn_norm", "ffn_up", "ffn_down"), "always"),
    outer_tensors=(("output_norm", "hidden"), ("position_embd", "context", "hidden")),
    outer_biases=("output_norm",),
    fused={"attn_qkv": QKV},
    has_rope=False,
    eps_key="attention.layer_norm_epsilon",
)


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
