"""The time that a request of the ledger would have taken without others: simulated with the durations of this server's last steps, in a
process of its own with a budget. So neither loop ever waits for the interpreter's lock behind a simulation.

Owns that process: started by the first question, replaced where it exceeds its budget. Its program is `sim.fleet.alone`.
"""

from threading import Lock
from typing import Any, Final, NamedTuple

import msgspec

from ridgeline.engine.executor import ExecutorInfo
from ridgeline.errors import OverloadedError
from ridgeline.observe.ledger import Ledger, RequestRecord
from ridgeline.observe.steps import StepLog
from ridgeline.text.sandbox_frames import frame
from ridgeline.text.sandbox_process import SandboxProcess

FIT_STEPS: Final = 1_000
"""Last steps, of whose durations a simulation's are made."""
BUDGET_SECONDS: Final = 2.0
"""Seconds of a question; an answer of 4,096 tokens takes some 0.2 s."""
START_SECONDS: Final = 10.0


class Counterfactual(NamedTuple):
    """Seconds: alone to the first token and to the last; to the first token with all of the prompt cached that can be."""

    ttft: float
    total: float
    cached_ttft: float


def observed_steps(log: StepLog, count: int = FIT_STEPS) -> list[tuple[int, int, float, int]]:
    """Tokens, positions, seconds and rows of the last steps."""
    return [log.sizes(index) for index in range(max(log.first, log.end - count), log.end)]


class Counterfactuals:
    """Answers from any thread, one question at a time."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: SandboxProcess | None = None

    def alone(self, ledger: Ledger, record: RequestRecord, info: ExecutorInfo) -> Counterfactual | None:
        """Simulates the request without others; None where too few steps are known, or the budget does not suffice."""
        choice = record.choices.get(0)
        hit, output = (0, 1) if choice is None else (choice.hit_tokens, max(1, choice.output_tokens))
        steps = observed_steps(ledger.steps)
        asked = {"info": msgspec.to_builtins(info), "steps": steps, "prompt": record.prompt_tokens, "output": output, "hit": hit}
        with self._lock:
            found = self._ask(frame(asked))
        return Counterfactual(**found) if found else None

    def close(self) -> None:
        """Ends the process. The next question starts another."""
        with self._lock:
            self._end()

    def _ask(self, request: bytes) -> dict[str, Any] | None:
        if self._process is None:
            self._process = SandboxProcess("ridgeline.sim.fleet.alone", {}, START_SECONDS)
        found = None
        try:
            if self._process.ready(0.0) is not None:
                found = self._process.ask(request, BUDGET_SECONDS)
        except (TimeoutError, OverloadedError):
            pass
        if found is None:
            self._end()
        return found

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None
