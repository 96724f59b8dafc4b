"""The pace of steps: what decoding rows and prefill tokens cost, by the start's measurement and by every step since; steps that are late.

Pure arithmetic on seconds of results, which a recording holds, so that a replay decides alike.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ridgeline.core.events import Event, StepLate
from ridgeline.core.params import Limits
from ridgeline.core.step_time import UNBOUNDED, StepSeconds

if TYPE_CHECKING:
    from ridgeline.core.commit import InFlightStep

PRIOR_STEPS: Final = ((1, 0), (16, 0), (1, 64))
"""Steps (decoding rows, prefill tokens) at which the start's measurement counts as …"""
PRIOR_WEIGHT: Final = 1.0
"""… so many measured ones, scaled by how fast the machine is now: noise at the start is forgotten soon, and what has not occurred since
keeps its share of a step."""
DECAY: Final = 1 / 64
"""Share of what is known that a step replaces. Steps with prefill tokens replace none of those without, nor the reverse."""
ALONE_WEIGHT: Final = 1 / 8
"""Weight of a step without decoding rows. It has no bound, so it is often far larger than the steps that the pace is for."""
MAX_RATIO: Final = 4.0
"""A measurement counts as this multiple of its estimate at most: one slow step says little."""
FAR: Final = 1.5
"""Distance of measurements from their estimates from which on those before them are forgotten: they would say little of a machine that
has slowed down, or behind a start that was wrong."""
STEPS_PER_UPDATE: Final = 16
"""Steps between two updates; the first come after 1, 2, 4 and 8, and one behind every late step with prefill tokens."""
MAX_GROWTH: Final = 2.0
MAX_GAIN: Final = 8.0
"""Factor by which a prefill token may become cheaper in one update, and be cheaper than at the start on a machine of the same speed: where
steps take long for other reasons, its part of them may look like nothing."""
SWEEPS: Final = 12
"""Sweeps of the solver, which begins at the estimate before."""
TINY: Final = 1e-9
"""Seconds that stand for none."""
LATE: Final = 1.25
"""A step with decoding rows is late if it takes this multiple of its target: estimates err by less."""

Sums = list[float]
"""Weighted sums over steps of 1, rows, tokens, rows², rows · tokens, tokens², seconds, rows · seconds, tokens · seconds."""


class Pace:
    """An estimate of `StepSeconds` that follows what is measured: least squares of relative errors over the last hundred steps or so, with
    costs that are not negative.

    prior   as measured at the start
    target  seconds that a step with decoding rows may take (`--step-ms`)
    """

    def __init__(self, prior: StepSeconds, target: float) -> None:
        self.target = target
        self.seconds = self._prior = prior
        self._speed = 1.0
        """Seconds of the last steps, as a multiple of what the start's measurement says of them."""
        self._without_prefill, self._with_prefill = _nothing(), _nothing()
        self._measured: list[tuple[int, int, float]] = []
        self._until_update = 1

    def limited(self, limits: Limits) -> Limits:
        """Returns `limits` with the prefill budget of this pace."""
        return replace(limits, mixed_tokens=self.seconds.mixed_tokens(self.target), row_tokens=self.seconds.row_tokens)

    def tokens_within(self, itl_ms: Iterable[int]) -> int | None:
        """Returns the prefill tokens that fit a step without decoding rows that takes as long as the least of these inter-token latencies,
        where 0 is the target; each decoding row counts as `row_tokens`. None where all are."""
        named = set(itl_ms)
        if not any(named) or not self.seconds.token:
            return None
        seconds = min(each / 1e3 or self.target for each in named)
        return min(UNBOUNDED, max(0, int((seconds - self.seconds.fixed) / self.seconds.token)))

    def measure(self, rows: int, tokens: int, seconds: float) -> bool:
        """Notes the time of a step of `rows` decoding rows and `tokens` prefill tokens. Returns True if the estimate has changed."""
        self._measured.append((rows, tokens, seconds))
        is_too_late = tokens and rows and seconds > LATE * self.target
        if len(self._measured) < self._until_update and not is_too_late:
            return False
        self._until_update = min(STEPS_PER_UPDATE, 2 * self._until_update)
        self._update()
        return True

    def on_commit(self, step: "InFlightStep", seconds: float, now: float, limits: Limits, emit: Callable[[Event], None]) -> Limits:
        """Notes the time of a committed step, and tells of it if it is late. Returns the limits of the next plans."""
        plan = step.plan
        computed, rows = len(plan.tokens), len(plan.row)
        if computed > rows and not step.drafted:
            rows = plan.count.count(1)
        if seconds > LATE * self.target and rows:
            emit(StepLate(plan.step, now, seconds, rows, computed - rows))
        if step.drafted or not self.measure(rows, computed - rows, seconds):
            return limits
        return self.limited(limits)

    def _update(self) -> None:
        fixed, row, token = self.seconds.fixed, self.seconds.row, self.seconds.token
        steps: list[tuple[int, int, float, float]] = []
        total, speed, prefilling = 0.0, 0.0, 0
        for rows, tokens, seconds in self._measured:
            expected = fixed + row * rows + token * tokens or TINY
            ratio = min(MAX_RATIO, seconds / expected)
            total += ratio
            speed += ratio * expected / max(TINY, self._prior.of(rows, tokens))
            prefilling += tokens > 0
            steps.append((rows, tokens, expected, ratio))
        mean = max(total / len(steps), 1 / MAX_RATIO)
        self._speed += (speed / len(steps) - self._speed) * min(1.0, 2 * len(steps) / STEPS_PER_UPDATE)
        if not 1 / FAR < mean < FAR:
            self._without_prefill, self._with_prefill = _nothing(), _nothing()
        self._without_prefill = _faded(self._without_prefill, len(steps) - prefilling)
        self._with_prefill = _faded(self._with_prefill, prefilling)
        for rows, tokens, expected, ratio in steps:
            weight = (1.0 if rows else ALONE_WEIGHT) / ((ratio if ratio > mean else mean) * expected) ** 2
            _add(self._with_prefill if tokens else self._without_prefill, rows, tokens, ratio * expected, weight)
        sums = [sum(each) for each in zip(self._without_prefill, self._with_prefill, strict=True)]
        for rows, tokens in PRIOR_STEPS:
            start = self._speed * self._prior.of(rows, tokens)
            _add(sums, rows, tokens, start, PRIOR_WEIGHT / max(TINY, start, mean * self.seconds.of(rows, tokens)) ** 2)
        self.seconds = _solve(sums, self.seconds, max(self._speed * self._prior.token / MAX_GAIN, token / MAX_GROWTH))
        self._measured.clear()


def _nothing() -> Sums:
    return [0.0] * 9


def _faded(sums: Sums, steps: int) -> Sums:
    """The rest of sums behind so many further steps."""
    keep = (1.0 - DECAY) ** steps
    return [keep * value for value in sums] if steps else sums


def _add(sums: Sums, rows: int, tokens: int, seconds: float, weight: float) -> None:
    weighted = weight * rows
    sums[0] += weight
    sums[1] += weighted
    sums[3] += weighted * rows
    sums[6] += weight * seconds
    sums[7] += weighted * seconds
    if tokens:
        sums[2] += weight * tokens
        sums[4] += weighted * tokens
        sums[5] += weight * tokens * tokens
        sums[8] += weight * tokens * seconds


def _solve(sums: Sums, before: StepSeconds, least_token: float) -> StepSeconds:
    """Minimises the squared error over costs that are not negative, one cost at a time; a prefill token costs `least_token` at least."""
    one, rows, tokens, rows2, mixed, tokens2, seconds, row_seconds, token_seconds = sums
    fixed, row, token = before.fixed, before.row, before.token
    for _ in range(SWEEPS):
        fixed = max(0.0, (seconds - rows * row - tokens * token) / one)
        row = max(0.0, (row_seconds - rows * fixed - mixed * token) / rows2)
        token = max(least_token, (token_seconds - tokens * fixed - mixed * row) / tokens2)
    return StepSeconds(fixed, row, token)
