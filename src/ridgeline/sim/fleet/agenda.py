"""What happens when in a simulated world: moments and what to do at them, in order of time, then in the order in which they were noted."""

import heapq
from collections.abc import Callable
from itertools import count

Happening = Callable[[float], None]
"""Called with its moment, seconds."""


class Agenda:
    """A heap of happenings."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Happening]] = []
        self._order = count()

    def at(self, time: float, happen: Happening) -> None:
        """`happen` will be called at `time`, which is not in the past."""
        heapq.heappush(self._heap, (time, next(self._order), happen))

    def run(self, busy: Callable[[], bool]) -> None:
        """Lets everything happen, as long as `busy`: what only repeats itself (a look at the load) would never end."""
        while self._heap and busy():
            time, _, happen = heapq.heappop(self._heap)
            happen(time)
