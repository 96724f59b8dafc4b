"""Service-level objectives and goodput: what a request must meet, and what counts as good work. Seconds and tokens."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Objective:
    """Demands on a request, in seconds; None is no demand."""

    ttft: float | None = None
    itl: float | None = None

    def met(self, ttft: float, itl: float) -> bool:
        """True where both demands hold."""
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
