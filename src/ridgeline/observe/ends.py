"""Counts of how answers end: at their first token, in a loop, or never by themselves. Shares that no sound model has are told once.

Damaged weights, a wrong chat template and wrong stop ids show here while every status is 200. Counts only: no answer is changed.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from ridgeline.core.events import Finish

MAX_PERIOD: Final = 16
REPEATS: Final = 4
RECENT: Final = MAX_PERIOD * REPEATS
"""Ids at the end of an answer that `repeats` looks at."""
LEAST_LOOP: Final = 24
"""Ids that a loop must fill: `!!!!` and a short list are none."""

WINDOW: Final = 50
LEAST_ANSWERS: Final = 20
SUSPICIOUS_SHARE: Final = 0.5
"""Share of the last `WINDOW` answers, once there are `LEAST_ANSWERS`."""
LONG_ANSWER: Final = 64
"""Tokens from which on an answer had the room to end by itself."""


def repeats(ids: Sequence[int]) -> bool:
    """True where the last `RECENT` ids are an n-gram over and over."""
    last = list(ids)[-RECENT:]
    for period in range(1, MAX_PERIOD + 1):
        count = max(LEAST_LOOP, REPEATS * period)
        if len(last) >= count and last[-count + period :] == last[-count:-period]:
            return True
    return False


class AnswerEnds:
    """Counters of ends. `add` each answer once.

    chats  the model was trained to chat: base models continue until their limit, and often in a loop
    """

    def __init__(self) -> None:
        self.chats = True
        self.immediate = 0
        """Answers whose first token ended them."""
        self.runaway = 0
        """Answers that reached their limit in a loop."""
        self._recent: deque[str] = deque(maxlen=WINDOW)
        self._endless = 0
        self._told: set[str] = set()

    def add(self, reason: Finish, tokens: int, *, by_itself: bool, loops: bool) -> str | None:
        """Counts an answer of so many tokens; returns a sentence for the log where a share has become suspicious, each once.

        by_itself  a token ended it that its client did not name
        loops      its last ids repeat
        """
        kind = "immediate" if by_itself and tokens <= 1 else "runaway" if reason is Finish.LENGTH and loops else "sound"
        self.immediate += kind == "immediate"
        self.runaway += kind == "runaway"
        self._recent.append(kind)
        self._endless = -1 if by_itself or self._endless < 0 else self._endless + (reason is Finish.LENGTH and tokens >= LONG_ANSWER)
        if self._endless == WINDOW and self.chats:
            return self._tell("endless", f"none of {WINDOW} answers of {LONG_ANSWER} tokens and more has ended by itself so far")
        count = self._recent.count(kind)
        is_usual = kind == "sound" or (kind == "runaway" and not self.chats)
        if is_usual or len(self._recent) < LEAST_ANSWERS or count < SUSPICIOUS_SHARE * len(self._recent):
            return None
        what = "ended at their first token" if kind == "immediate" else "repeat themselves up to their limit"
        return self._tell(kind, f"{count} of the last {len(self._recent)} answers {what}")

    def _tell(self, kind: str, cause: str) -> str | None:
        if kind in self._told:
            return None
        self._told.add(kind)
        return f"{cause}: see the checks in /v1/models; if they found nothing, look at chat template, prompts and sampling parameters"
