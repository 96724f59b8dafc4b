"""Canaries: each of their answers is held against those that the others gave at about that time, as far as these pass the router.

An answer is bad that is none, that begins late, or that goes on slowly: beyond `SLOWER` times the median of the others'. Streams and whole
answers, whose first byte is their last, have medians of their own. The others are bad too, now and then; what speaks against the canary
is by how much more often it is. That is summed up as a likelihood ratio (Page's test, a repeated sequential one of Wald's), so that few
answers are enough where all are bad, and an hour of good ones does not hide that it has become worse.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby
from math import inf, log, sqrt
from statistics import median
from typing import Final, NamedTuple

JUDGED_SECONDS: Final = 5.0
"""Time behind a stream's first byte at which it is judged, unless it ends before: good and bad ones alike, so that neither come first."""
PACED_BYTES: Final = 1_000
"""Bytes behind the first ones from which on a stream that has ended has a pace."""
SLOWER: Final = 2.0
LEAST_COMPARED: Final = 32
RECENT_SECONDS: Final = 2.0
"""The others' answers make the medians for so long, and until so many newer ones have come: loads change."""
MOST_COMPARED: Final = 512
LEAST_OF_A_KIND: Final = 8
"""Answers that make a median, or a share."""
REMEMBERED: Final = 1_024
"""Answers of the others that tell how often they are bad."""
LEAST_BAD, MOST_BAD = 0.03, 0.95
"""Share of them that is bad at least, as few tell of no smaller one, and at most: where all are, none tells of a canary."""
DEVIATIONS: Final = 1.64
"""Standard errors by which that share is taken to be larger than it was found."""
WORSE: Final = (0.6, 0.25)
"""Parts of the others' good answers that would be bad of a canary that is plainly worse, and of one that is a little."""
EVIDENCE: Final = log(1e5)
"""Logarithm of the likelihood ratio at which a canary is stopped."""
MOST_A_SECOND: Final = 2.5
"""Part of it that the answers of a second add: what is bad together may have one cause that passes."""


class Outcome(NamedTuple):
    """An answer as it is known at a time `at`.

    is_good  it is one, or will be
    seconds  to its first byte; inf: it has ended without
    pace     seconds per byte behind that; None: too few to tell, or its client read slowly
    """

    at: float
    is_good: bool
    seconds: float
    pace: float | None
    is_stream: bool


class Limits(NamedTuple):
    """The first byte of whole answers and of streams, in seconds, and the pace of these beyond which they are bad; inf: not known yet."""

    whole: float = inf
    stream: float = inf
    pace: float = inf

    def is_bad(self, outcome: Outcome) -> bool:
        """True for an answer that is none, late or slow."""
        late = self.stream if outcome.is_stream else self.whole
        return not outcome.is_good or outcome.seconds > late or (outcome.pace is not None and outcome.pace > self.pace)


class Usual:
    """The last answers of all that are no canaries."""

    def __init__(self) -> None:
        self._last: deque[Outcome] = deque(maxlen=MOST_COMPARED)
        self._were_bad: deque[bool] = deque(maxlen=REMEMBERED)
        self.limits = Limits()
        self.bad: float | None = None
        """Share of them that is bad, with its uncertainty; None: there are too few."""

    def hear(self, outcomes: Sequence[Outcome], now: float) -> None:
        """Adds the answers since the last look, and reckons anew."""
        self._last.extend(outcomes)
        while len(self._last) > LEAST_COMPARED and self._last[0].at < now - RECENT_SECONDS:
            self._last.popleft()
        if len(self._last) < LEAST_COMPARED:
            return
        answered = [each for each in self._last if each.is_good and each.seconds < inf]
        whole, stream = ([each.seconds for each in answered if each.is_stream is kind] for kind in (False, True))
        self.limits = Limits(_limit(whole), _limit(stream), _limit([each.pace for each in answered if each.pace is not None]))
        are_bad = [self.limits.is_bad(each) for each in (outcomes if self._were_bad else self._last)]
        self._were_bad.extend(are_bad)
        usually = _upper(sum(self._were_bad) / len(self._were_bad), len(self._were_bad))
        just_now = [*self._were_bad][-max(LEAST_OF_A_KIND, len(are_bad)) :]
        self.bad = min(MOST_BAD, max(LEAST_BAD, usually, sum(just_now) / len(just_now)))

    @property
    def patience(self) -> float:
        """Seconds behind which an answer that has not begun is late, whatever it will be."""
        return max(JUDGED_SECONDS, self.limits.whole, self.limits.stream)


def _limit(found: Sequence[float]) -> float:
    return SLOWER * median(found) if len(found) >= LEAST_OF_A_KIND else inf


def _upper(share: float, count: int) -> float:
    """The upper end of Wilson's interval of a share."""
    square = DEVIATIONS**2
    return (share + square / (2 * count) + sqrt(square * (share * (1 - share) / count + square / (4 * count**2)))) / (1 + square / count)


class Trial:
    """One canary's. `evidence` that it is worse, as each of `WORSE`: at `EVIDENCE` it is stopped."""

    def __init__(self) -> None:
        self.evidence = [0.0] * len(WORSE)

    def hear(self, outcomes: Iterable[Outcome], usual: Usual) -> bool:
        """Weighs its answers since the last look; True: it is worse."""
        if usual.bad is None:
            return False
        for _, second in groupby(outcomes, lambda each: int(each.at)):
            are_bad = [usual.limits.is_bad(each) for each in second]
            for at, part in enumerate(WORSE):
                worse = usual.bad + part * (1 - usual.bad)
                against, in_favour = log(worse / usual.bad), log((1 - worse) / (1 - usual.bad))
                found = sum(are_bad) * against + (len(are_bad) - sum(are_bad)) * in_favour
                self.evidence[at] = max(0.0, self.evidence[at] + min(MOST_A_SECOND, found))
        return max(self.evidence) >= EVIDENCE
