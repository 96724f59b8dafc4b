"""The watch behind a change of a knob or of the model: what the server yielded before and behind it, and the way back where it yields less.

Two figures are compared over equal times: the share of requests that were good, of all that ended or were refused, where enough did; and
tokens per second, where requests waited in both times (else fewer came, and the change is not to blame).
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ridgeline.observe.metrics import Metrics
from ridgeline.observe.requests import Result
from ridgeline.server.knobs import Value, knob_values, set_knob
from ridgeline.server.service import Service

Tell = Callable[..., None]
"""Writes a line of the audit: what was done, and fields."""

PERIOD_SECONDS: Final = 0.5
KEPT_SECONDS: Final = 600.0
MIN_ENDED: Final = 20
"""Requests of each time whose shares are compared."""
MAX_SHARE_LOSS: Final = 0.1
MAX_PACE_LOSS: Final = 0.1
FULL_SHARE: Final = 0.8
"""Share of the looks of a time at which something waited: its tokens per second are the most there are."""


@dataclass(frozen=True, slots=True)
class Look:
    """Counters of the metrics at a time."""

    at: float
    good: int
    ended: int
    tokens: int
    is_full: bool


@dataclass(frozen=True, slots=True)
class Yield:
    """The yield of a server in a time. `share`: of requests that were good, None where too few ended; `pace`: tokens per second, None where
    nothing waited."""

    share: float | None
    pace: float | None


class Looks:
    """Looks at the metrics, one each `PERIOD_SECONDS`, for the last minutes."""

    def __init__(self) -> None:
        self._looks: deque[Look] = deque()

    def take(self, metrics: Metrics, now: float) -> None:
        """Notes the counters."""
        refused = sum(count for (status, _), count in metrics.answers.items() if status in (429, 503))
        ended, good = sum(metrics.results.values()) + refused, metrics.results[Result.GOOD]
        self._looks.append(Look(now, good, ended, metrics.generation_tokens, metrics.waiting > 0))
        while self._looks[0].at < now - 2 * KEPT_SECONDS:
            self._looks.popleft()

    def between(self, start: float, end: float) -> Yield:
        """The yield from one time to another."""
        looks = [look for look in self._looks if start <= look.at <= end]
        if len(looks) < 2:
            return Yield(None, None)
        first, last = looks[0], looks[-1]
        ended, is_full = last.ended - first.ended, sum(look.is_full for look in looks) >= FULL_SHARE * len(looks)
        share = (last.good - first.good) / ended if ended >= MIN_ENDED else None
        return Yield(share, (last.tokens - first.tokens) / (last.at - first.at) if is_full else None)


def loss(before: Yield, behind: Yield) -> str | None:
    """The reason why a change is to be taken back, in words and numbers; None where nothing speaks against it."""
    if before.share is not None and behind.share is not None and before.share - behind.share > MAX_SHARE_LOSS:
        return f"{behind.share:.0%} of requests were good, {before.share:.0%} before"
    if before.pace is not None and behind.pace is not None and behind.pace < (1 - MAX_PACE_LOSS) * before.pace:
        return f"{behind.pace:.0f} tokens/s with requests waiting, {before.pace:.0f} before"
    return None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a change. `reason`: in words; `is_loss`: for which it is to be taken back."""

    is_loss: bool
    reason: str


class Watches:
    """Watches of knobs, one for each that has been changed; the newest change counts. Who changes something else asks `compare`."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._looks = Looks()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def look(self) -> None:
        """Looks at the metrics until it is cancelled."""
        while True:
            self._looks.take(self._service.current_metrics(), time.monotonic())
            await asyncio.sleep(PERIOD_SECONDS)

    def begin(self, tell: Tell, name: str, old: Value, new: Value, seconds: float) -> None:
        """Watches a change for so many seconds, and takes it back where it costs goodput."""
        if name in self._tasks:
            self._tasks[name].cancel()
        self._tasks[name] = asyncio.create_task(self._judge(tell, name, old, new, seconds))

    def last(self, seconds: float) -> Yield:
        """The yield of the last so many seconds."""
        now = time.monotonic()
        return self._looks.between(now - seconds, now)

    async def compare(self, before: Yield, seconds: float) -> Verdict:
        """The verdict on a change of now, after so many seconds, against the yield of as many before it."""
        at = time.monotonic()
        await asyncio.sleep(seconds)
        behind = self._looks.between(at, at + seconds)
        found = loss(before, behind)
        if found is not None:
            return Verdict(is_loss=True, reason=found)
        judged = (before.share is not None and behind.share is not None) or (before.pace is not None and behind.pace is not None)
        return Verdict(is_loss=False, reason="no loss of goodput" if judged else "not judged: too little load")

    async def _judge(self, tell: Tell, name: str, old: Value, new: Value, seconds: float) -> None:
        found = await self.compare(self.last(seconds), seconds)
        if found.is_loss and knob_values(self._service)[name] == new:
            set_knob(self._service, name, old)
            tell("rolled back", knob=name, old=new, new=old, reason=found.reason)
        elif not found.is_loss:
            tell("kept", knob=name, new=new, reason=found.reason)
        del self._tasks[name]

    def cancel(self) -> None:
        """Ends all watches."""
        for task in self._tasks.values():
            task.cancel()
