"""Late steps in the log: that `--step-ms` is not kept, how often, by how much and what can be done; one line in ten seconds at most.

Reads no clock: events carry the engine's time.
"""

import logging
import math
from typing import Final

from ridgeline.core.events import StepLate
from ridgeline.observe.logs import with_fields

PERIOD_SECONDS: Final = 10.0
_log: Final = logging.getLogger("ridgeline.engine")


class LateSteps:
    """Counts late steps between two lines of the log. `step_ms`: what a step with decoding rows may take."""

    def __init__(self, step_ms: int) -> None:
        self.step_ms = step_ms
        self._logged_at = -math.inf
        self._count = 0
        self._longest: StepLate | None = None

    def apply(self, event: StepLate) -> None:
        """Notes a late step; writes a line if the last one is long enough ago."""
        self._count += 1
        if self._longest is None or event.seconds > self._longest.seconds:
            self._longest = event
        if 0 <= event.time - self._logged_at < PERIOD_SECONDS:  # below 0: another engine, whose clock may be another
            return
        worst = self._longest
        advice = "none: prompts get fewer tokens per step from now on"
        if not worst.prefill_tokens:
            advice = "decoding alone takes that long: lower --max-num-seqs or raise --step-ms"
        _log.warning("steps took longer than --step-ms", extra=with_fields(
            steps=self._count, step_ms=self.step_ms, longest_ms=round(worst.seconds * 1e3), decode_rows=worst.decode_rows,
            prompt_tokens=worst.prefill_tokens, advice=advice,
        ))  # fmt: skip
        self._logged_at, self._count, self._longest = event.time, 0, None
