"""`bad_words`: no id that would complete one of them. Prompt and outputs count alike, as in transformers (vLLM leaves the prompt out)."""

from collections.abc import Sequence

from ridgeline.compute.decoding.edit import Edit, Logits, ban
from ridgeline.compute.decoding.history import History
from ridgeline.core.params import RowParams


def asked(row: RowParams, output: int) -> bool:
    """See `Edit.asked`."""
    return bool(row.sampling.bad_words)


def apply(logits: Logits, row: RowParams, history: History | None) -> None:
    """Bans what would complete a word."""
    assert history is not None
    ban(logits, completing(row.sampling.bad_words, history.ids))


def completing(words: Sequence[tuple[int, ...]], ids: Sequence[int]) -> list[int]:
    """Ids, ascending, behind which one of `words` would stand complete at the end of `ids`."""
    found = {word[-1] for word in words if len(word) - 1 <= len(ids) and tuple(ids[len(ids) - len(word) + 1 :]) == word[:-1]}
    return sorted(found)


BAD_WORDS = Edit(asked, apply, looks_back=True)
