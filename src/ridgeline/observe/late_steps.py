"""Late steps in the log: that `--step-ms` is not kept, how often, by how much and what can be done; one line in ten seconds at most.

Reads no clock: events carry the engine's time.
"""

import logging
import math
from typing import Final

from ridgeline.core.events import StepLate

PERIOD_SECONDS: Final = 10.0
_log: Final = logging.getLogger("ridgeline.engine")


class LateSteps:
    """Counts late steps between two lines of the log. `step_ms`: what a step with decoding rows may take."""

    def __init__(self, step_ms: int) -> None:
        self._step_ms = step_ms
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
        cause = "the pace follows, prompts get fewer tokens per step"
        if not worst.prefill_tokens:
            cause = f"{worst.decode_rows} decoding rows alone take that long; lower --max-num-seqs or raise --step-ms"
        _log.warning(
            "%d steps took longer than --step-ms %d; the longest took %.0f ms, with %d decoding rows and %d prompt tokens: %s",
            self._count, self._step_ms, worst.seconds * 1e3, worst.decode_rows, worst.prefill_tokens, cause,
        )  # fmt: skip
        self._logged_at, self._count, self._longest = event.time, 0, None
