"""Slack of requests: the latest moment at which each may begin for its first token to come in time.

The order of latest starts is that of slack, which falls for all at the same rate, so it is static. There is no clock: time is the newest
arrival. Whole microseconds, from arrivals and the pace of results, both of which a recording holds.
"""

from typing import Final

from ridgeline.core.pace import Pace
from ridgeline.core.params import Admitted

DEFAULT_TTFT_MS: Final = 10_000
"""Target of requests that name none."""
LATE_TARGETS, MAX_LATE_MS = 10, 30_000
"""A request that has missed its latest start and has not begun ranks later by so many times its target, and no more than that: it would
delay others that can still be in time."""


def target_ms(request: Admitted) -> int:
    """Milliseconds in which the first token should come."""
    return request.ttft_ms or DEFAULT_TTFT_MS


def late_by(request: Admitted) -> int:
    """Microseconds by which a request ranks later that is late."""
    return 1_000 * min(MAX_LATE_MS, LATE_TARGETS * target_ms(request))


class Slack:
    """Latest starts, in microseconds."""

    def __init__(self, pace: Pace | None) -> None:
        self._pace = pace
        self.now = 0
        """Newest arrival."""

    def latest_start(self, request: Admitted, lead: int | None) -> tuple[int, bool]:
        """Returns the latest start of a request that arrives, and whether it ranks later once that is missed.

        lead  prefill tokens by which its tenant is ahead of its share: it counts as having come so much later. One that is ahead by
              less than the target keeps its place: others have made it late. None: there is one tenant
        """
        if request.arrived is not None:
            self.now = max(self.now, round(request.arrived * 1e6))
        arrived = self.now if request.arrived is None else round(request.arrived * 1e6)
        token = 0.0 if self._pace is None else self._pace.seconds.token
        target, shift = 1_000 * target_ms(request), round(1e6 * token * (lead or 0))
        return arrived + target + shift - round(1e6 * token * len(request.prompt)), lead is None or shift >= target
