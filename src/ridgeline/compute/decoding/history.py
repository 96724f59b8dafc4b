"""What penalties, bad words and prompt scores look back at: a sequence's ids. Kept only for rows whose parameters ask for it."""

from array import array
from collections.abc import Sequence


class History:
    """All ids of a sequence, and how often each was an output.

    seen   each id once, in the order in which they came
    times  how often each of `seen` was an output; 0 for an id that only the prompt has
    """

    __slots__ = ("_places", "ids", "seen", "times")

    def __init__(self, ids: Sequence[int], prompt_tokens: int) -> None:
        """A sequence that knows `ids`, the first `prompt_tokens` of which are its prompt: it does not matter how it came to know them."""
        self.ids = list(ids[:prompt_tokens])
        self.seen = array("i", dict.fromkeys(self.ids))
        self.times = array("i", [0]) * len(self.seen)
        self._places = {token: place for place, token in enumerate(self.seen)}
        for token in ids[prompt_tokens:]:
            self.push(token)

    def push(self, token: int) -> None:
        """One more output."""
        self.ids.append(token)
        place = self._places.setdefault(token, len(self.seen))
        if place == len(self.seen):
            self.seen.append(token)
            self.times.append(0)
        self.times[place] += 1
