"""What a request of the ledger would have taken without others: simulated with the durations of this server's last steps."""

from typing import Final

from ridgeline.engine.executor import ExecutorInfo
from ridgeline.errors import ConfigError, RequestError
from ridgeline.observe.ledger import Ledger, RequestRecord
from ridgeline.observe.steps import StepLog
from ridgeline.sim.fleet.alone import Alone, simulate_alone
from ridgeline.sim.fleet.durations import ObservedStep

FIT_STEPS: Final = 1_000
"""Last steps, of whose durations a simulation's are made."""


def observed_steps(log: StepLog, count: int = FIT_STEPS) -> list[ObservedStep]:
    """The last steps as the simulator takes them; one that was not timed has the time from its plan to its end."""
    steps = [log[index] for index in range(max(log.first, log.end - count), log.end)]
    return [
        ObservedStep(each.prefill + each.decode, each.positions + each.prefill + each.decode, each.run or each.ended - each.planned)
        for each in steps
    ]


def alone(ledger: Ledger, record: RequestRecord, info: ExecutorInfo) -> tuple[Alone, Alone] | None:
    """The request alone, and its first token with all of its prompt cached that can be; None where too few steps are known."""
    observed, choice = observed_steps(ledger.steps), record.choices.get(0)
    hit, output = (0, 1) if choice is None else (choice.hit_tokens, max(1, choice.output_tokens))
    try:
        as_it_was = simulate_alone(info, observed, record.prompt_tokens, output, hit)
        return as_it_was, simulate_alone(info, observed, record.prompt_tokens, 1, record.prompt_tokens)
    except (ConfigError, RequestError):
        return None
