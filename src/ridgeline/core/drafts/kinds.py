"""Who drafts, by the word of `--speculative`."""

from ridgeline.core.drafts.drafter import Drafter
from ridgeline.core.drafts.model import DraftCache, ModelDrafter
from ridgeline.core.drafts.prompt_lookup import PromptLookupDrafter

Price = tuple[tuple[int, int, float], ...]


def make_drafter(kind: str, max_depth: int, price: Price, barrier: bool, cache: DraftCache | None) -> Drafter:
    """A drafter of at most `max_depth` ids per row and step.

    price    (tokens, samples, seconds) of steps, measured at the start
    barrier  without drafts steps run ahead of each other
    cache    of the draft model, where `kind` is "draft"
    """
    if kind == "draft":
        assert cache is not None, "there is no draft model"
        return ModelDrafter(max_depth, price, barrier, cache)
    return PromptLookupDrafter(max_depth, price, barrier)
