"""Targets of a request for its latencies, and its deadline: from the body, else from headers, else from what the keys file says of its key.

The names of the first two headers are those of the Kubernetes gateway for inference and of llm-d. Milliseconds from arrival throughout.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, NamedTuple

from ridgeline.core.step_time import StepSeconds
from ridgeline.engine.admit import TARGET_BOUND, check_bound
from ridgeline.errors import OverloadedError
from ridgeline.server import wire
from ridgeline.server.errors import ApiError

HEADERS: Final = MappingProxyType({b"x-slo-ttft-ms": "ttft_ms", b"x-slo-tpot-ms": "itl_ms", b"x-slo-deadline-ms": "deadline_ms"})
PREFIX: Final = b"x-slo-"
NAMES: Final = tuple(HEADERS.values())
MAX_MS: Final = int(TARGET_BOUND.high)
WAIT_SHARE: Final = 1 / 4
"""Share of the target for the first token that may pass in the queue, as it is expected: the prompt and longer waits have the rest."""

TIMER_SLACK_SECONDS: Final = 0.001
"""A timer may fire a tick early."""


class Patience(NamedTuple):
    """Seconds for which a request may wait in the queue; None: for ever.

    target    if its first token is to come in time
    deadline  if its end is: behind that its work would be for nothing
    """

    target: float | None = None
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Targets:
    """Targets of a request; 0: none.

    ttft_ms      until its first token, under the slo policy or with --ttft-target
    itl_ms       between two of its tokens
    deadline_ms  until its end: it is ended with an error then
    """

    ttft_ms: int = 0
    itl_ms: int = 0
    deadline_ms: int = 0

    def with_headers(self, headers: list[tuple[bytes, bytes]]) -> "Targets":
        """These, with what headers say in their place. Raises ApiError."""
        found: dict[str, int] = {}
        for header, value in headers:
            name = HEADERS.get(header) if header.startswith(PREFIX) else None
            if name is not None:
                number = int(value) if value.isdigit() and len(value) <= len(str(MAX_MS)) else 0
                if name in found or not 1 <= number <= MAX_MS:
                    message = f"{header.decode()} is milliseconds, a whole number from 1 to {MAX_MS:,}, sent once"
                    raise ApiError("invalid_value", message, param=header.decode())
                found[name] = number
        return replace(self, **found) if found else self

    def with_body(self, payload: wire.GenerationRequest) -> "Targets":
        """These, with what the body says in their place. Raises RequestError."""
        found = {name: value for name in NAMES if (value := getattr(payload, name)) is not None}
        for name, value in found.items():
            check_bound(name, value, TARGET_BOUND)
        return replace(self, **found) if found else self

    def with_deadline(self, deadline_ms: int | None) -> "Targets":
        """These, with the body's deadline, where it names one. Raises RequestError."""
        if deadline_ms is None:
            return self
        check_bound("deadline_ms", deadline_ms, TARGET_BOUND)
        return replace(self, deadline_ms=deadline_ms)

    def or_target(self, seconds: float | None) -> "Targets":
        """These, with a target for the first token where they name none; None: none."""
        return self if self.ttft_ms or seconds is None else replace(self, ttft_ms=max(1, round(1e3 * seconds)))

    def last_start_ms(self, prompt_tokens: int, rows: int, cost: StepSeconds | None) -> int:
        """Milliseconds within which a request must have a row, for its first token to come in time behind the step under way and its own.
        A prompt that takes too long for its target even alone has `WAIT_SHARE` of it: nobody could serve it sooner.

        cost  of steps, as measured at the start; None: unknown
        """
        own = 0.0 if cost is None else 2 * cost.of(rows, 0) + cost.token * prompt_tokens
        return max(1, round(max(WAIT_SHARE * self.ttft_ms, self.ttft_ms - 1e3 * own)))

    def patience(self, *, has_targets: bool) -> Patience:
        """Seconds for which the request may wait. has_targets: those for first tokens count."""
        target = WAIT_SHARE * self.ttft_ms / 1e3 if has_targets and self.ttft_ms else None
        return Patience(target, self.deadline_ms / 1e3 if self.deadline_ms else None)


NO_TARGETS: Final = Targets()


def too_late(deadline_ms: int) -> ApiError:
    """The answer to a request whose deadline has passed. Clients of OpenAI and Anthropic do not try again by themselves."""
    message = f"the answer was not complete {deadline_ms} ms after its request arrived, which was its deadline"
    return ApiError("deadline_exceeded", message, param="deadline_ms", headers={"x-should-retry": "false"})


@dataclass(frozen=True, slots=True)
class Deadline:
    """`milliseconds` behind `arrived`, seconds of the monotonic clock."""

    arrived: float
    milliseconds: int

    @property
    def has_passed(self) -> bool:
        return time.monotonic() >= self.arrived + self.milliseconds / 1e3

    def call(self, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Calls back when it has passed."""
        left = self.arrived + self.milliseconds / 1e3 - time.monotonic()
        return asyncio.get_running_loop().call_later(max(0.0, left) + TIMER_SLACK_SECONDS, callback)


@dataclass(frozen=True, slots=True)
class LastStart:
    """The moment by which a request must have a row for its first token to come in time; behind it `refusal` makes its answer."""

    by: Deadline
    refusal: Callable[[], OverloadedError]
