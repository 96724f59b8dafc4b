"""What penalties, bad words and prompt scores look back at: a sequence's ids. Kept only for rows whose parameters ask for it."""

from collections.abc import Sequence


class History:
    """All ids of a sequence, and how often each was an output.

    counts  id → occurrences among the outputs; 0 for an id that only the prompt has
    """

    __slots__ = ("counts", "ids")

    def __init__(self, ids: Sequence[int], prompt_tokens: int) -> None:
        """A sequence that knows `ids`, the first `prompt_tokens` of which are its prompt: it does not matter how it came to know them."""
        self.ids = list(ids[:prompt_tokens])
        self.counts = dict.fromkeys(self.ids, 0)
        for token in ids[prompt_tokens:]:
            self.push(token)

    def push(self, token: int) -> None:
        """One more output."""
        self.ids.append(token)
        self.counts[token] = self.counts.get(token, 0) + 1
