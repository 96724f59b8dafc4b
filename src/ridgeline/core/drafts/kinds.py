"""Drafters by the word of `--speculative`."""

from ridgeline.core.drafts.auto import AutoDrafter
from ridgeline.core.drafts.drafter import Drafter
from ridgeline.core.drafts.heads import HeadDrafter
from ridgeline.core.drafts.model import DraftCache, ModelDrafter
from ridgeline.core.drafts.prompt_lookup import PromptLookupDrafter
from ridgeline.core.drafts.suffix import OutputStore

Price = tuple[tuple[int, int, float], ...]


def make_drafter(kind: str, max_depth: int, price: Price, barrier: bool, cache: DraftCache | None) -> Drafter:
    """A drafter of at most `max_depth` ids per row and step.

    kind     ngram: repetition of a sequence's own ids; suffix: and of recent outputs; draft, mtp: a draft model or heads; auto: all that
             there is
    price    (tokens, samples, seconds) of steps, measured at the start
    barrier  without drafts steps run ahead of each other
    cache    of the draft model; None: there is none
    """
    if kind in ("draft", "mtp"):
        assert cache is not None, "there is no draft model"
        return model_drafter(max_depth, price, barrier, cache)
    repetition = PromptLookupDrafter(max_depth, price, barrier, None if kind == "ngram" else OutputStore())
    if kind != "auto" or cache is None:
        return repetition
    return AutoDrafter(repetition, model_drafter(max_depth, price, barrier, cache._replace(ahead=0)), price)


def model_drafter(max_depth: int, price: Price, barrier: bool, cache: DraftCache) -> ModelDrafter:
    """The drafter of a draft model, or of heads."""
    return (HeadDrafter if cache.window else ModelDrafter)(max_depth, price, barrier, cache)
