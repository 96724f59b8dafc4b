"""Clocks of executors that compute nothing: virtual in the simulator, slept through where a server test wants a pace.

Owns the two clocks; never decides how long a step takes.
"""

import time
from typing import Final, Protocol

SLEEP_SECONDS: Final = 0.02
"""A longer sleep is cut into such pieces, as a long step of a real device has parts."""


class MovableClock(Protocol):
    """A clock whose owner may let time pass."""

    def now(self) -> float:
        """Seconds since an arbitrary origin; never goes back."""
        ...

    def advance_to(self, moment: float) -> None:
        """Lets time pass until `moment`; a moment in the past changes nothing."""
        ...

    @property
    def moves(self) -> int:
        """A number that changes while time passes."""
        ...


class VirtualClock:
    """Time that passes only when told to: starts at 0.0 seconds."""

    def __init__(self) -> None:
        self._now = 0.0
        self.moves = 0

    def now(self) -> float:
        return self._now

    def advance_to(self, moment: float) -> None:
        self._now = max(self._now, moment)
        self.moves += 1


class SleepingClock:
    """The machine's monotonic clock; advancing sleeps. Makes a fake executor take its modelled time for real."""

    def __init__(self) -> None:
        self.moves = 0

    def now(self) -> float:
        return time.monotonic()

    def advance_to(self, moment: float) -> None:
        while (remaining := moment - time.monotonic()) > 0:
            time.sleep(min(remaining, SLEEP_SECONDS))
            self.moves += 1
