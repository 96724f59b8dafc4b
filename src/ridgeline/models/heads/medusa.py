"""Medusa. Cai et al. 2024, "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads", section 2.1.1: head k reads
the final hidden state of a token and says which id comes k + 2 behind it. Residual blocks of one product each, then a head of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ridgeline.compute.graph import Handle, Recorder, Weights
    from ridgeline.facts.model import ModelFacts


def step(g: Recorder, facts: ModelFacts, w: Weights, number: int) -> Handle:
    """Records head `number`; returns its logits [S, vocabulary]."""
    x = g.take("features", facts.hidden)
    block = 0
    while (number, f"res_{block}") in w:
        y = g.add_bias(g.linear(x, w[number, f"res_{block}"]), w[number, f"res_{block}.bias"])
        x = g.add(x, g.activate(y, activation="silu"))
        block += 1
    g.tap("hidden", x)
    logits: Handle = g.linear(g.select(x), w[number, "head"])
    return logits
