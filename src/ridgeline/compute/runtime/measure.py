"""Seconds of steps on this machine, measured at the start: decode, prefill, verification of drafts. Steps measure themselves later.

Owns which steps are measured. They write to the reserved block 0, which is never read for a request; their ids are
the backend's.
"""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Final

from ridgeline.core.step_time import StepSeconds

Seconds = Callable[[Sequence[int], Sequence[int]], float]
"""The type of `Backend.seconds`: tokens and sampled positions of each row → seconds."""

ROUNDS: Final = 4
ROUND_SECONDS: Final = 0.05
"""No round but the second begins after so many seconds."""
FIRST_ROUND_SECONDS: Final = 2.0
"""No second round begins after so many: a large model takes seconds for one. The pace follows the steps that come (`core.pace`)."""
PRICED_TOKENS: Final = (1, 4, 8, 2, 6, 3, 16, 17, 12, 24, 32)
"""Tokens per row whose steps are priced: the cost of a step is a staircase of these, not a line. Those that span it come first."""
PRICE_SECONDS: Final = 0.3
"""After so many seconds no third round of prices goes on."""

Timed = tuple[int, int, float]
"""Rows of a step, tokens of each, seconds."""


def time_steps(seconds: Seconds, rows: int, tokens: int) -> tuple[Timed, ...]:
    """Three steps, each the quickest of some rounds: one row, `rows` rows, and one row of `tokens`; none where steps have one token."""
    if tokens < 2:
        return ()
    rows = min(rows, tokens)
    began, best = perf_counter(), [float("inf")] * 3
    for number in range(ROUNDS):
        for index, counts in enumerate(([1], [1] * rows, [tokens])):
            best[index] = min(best[index], seconds(counts, [1] * len(counts)))
        if perf_counter() - began > (ROUND_SECONDS if number else FIRST_ROUND_SECONDS):
            break
    one, many, chunk = best
    return (1, 1, one), (rows, 1, many), (1, tokens, chunk)


def step_seconds(timed: tuple[Timed, ...]) -> StepSeconds | None:
    """Cost model of steps, of what `time_steps` found; None where that is nothing."""
    if not timed:
        return None
    (_, _, one), (rows, _, many), (_, tokens, chunk) = timed
    return StepSeconds.fit(one, many if rows > 1 else one, max(2, rows), chunk, tokens)


def price(seconds: Seconds, tokens: int) -> tuple[tuple[int, int, float], ...]:
    """(tokens, sampled positions, seconds) of steps in which one row has at most `tokens` tokens and samples at each of them.

    The quickest of two rounds or more: the first time of a size is often that of cold code and memory. Larger steps are left out where
    `FIRST_ROUND_SECONDS` are over before they have been measured once.
    """
    began, best = perf_counter(), dict[int, float]()
    for number in range(ROUNDS):
        for count in PRICED_TOKENS:
            if count <= tokens:
                best[count] = min(best.get(count, float("inf")), seconds([count], [count]))
            if perf_counter() - began > (PRICE_SECONDS if number > 1 else FIRST_ROUND_SECONDS):
                return _table(best)
    return _table(best)


def _table(best: dict[int, float]) -> tuple[tuple[int, int, float], ...]:
    """No size costs more than a larger one: what a step was held up by is not its price, and a size that looks dear is never tried."""
    return tuple([(count, count, min(seconds for more, seconds in best.items() if more >= count)) for count in sorted(best)])
