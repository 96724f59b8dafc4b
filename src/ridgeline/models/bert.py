"""BERT. Devlin et al. 2018, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding".

An encoder: every token sees the whole text, positions and types of tokens are learned tables, norms stand behind the sums. All tokens are
of the first type. There is no head here: what is made of a text is a vector.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.models.declare import QKV, Architecture, TensorNames

if TYPE_CHECKING:
    from ridgeline.compute.graph import Handle, Recorder, Weights
    from ridgeline.facts.model import ModelFacts

ARCHITECTURE = Architecture(
    model_types=("bert",),
    tensors=(
        ("attn_q", "queries", "hidden"),
        ("attn_k", "keys", "hidden"),
        ("attn_v", "keys", "hidden"),
        ("attn_output", "hidden", "queries"),
        ("attn_output_norm", "hidden"),
        ("ffn_up", "ffn", "hidden"),
        ("ffn_down", "hidden", "ffn"),
        ("layer_output_norm", "hidden"),
    ),
    defaults={"tie_word_embeddings": True, "layer_norm_eps": 1e-12, "hidden_act": "gelu"},
    keys={"rms_norm_eps": "layer_norm_eps"},
    required_config=(("position_embedding_type", "absolute"), ("is_decoder", False), ("add_cross_attention", False)),
    activations=("gelu",),
    checkpoint=TensorNames(
        {
            "attention.self.query": ("attn_q",),
            "attention.self.key": ("attn_k",),
            "attention.self.value": ("attn_v",),
            "attention.output.dense": ("attn_output",),
            "attention.output.LayerNorm": ("attn_output_norm",),
            "intermediate.dense": ("ffn_up",),
            "output.dense": ("ffn_down",),
            "output.LayerNorm": ("layer_output_norm",),
        },
        "encoder.layer.",
        {
            "embeddings.word_embeddings": "token_embd",
            "embeddings.position_embeddings": "position_embd",
            "embeddings.token_type_embeddings": "token_types",
            "embeddings.LayerNorm": "token_embd_norm",
        },
        roots=("bert.", ""),
        transforms={"token_types": "first_row"},
        ignored=r"(bert\.)?(embeddings\.position_ids|pooler\..*)|cls\..*",
    ),
    biases=dict.fromkeys((*QKV, "attn_output", "attn_output_norm", "ffn_up", "ffn_down", "layer_output_norm"), "always"),
    outer_tensors=(("position_embd", "context", "hidden"), ("token_types", "hidden"), ("token_embd_norm", "hidden")),
    outer_biases=("token_embd_norm",),
    first_rows=("token_types",),
    has_rope=False,
    bidirectional=True,
    eps_key="attention.layer_norm_epsilon",
)


def step(g: Recorder, facts: ModelFacts, w: Weights) -> Handle:
    """Records one step; returns the final hidden states [S, hidden]."""
    x = g.add(g.embed(g.input.ids, w["token_embd"]), g.embed(g.input.positions, w["position_embd"]))
    x = g.layer_norm(g.add_bias(x, w["token_types"]), w["token_embd_norm"], w["token_embd_norm.bias"], facts.eps)
    for i in range(facts.layers):
        g.kv_write(_linear(g, w, x, i, "attn_k"), _linear(g, w, x, i, "attn_v"), layer=i)
        q = _linear(g, w, x, i, "attn_q")
        o = g.attention(q, layer=i, head_dim=facts.head_dim, scale=facts.attn_scale, causal=False)
        x = _norm(g, facts, w, g.add(x, _linear(g, w, o, i, "attn_output")), i, "attn_output_norm")
        h = g.activate(_linear(g, w, x, i, "ffn_up"), "gelu")
        x = _norm(g, facts, w, g.add(x, _linear(g, w, h, i, "ffn_down")), i, "layer_output_norm")
    g.tap("hidden", x)
    return g.select(x)


def _linear(g: Recorder, w: Weights, x: Handle, layer: int, name: str) -> Handle:
    return g.add_bias(g.linear(x, w[layer, name]), w[layer, f"{name}.bias"])


def _norm(g: Recorder, facts: ModelFacts, w: Weights, x: Handle, layer: int, name: str) -> Handle:
    return g.layer_norm(x, w[layer, name], w[layer, f"{name}.bias"], facts.eps)
