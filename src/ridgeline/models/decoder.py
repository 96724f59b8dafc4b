"""The step that most decoders share: norms in front of attention and feed-forward, RoPE, a gate, and in some layers experts.

What a family has beside that shows in its tensors: norms of queries and keys (of each head or whole), biases, a latent in place of keys and
values, a gate of attention, a recurrence in its place, shared experts, a gate of theirs, a bias that takes part in the choice of experts.
Of its numbers, factors other than one are applied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ridgeline.compute.graph import Handle, Recorder, Weights
    from ridgeline.facts.model import ModelFacts, StateLayers


def step(g: Recorder, facts: ModelFacts, w: Weights) -> Handle:
    """Records one step; returns the logits [S, vocabulary]."""
    x = _scaled(g, g.embed(g.input.ids, w["token_embd"]), facts.embedding_scale)
    for i in range(facts.layers):
        x = layer(g, facts, w, x, i)
    x = g.rms_norm(x, w["output_norm"], facts.eps)
    g.tap("hidden", x)
    logits = g.linear(g.select(x), w["token_embd" if facts.tied else "output"])
    return _scaled(g, logits, facts.logit_scale)


def layer(g: Recorder, facts: ModelFacts, w: Weights, x: Handle, i: int) -> Handle:
    """Layer i: x [T, hidden] → [T, hidden]."""
    mix = _latent_attention if (i, "attn_kv_a_mqa") in w else _gated_delta if (i, "ssm_conv1d") in w else attention
    x = g.add(x, _scaled(g, mix(g, facts, w, g.rms_norm(x, w[i, "attn_norm"], facts.eps), i), facts.residual_scale))
    f = g.rms_norm(x, w[i, "ffn_norm" if (i, "ffn_norm") in w else "post_attention_norm"], facts.eps)
    y = _experts(g, facts, w, f, i) if (i, "ffn_gate_inp") in w else gated(g, w, f, i, "")
    added: Handle = g.add(x, _scaled(g, y, facts.residual_scale))
    return added


def attention(g: Recorder, facts: ModelFacts, w: Weights, a: Handle, layer: int) -> Handle:
    """Plain attention of a layer behind its norm: a [T, inputs of the queries] → [T, hidden]. Writes its keys and values first."""
    kind, gate = facts.layer_kinds[layer], None
    q, k, v = (_linear(g, w, a, layer, name) for name in ("attn_q", "attn_k", "attn_v"))
    if q.width == 2 * facts.heads * facts.head_dim:  # of every head the query, then the gate of its output
        q, gate = (g.take_heads(q, heads=facts.heads, first=first, width=facts.head_dim) for first in (0, facts.head_dim))
    if (layer, "attn_q_norm") in w:
        q = g.rms_norm(q, w[layer, "attn_q_norm"], facts.eps)
        k = g.rms_norm(k, w[layer, "attn_k_norm"], facts.eps)
    q = g.rope(q, g.input.positions, facts.rope[kind], head_dim=facts.head_dim)
    k = g.rope(k, g.input.positions, facts.rope[kind], head_dim=facts.head_dim)
    g.kv_write(k, v, layer=layer)
    window = facts.window if kind == "window" else 0
    o = g.attention(q, layer=layer, head_dim=facts.head_dim, scale=facts.attn_scale, window=window)
    return _linear(g, w, o if gate is None else g.glu(gate, o, "sigmoid"), layer, "attn_output")


def _latent_attention(g: Recorder, facts: ModelFacts, w: Weights, a: Handle, layer: int) -> Handle:
    """All heads attend to one latent, which is K and V: queries are brought into its space, and what is attended to out of it.

    This absorbed form takes more multiplications than heads of K and V made of latents, but is one at every number of tokens, and reads the
    cache once.
    """
    latent, kind = facts.widths.latent, facts.layer_kinds[layer]
    assert latent is not None
    head, rope = {"plain": latent.plain, "rotary": latent.rotary}, {"rope": facts.rope[kind], "head_dim": latent.rotary}
    q = _linear(g, w, _narrow(g, facts, w, a, layer), layer, "attn_q" if (layer, "attn_q") in w else "attn_q_b")
    plain, turned = g.split_heads(q, **head)
    turned = g.rope(turned, g.input.positions, **rope)
    q = g.join_heads(g.linear_heads(plain, w[layer, "attn_k_b"]), turned, heads=facts.heads)
    c, k = g.split_heads(_linear(g, w, a, layer, "attn_kv_a_mqa"), plain=latent.rank, rotary=latent.rotary)
    c = g.rms_norm(c, w[layer, "attn_kv_a_norm"], facts.eps)
    g.kv_write(g.join_heads(c, g.rope(k, g.input.positions, **rope), heads=1), c, layer=layer)
    o = g.attention(q, layer=layer, head_dim=latent.cached, scale=facts.attn_scale, value_dim=latent.rank)
    return _linear(g, w, g.linear_heads(o, w[layer, "attn_v_b"]), layer, "attn_output")


def _narrow(g: Recorder, facts: ModelFacts, w: Weights, a: Handle, layer: int) -> Handle:
    """Input of the queries' projection: a, or a latent of their own."""
    if (layer, "attn_q_a") not in w:
        return a
    narrow: Handle = g.rms_norm(_linear(g, w, a, layer, "attn_q_a"), w[layer, "attn_q_a_norm"], facts.eps)
    return narrow


def _gated_delta(g: Recorder, facts: ModelFacts, w: Weights, a: Handle, layer: int) -> Handle:
    """The gated delta rule behind a short convolution of its queries, keys and values; its outputs are normalised per head, and gated."""
    state = facts.state
    assert state is not None
    served = state.value_heads // state.key_heads
    x, z = _channels(g, state, w, a, layer, served * state.value_dim)
    both = _linear(g, w, a, layer, "ssm_ba")
    beta, alpha = (g.take_heads(both, heads=state.key_heads, first=first, width=served) for first in (0, served))
    x = g.short_conv(x, w[layer, "ssm_conv1d"], layer=layer)
    decay = w[layer, "ssm_dt.bias"], w[layer, "ssm_a"]
    o = g.gated_delta(x, beta, alpha, *decay, key_heads=state.key_heads, key_dim=state.key_dim, layer=layer)
    return _linear(g, w, g.glu(z, g.rms_norm(o, w[layer, "ssm_norm"], facts.eps), "silu"), layer, "ssm_out")


def _channels(g: Recorder, state: StateLayers, w: Weights, a: Handle, layer: int, values: int) -> tuple[Handle, Handle]:
    """(queries, keys and values, gates) of all heads: of one matrix, in which a key head has its query, its key, its `values` numbers of
    values and as many gates, or of two."""
    if (layer, "ssm_in") not in w:
        return _linear(g, w, a, layer, "attn_qkv"), _linear(g, w, a, layer, "attn_gate")
    mixed, first, parts = _linear(g, w, a, layer, "ssm_in"), 0, []
    for width in (state.key_dim, state.key_dim, values, values):
        parts.append(g.take_heads(mixed, heads=state.key_heads, first=first, width=width))
        first += width
    q, k, v, z = parts
    return g.join_heads(g.join_heads(q, k, heads=1), v, heads=1), z


def _experts(g: Recorder, facts: ModelFacts, w: Weights, f: Handle, layer: int) -> Handle:
    """The routed experts, and those that every token has."""
    assert facts.experts is not None
    router = [w[layer, "ffn_gate_inp"], *([w[layer, "exp_probs_b.bias"]] if (layer, "exp_probs_b.bias") in w else [])]
    ids, weights = g.route(f, *router, **facts.experts.routing)
    gate, up = g.linear_experts(f, ids, w[layer, "ffn_gate_exps"]), g.linear_experts(f, ids, w[layer, "ffn_up_exps"])
    y: Handle = g.combine(g.linear_experts(g.glu(gate, up, "silu"), ids, w[layer, "ffn_down_exps"]), weights)
    if (layer, "ffn_gate_shexp") not in w:
        return y
    shared = gated(g, w, f, layer, "_shexp")
    if (layer, "ffn_gate_inp_shexp") in w:  # a sigmoid of the token: a router of one expert
        _, weights = g.route(f, w[layer, "ffn_gate_inp_shexp"], k=1, scores="sigmoid")
        shared = g.combine(shared, weights)
    summed: Handle = g.add(y, shared)
    return summed


def gated(g: Recorder, w: Weights, f: Handle, layer: int, suffix: str) -> Handle:
    """Feed-forward with a gate, of the tensors whose names end in `suffix`: f [T, hidden] → [T, hidden]."""
    h = g.glu(_linear(g, w, f, layer, f"ffn_gate{suffix}"), _linear(g, w, f, layer, f"ffn_up{suffix}"), "silu")
    return _linear(g, w, h, layer, f"ffn_down{suffix}")


def _linear(g: Recorder, w: Weights, x: Handle, layer: int, name: str) -> Handle:
    y = g.linear(x, w[layer, name])
    return g.add_bias(y, w[layer, f"{name}.bias"]) if (layer, f"{name}.bias") in w else y


def _scaled(g: Recorder, x: Handle, factor: float) -> Handle:
    return x if factor == 1.0 else g.scale(x, factor)
