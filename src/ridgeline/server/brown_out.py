"""Brown-out: what a server leaves out, step by step, while requests would wait too long, and how it says so.

Owns the ladder and its thresholds. A rung is taken when the expected wait has been too long for a while, and left when it has been short
for longer: the lower threshold and the longer time keep it from swinging. Nothing is left out of an answer whose key has not agreed to
it: drafts and shares of steps change how soon tokens come, never which. Clocks are passed in.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from enum import IntEnum
from math import ceil
from typing import Final

from ridgeline.core.commands import Knob, SetKnob
from ridgeline.core.params import SamplingParams
from ridgeline.errors import OverloadedError
from ridgeline.observe.logs import with_fields
from ridgeline.server.keys import Caller
from ridgeline.server.promises import MAX_RETRY_AFTER_SECONDS

_LOG: Final = logging.getLogger("ridgeline.server")
HEADER: Final = "x-ridgeline-brown-out"
UP_SECONDS, DOWN_SECONDS = 1.0, 5.0
"""Time for which the wait must be too long, or short, for the next rung."""
SHORT_SHARE: Final = 0.5
"""Share of the threshold up to which a wait is short."""
SHED_FACTOR: Final = 2.0
"""Factor by which the wait must be longer before requests are refused that shorter answers would have made room for."""


class Level(IntEnum):
    """Each level does what those below it do."""

    NONE = 0
    NO_DRAFTS = 1
    SMALLER_PREFILL = 2
    SHORTER_ANSWERS = 3
    SHED = 4


class Ladder:
    """The level, from expected waits. `seconds`: a wait that is too long."""

    def __init__(self, seconds: float) -> None:
        self.level = Level.NONE
        self._seconds = seconds
        self._direction = 0
        self._since = 0.0

    def update(self, wait: float, now: float) -> Level:
        """The level now, with a wait that is expected to take so many seconds."""
        while True:
            direction = self._wanted(wait)
            if direction != self._direction:
                self._direction, self._since = direction, now
            patience = UP_SECONDS if direction > 0 else DOWN_SECONDS
            if not direction or now - self._since < patience:
                return self.level
            self.level = Level(self.level + direction)
            self._since += patience

    def _wanted(self, wait: float) -> int:
        """1: the next rung; −1: the one before."""
        if self.level < Level.SHED and wait >= self._threshold(Level(self.level + 1)):
            return 1
        return -1 if self.level > Level.NONE and wait <= self._threshold(self.level) * SHORT_SHARE else 0

    def _threshold(self, level: Level) -> float:
        """Expected seconds from which on the rung is taken."""
        return self._seconds * (SHED_FACTOR if level is Level.SHED else 1)


class BrownOut:
    """The ladder and what follows from it. `send` takes commands for the engine; `knobs`: their values without brown-out, with drafts only
    where the engine makes some."""

    def __init__(self, seconds: float, knobs: Callable[[], dict[Knob, int]], send: Callable[[SetKnob], None]) -> None:
        self._ladder = Ladder(seconds)
        self._knobs = knobs
        self._send = send
        self._wait = 0.0
        self._level = Level.NONE
        self._starts = 0

    @property
    def level(self) -> Level:
        """The level as of the last update."""
        return self._level

    def update(self, wait: float, now: float, starts: int) -> None:
        """Tells the engine and the log where the level has changed. `starts` of engines so far: a new one knows nothing of it."""
        self._wait = wait
        level = self._ladder.update(wait, now)
        if level is self._level and (starts == self._starts or level is Level.NONE):
            return
        if level is not self._level:
            text, told = ("brown-out", logging.WARNING) if level > self._level else ("brown-out recedes", logging.INFO)
            fields = with_fields(level=int(level), measures=self._measures(level, None) or None, expected_wait_seconds=wait)
            _LOG.log(told, text, extra=fields)
        changed = (self._level, level) if starts == self._starts else (Level.NONE, level)
        for name, value in self._knobs().items():
            before, after = (_knob(name, value, each) for each in changed)
            if before != after:
                self._send(SetKnob(name, after))
        self._level, self._starts = level, starts

    def forget(self) -> None:
        """The engine has its own settings now: the next update tells it what there is to leave out."""
        self._starts = -1

    def end(self) -> None:
        """Gives the engine its own settings back."""
        for name, value in self._knobs().items():
            if _knob(name, value, self._level) != value:
                self._send(SetKnob(name, value))

    def measures(self, caller: Caller) -> str:
        """Measures that the caller's answers suffer, for `HEADER`; "" where that is nothing."""
        return self._measures(self._level, caller) if self._level else ""

    def check(self, caller: Caller, priority: int) -> None:
        """Raises OverloadedError for requests of the lowest class: of keys that may be shed, and of less than the usual priority."""
        if self._level >= Level.SHED and (caller.is_sheddable or priority > 0):
            seconds = min(MAX_RETRY_AFTER_SECONDS, max(1, ceil(self._wait + DOWN_SECONDS)))
            raise OverloadedError(
                f"requests wait {self._wait:.1f} s, and those of the lowest class are not taken meanwhile; try again later", seconds
            )

    def limit(self, params: SamplingParams, caller: Caller) -> SamplingParams:
        """The parameters, with answers as long as the caller's key agrees to have them."""
        limit = caller.brown_out_tokens
        if self._level < Level.SHORTER_ANSWERS or limit is None or (params.max_tokens is not None and params.max_tokens <= limit):
            return params
        return replace(params, max_tokens=max(limit, params.min_tokens))

    def _measures(self, level: Level, caller: Caller | None) -> str:
        found = [each.name.lower().replace("_", "-") for each in Level if Level.NONE < each <= level]
        if "num_speculative_tokens" not in self._knobs():
            found = [each for each in found if each != "no-drafts"]
        if caller is not None:
            if caller.brown_out_tokens is None:
                found = [each for each in found if each != "shorter-answers"]
            found = [f"{each}={caller.brown_out_tokens}" if each == "shorter-answers" else each for each in found if each != "shed"]
        return ", ".join(found)


def _knob(name: Knob, value: int, level: Level) -> int:
    if name == "num_speculative_tokens":
        return 0 if level >= Level.NO_DRAFTS else value
    return max(1, value // 2) if level >= Level.SMALLER_PREFILL else value
