"""Service-level objectives and goodput, in seconds and tokens."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Objective:
    """Limits for a request's latencies in seconds; None is no limit."""

    ttft: float | None = None
    itl: float | None = None

    def is_met(self, ttft: float, itl: float) -> bool:
        """True where both limits hold."""
        return (self.ttft is None or ttft <= self.ttft) and (self.itl is None or itl <= self.itl)


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """One request that ended. `useful` is False where the client had disconnected: its tokens are wasted."""

    output_tokens: int
    ttft: float
    tpot: float
    useful: bool = True


def token_goodput(served: Iterable[FinishedRequest], seconds: float) -> float:
    """Useful output tokens per second: a request that timed out after 200 of 256 tokens counts 0. Notes on inference, part 1, section 2."""
    return sum(request.output_tokens for request in served if request.useful) / seconds


def request_goodput(served: Iterable[FinishedRequest], seconds: float, objective: Objective) -> float:
    """Requests per second that met their objective, for instance TTFT < 1 s and TPOT < 50 ms. Notes on inference, part 4, section 2."""
    return sum(request.useful and objective.is_met(request.ttft, request.tpot) for request in served) / seconds
