"""Layers that predict further tokens (MTP). DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", section 2.2: one more layer of the model
reads, beside an id, the hidden state of the token before it. GLM-4.5 and Qwen3-Next have the same, but that the latter's hidden states are
always those behind a last norm, its own ones too. Embedding and head are the model's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.models.decoder import layer

if TYPE_CHECKING:
    from ridgeline.compute.graph import Handle, Recorder, Weights
    from ridgeline.facts.model import ModelFacts

NAMES = {"enorm": ("enorm",), "hnorm": ("hnorm",), "eh_proj": ("eh_proj",), "shared_head.norm": ("head_norm",)}
"""Tensors of the layer beside those of any layer, in safetensors files."""
SHARED = r"model\.layers\.\d+\.(embed_tokens|shared_head\.head)\.weight"
"""Copies of the model's embedding and head, which files have again."""
QWEN_NAMES = {
    "pre_fc_norm_embedding": ("enorm",), "pre_fc_norm_hidden": ("hnorm",), "fc": ("eh_proj",), "norm": ("next_norm",),
}  # fmt: skip
"""The same of Qwen3-Next: behind `Architecture.predictor`."""

GGUF_NAMES = {f"nextn.{name}": (own,) for name, own in (
    ("enorm", "enorm"), ("hnorm", "hnorm"), ("eh_proj", "eh_proj"), ("shared_head_norm", "head_norm"),
)}  # fmt: skip
"""The same in GGUF files."""
QWEN_GGUF_NAMES = GGUF_NAMES | {"nextn.shared_head_norm": ("next_norm",)}
GGUF_SHARED = r"blk\.\d+\.nextn\.(embed_tokens|shared_head_head)\.weight"


def step(g: Recorder, facts: ModelFacts, w: Weights, number: int) -> Handle:
    """Records the layer, which is one for every `number`; returns the logits [S, vocabulary]."""
    hidden = g.rms_norm(g.take("features", facts.hidden), w[0, "hnorm"], facts.eps)
    ids = g.rms_norm(g.embed(g.input.ids, w["token_embd"]), w[0, "enorm"], facts.eps)
    x = layer(g, facts, w, g.linear(g.join_heads(ids, hidden, heads=1), w[0, "eh_proj"]), 0)
    normed = g.rms_norm(x, w[0, "next_norm" if (0, "next_norm") in w else "head_norm"], facts.eps)
    g.tap("next", normed if (0, "next_norm") in w else x)
    g.tap("hidden", normed)
    logits: Handle = g.linear(g.select(normed), w["token_embd" if facts.tied else "output"])
    return logits
