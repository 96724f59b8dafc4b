"""EAGLE-3. Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test", section 3.1: the
features are hidden states of three layers of the target, low, middle and high, brought to one width; behind a drafted id the layer's own
output stands for them. Its head knows the more frequent ids alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.models.decoder import attention, gated

if TYPE_CHECKING:
    from ridgeline.compute.graph import Handle, Recorder, Weights
    from ridgeline.facts.model import ModelFacts


def step(g: Recorder, facts: ModelFacts, w: Weights, number: int, *, norm_before_residual: bool = False) -> Handle:
    """Records the layer: `number` 0 reads hidden states of the target [T, 3 · theirs], every other its own [T, hidden]. Returns the logits
    [S, ids that it drafts]. `norm_before_residual`: attention is added to the normed features, as some are trained (speculators)."""
    if number:
        x = g.take("features", facts.hidden)
    else:
        x = g.linear(g.take("features", w["fc"].shape[1]), w["fc"])
        x = g.add_bias(x, w["fc.bias"]) if "fc.bias" in w else x
    ids = g.rms_norm(g.embed(g.input.ids, w["token_embd"]), w[0, "attn_norm"], facts.eps)
    normed = g.rms_norm(x, w[0, "hidden_norm"], facts.eps)
    both = g.join_heads(ids, normed, heads=1)
    x = g.add(normed if norm_before_residual else x, attention(g, facts, w, both, 0))
    x = g.add(x, gated(g, w, g.rms_norm(x, w[0, "ffn_norm"], facts.eps), 0, ""))
    g.tap("next", x)
    x = g.rms_norm(x, w["output_norm"], facts.eps)
    g.tap("hidden", x)
    logits: Handle = g.linear(g.select(x), w["output"])
    return logits
