"""Heads that draft for a model (Medusa, EAGLE, EAGLE-3, MTP): what a pass reads, by the model's shape and what their papers publish.

Pure. A pass is planned as a model of one layer whose head is the target's or its own; see `facts.headers.heads` for those of a checkpoint.
"""

from dataclasses import dataclass, replace
from typing import Final

from ridgeline.facts.model import CLASSES, ModelFacts
from ridgeline.planning.formats import class_bytes

HEAD_KINDS: Final = ("medusa", "eagle", "eagle3", "mtp")
MEDUSA_HEADS: Final = 4
"""Heads that are planned, each with a vocabulary of its own: Cai et al. 2024, "Medusa"."""
EAGLE3_VOCAB: Final = 32_000
"""Ids that the published EAGLE-3 heads draft. Li et al. 2025, "EAGLE-3"."""
HIDDEN_POSITIONS: Final = 128
"""Positions of a row whose hidden states a server keeps for heads with keys and values."""
HEAD_BYTES: Final = 2
"""Published heads are 16 bits wide, and so are hidden states on a GPU; an MTP layer is stored as the others are."""


@dataclass(frozen=True, slots=True)
class PlannedHeads:
    """Heads of a model.

    one          what a pass reads, as a model of one layer
    copies       passes whose weights are apart
    shares_head  the head is the target's
    most         ids that they draft one behind the other; 0: any number
    kept         bytes of hidden states of a sequence
    """

    kind: str
    one: ModelFacts
    copies: int
    shares_head: bool
    most: int
    kept: int


def plan_heads(target: ModelFacts, kind: str, dtype: str | None, *, native: bool) -> PlannedHeads:
    """Heads of this kind, one of `HEAD_KINDS`, for a target in a weight format (None: as stored); `native`: as a CPU's kernels read it."""
    held, counts = class_bytes(target, dtype, native=native), target.parameters
    name = "head" if counts["head"] else "embedding"
    width, layers = target.hidden, target.layers
    layer = {each: counts[each] // layers for each in ("attention", "ffn")}
    joined = {"medusa": width * width, "eagle3": 3 * width * width}.get(kind, 2 * width * width)
    parameters = dict.fromkeys(CLASSES, 0) | {"head": counts[name]}
    if kind == "medusa":
        parameters |= {"ffn": joined}
    else:
        parameters |= {**layer, "attention": layer["attention"] + joined}
    vocab = target.vocab
    if kind == "eagle3":  # its attention reads the embedding too; its head is its own
        parameters["attention"] += (target.heads + 2 * target.kv_heads) * target.head_dim * width
        vocab = min(vocab, EAGLE3_VOCAB)
        parameters["head"] = vocab * width
    stored = {each: HEAD_BYTES * count for each, count in parameters.items()}
    experts = None
    if kind == "mtp":
        experts = target.experts and replace(target.experts, layers=1)
        parameters["experts"] = counts["experts"] // target.experts.layers if target.experts else 0
        share = {each: held[each] / counts[each] if counts[each] else HEAD_BYTES for each in ("attention", "ffn", "experts")}
        stored |= {each: round(parameters[each] * share[each]) for each in share}
    shares_head = kind in ("eagle", "mtp")
    if shares_head:
        stored["head"] = round(held[name])
    kinds = ("none",) if kind == "medusa" else ("full",)
    one = replace(
        target, name=f"{kind} heads of {target.name}", layers=1, layer_kinds=kinds, window=0, tied=False, vocab=vocab,
        parameters=parameters, stored=stored, packed={}, experts=experts, state=None,
    )  # fmt: skip
    kept = (4 if native else HEAD_BYTES) * width * (3 if kind == "eagle3" else 1) * (1 if kind == "medusa" else HIDDEN_POSITIONS)
    copies, most = (MEDUSA_HEADS, MEDUSA_HEADS) if kind == "medusa" else (1, 0)
    return PlannedHeads(kind, one, copies, shares_head, most, kept)
