"""Service-level objectives: targets, what counts as good work, and where to look when a target is missed. Seconds and tokens."""

from collections.abc import Iterable
from dataclasses import dataclass

TTFT_TARGETS = {"code completion": 0.100, "chat": 0.300, "document questions": 1.0}
"""Seconds to the first token. Notes on inference, part 1, section 2."""

TTFT_INTERACTIVE, TTFT_TOLERABLE, TTFT_BROKEN = 0.5, 2.0, 5.0
"""Seconds. Notes on inference, part 5, section 13."""

ITL_SMOOTH, ITL_CHOPPY, ITL_TYPEWRITER = 0.030, 0.080, 0.100
"""Seconds between tokens. Choppy from 80 ms (Notes on inference, part 1, section 2) or 100 ms (part 2; part 5, section 13)."""

KV_ALERT, KV_TROUBLE = 0.85, 0.90
"""Share of the KV cache in use: an alert, and where preemption begins to hurt. Notes on inference, part 5, section 13."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What a request must meet, in seconds; None is no demand."""

    ttft: float | None = None
    itl: float | None = None

    def met(self, ttft: float, itl: float) -> bool:
        """Whether both demands hold."""
        return (self.ttft is None or ttft <= self.ttft) and (self.itl is None or itl <= self.itl)


@dataclass(frozen=True, slots=True)
class Served:
    """One request that ended. `useful` is false where the client had gone: its tokens were wasted."""

    output_tokens: int
    ttft: float
    tpot: float
    useful: bool = True


def token_goodput(served: Iterable[Served], seconds: float) -> float:
    """Useful output tokens/s: a request that timed out after 200 of 256 tokens counts 0. Notes on inference, part 1, section 2."""
    return sum(request.output_tokens for request in served if request.useful) / seconds


def request_goodput(served: Iterable[Served], seconds: float, objective: Objective) -> float:
    """Requests/s that met their objective, for instance TTFT < 1 s and TPOT < 50 ms. Notes on inference, part 4, section 2."""
    return sum(request.useful and objective.met(request.ttft, request.tpot) for request in served) / seconds


def investigate(ttft_p95: float, itl_p95: float) -> str:
    """Where to look first when an alert fires; a route, no diagnosis. Notes on inference, part 2, `investigate`."""
    if ttft_p95 > 0.9 and itl_p95 <= 0.08:
        return "inspect queueing and prefill"
    if itl_p95 > 0.12:
        return "inspect decode scheduling and memory pressure"
    return "within example thresholds"
