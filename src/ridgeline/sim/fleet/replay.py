"""Replay of a recording: the same commands and results through the real scheduler, without a model. Its plans must equal the recorded ones.

Also converts a recording into the fleet simulator's inputs: arrivals and a step log.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from ridgeline.core import commands
from ridgeline.core.drafts.kinds import make_drafter
from ridgeline.core.pace import Pace
from ridgeline.core.plan import Plan, Result, TokenLogprobs
from ridgeline.core.policy import POLICIES
from ridgeline.core.scheduler import Scheduler
from ridgeline.engine.engine import Engine
from ridgeline.engine.executor import ExecutorInfo, Ticket
from ridgeline.engine.record import RecordedTurn, Setup, decision_line, read_recording
from ridgeline.errors import ConfigError
from ridgeline.sim.clock import VirtualClock
from ridgeline.sim.fleet.durations import ObservedStep
from ridgeline.sim.fleet.traffic import Arrival


@dataclass(frozen=True, slots=True)
class Difference:
    """The first decision that differs: recorded and replayed, None where one of them is missing."""

    number: int
    recorded: str | None
    replayed: str | None


class RecordedExecutor:
    """Implements `engine.executor.Executor` with recorded results."""

    grammars = None
    trace = None
    adapters = None
    blocks = None

    def __init__(self, setup: Setup) -> None:
        self._info = ExecutorInfo(setup.kv, 1 << 31, setup.limits.max_model_len, setup.rows, "recorded", 0, 0)
        self.results: deque[Result] = deque()
        self.decisions: list[str] = []

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    def submit(self, plan: Plan) -> Ticket:
        self.decisions.append(decision_line(plan))
        return Ticket(plan)

    def collect(self, ticket: Ticket) -> Result:
        """Returns the recorded result. Raises ConfigError where there is none: the decisions have diverged before."""
        if not self.results or self.results[0].step != ticket.plan.step:
            raise ConfigError(f"the recording has no result for step {ticket.plan.step} here: its decisions are not this scheduler's")
        # Recordings have no vectors either: no decision depends on them.
        return replace(self.results.popleft(), scores=_scores(ticket.plan), vectors=(b"",) * len(ticket.plan.pool))

    def beat(self) -> int:
        return 0

    def close(self) -> None:
        self.results.clear()


def _scores(plan: Plan) -> tuple[tuple[TokenLogprobs, ...], ...] | None:
    """Placeholder log-probabilities of prompts, as many as the plan requests: recordings have none, and no decision depends on them."""
    return tuple([(TokenLogprobs(0.0),) * count for _, _, count in plan.score]) or None


def replay(path: Path) -> tuple[int, Difference | None]:
    """Replays a recording. Returns the number of plans compared and the first difference. Raises ConfigError."""
    setup, turns = read_recording(path)
    compared = 0
    for recorded, replayed in _decision_pairs(setup, turns):
        if recorded != replayed:
            return compared, Difference(compared, recorded, replayed)
        compared += 1
    return compared, None


def _decision_pairs(setup: Setup, turns: Iterator[RecordedTurn]) -> Iterator[tuple[str | None, str | None]]:
    """(recorded, replayed) decisions, turn by turn."""
    if setup.policy not in POLICIES:
        raise ConfigError(f"the recording's policy {setup.policy!r:.40} is not known; known: {', '.join(POLICIES)}")
    executor, clock = RecordedExecutor(setup), VirtualClock()
    drafter = None
    if setup.drafts:
        drafter = make_drafter(setup.speculative, setup.drafts, setup.price, setup.limits.depth > 1, setup.draft_cache)
    pace = None if setup.seconds is None else Pace(setup.seconds, setup.step_ms / 1e3)
    engine = Engine(Scheduler(setup.limits, setup.kv, POLICIES[setup.policy], drafter, pace), executor, clock, setup.limits.depth)
    for turn in turns:
        clock.advance_to(turn.time)
        if turn.step >= 0:
            executor.results.append(turn.result())
        engine.turn(turn.decode_commands())
        yield from zip_longest(turn.decisions, executor.decisions)
        executor.decisions.clear()


def read_arrivals(path: Path) -> list[Arrival]:
    """Arrivals of the recorded requests, the first at 0 s: prompt tokens, output tokens, prefix shared with an earlier prompt."""
    setup, turns = read_recording(path)
    asked: dict[str, tuple[float, tuple[int, ...]]] = {}
    given: dict[str, int] = {}
    for turn in turns:
        for command in turn.decode_commands():
            if isinstance(command, commands.Admit):
                request = command.request  # a turn takes commands when the step before has ended
                asked[request.request_id] = turn.time if request.arrived is None else request.arrived, request.prompt
        for name, tokens in turn.ended:
            given[name] = given.get(name, 0) + tokens
    start = min((time for time, _ in asked.values()), default=0.0)
    first_prompts: dict[int, int] = {}
    found = []
    for name, (time, prompt) in asked.items():
        prefix, shared = _shared_prefix(prompt, setup.kv.block_tokens, first_prompts)
        found.append(Arrival(time - start, len(prompt), max(1, given.get(name, 1)), prefix, shared))
    return found


def _shared_prefix(prompt: tuple[int, ...], size: int, first_prompts: dict[int, int]) -> tuple[int, int]:
    """(number of the first prompt with the same first block, tokens of leading blocks that an earlier prompt had); 0 without a block."""
    chain, shared, family = 0, 0, 0
    for end in range(size, len(prompt) + 1, size):
        chain = hash((chain, prompt[end - size : end]))
        if chain in first_prompts:
            shared = end
        family = family or first_prompts.get(chain, len(first_prompts) + 1)
        first_prompts.setdefault(chain, family)
    return family, shared


def read_step_log(path: Path) -> list[ObservedStep]:
    """The step log: what each step computed, and for how long it held up the next one. That is more than its computing, by what the host
    adds; where the engine was idle before, its computing alone is known."""
    _, turns = read_recording(path)
    found, open_requests, before = list[ObservedStep](), 0, 0.0
    for turn in turns:
        if turn.step >= 0:
            seconds = turn.time - before if open_requests else turn.seconds
            found.append(ObservedStep(turn.tokens, turn.cached, seconds, len(turn.sampled)))
        open_requests += sum(isinstance(command, commands.Admit) for command in turn.decode_commands())
        open_requests = max(0, open_requests - len({name for name, _ in turn.ended}))
        before = turn.time
    return found
