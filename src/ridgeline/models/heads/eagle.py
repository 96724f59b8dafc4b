"""EAGLE. Li et al. 2024, "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty", section 3.1: a layer predicts the target's
next final hidden state from an id and the hidden state of the token before it. Embedding and head are the target's; the layer's first norm
is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.models.decoder import attention, gated

if TYPE_CHECKING:
    from ridgeline.compute.graph import Handle, Recorder, Weights
    from ridgeline.facts.model import ModelFacts


def step(g: Recorder, facts: ModelFacts, w: Weights, number: int) -> Handle:
    """Records the layer, which is one for every `number`; returns the logits [S, vocabulary]."""
    features = g.take("features", facts.hidden)
    x = g.linear(g.join_heads(g.embed(g.input.ids, w["token_embd"]), features, heads=1), w["fc"])
    x = g.add_bias(x, w["fc.bias"]) if "fc.bias" in w else x
    a = g.rms_norm(x, w[0, "attn_norm"], facts.eps) if (0, "attn_norm") in w else x
    x = g.add(x, attention(g, facts, w, a, 0))
    x = g.add(x, gated(g, w, g.rms_norm(x, w[0, "ffn_norm"], facts.eps), 0, ""))
    g.tap("next", x)
    g.tap("hidden", x)
    logits: Handle = g.linear(g.select(x), w["token_embd" if facts.tied else "output"])
    return logits
