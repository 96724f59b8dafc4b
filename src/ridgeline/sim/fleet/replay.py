"""A recording decided again: the same commands and results, the real scheduler, no model. Its decisions must be the recorded ones.

Also turns a recording into what the fleet simulator takes: arrivals and a step log.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from ridgeline.core import commands
from ridgeline.core.drafts.prompt_lookup import PromptLookupDrafter
from ridgeline.core.plan import Plan, Result, TokenLogprobs
from ridgeline.core.policy import POLICIES
from ridgeline.core.scheduler import Scheduler
from ridgeline.engine.engine import Engine
from ridgeline.engine.executor import ExecutorInfo, Ticket
from ridgeline.engine.record import Setup, Turn, decision, read_recording
from ridgeline.errors import ConfigError
from ridgeline.sim.clock import VirtualClock
from ridgeline.sim.fleet.durations import Observed
from ridgeline.sim.fleet.traffic import Arrival


@dataclass(frozen=True, slots=True)
class Difference:
    """The first decision that came out otherwise: recorded and replayed, one of them None where there is none."""

    number: int
    recorded: str | None
    replayed: str | None


class Player:
    """Implements `engine.executor.Executor` with recorded results."""

    def __init__(self, setup: Setup) -> None:
        self._info = ExecutorInfo(setup.kv, 1 << 31, setup.limits.max_model_len, setup.rows, "recorded", 0, 0)
        self.results: deque[Result] = deque()
        self.decisions: list[str] = []

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    def submit(self, plan: Plan) -> Ticket:
        self.decisions.append(decision(plan))
        return Ticket(plan)

    def collect(self, ticket: Ticket) -> Result:
        """Raises ConfigError where the recording has no result for it: the decisions have parted before."""
        if not self.results or self.results[0].step != ticket.plan.step:
            raise ConfigError(f"the recording has no result for step {ticket.plan.step} here: its decisions are not this scheduler's")
        return replace(self.results.popleft(), scores=_scores(ticket.plan))

    def close(self) -> None:
        self.results.clear()


def _scores(plan: Plan) -> tuple[tuple[TokenLogprobs, ...], ...] | None:
    """Stand-ins for log-probabilities of prompts, which no decision depends on and no recording has: as many as the plan asks for."""
    return tuple([(TokenLogprobs(0.0),) * count for _, _, count in plan.score]) or None


def replay(path: Path) -> tuple[int, Difference | None]:
    """Decides a recording again: the number of plans compared, and the first that differs."""
    setup, turns = read_recording(path)
    compared = 0
    for recorded, replayed in _pairs(setup, turns):
        if recorded != replayed:
            return compared, Difference(compared, recorded, replayed)
        compared += 1
    return compared, None


def _pairs(setup: Setup, turns: Iterator[Turn]) -> Iterator[tuple[str | None, str | None]]:
    """(recorded, replayed) decisions, turn by turn."""
    if setup.policy not in POLICIES:
        raise ConfigError(f"the recording's policy {setup.policy!r:.40} is not known; known: {', '.join(POLICIES)}")
    player, clock = Player(setup), VirtualClock()
    drafter = PromptLookupDrafter(setup.drafts, setup.price, barrier=setup.limits.depth > 1) if setup.drafts else None
    engine = Engine(Scheduler(setup.limits, setup.kv, POLICIES[setup.policy], drafter), player, clock, setup.limits.depth)
    for turn in turns:
        clock.advance_to(turn.time)
        if turn.step >= 0:
            player.results.append(turn.result())
        engine.turn(turn.received())
        yield from zip_longest(turn.decisions, player.decisions)
        player.decisions.clear()


def arrivals(path: Path) -> list[Arrival]:
    """Arrivals of the recorded requests, the first at 0 s: prompt tokens, tokens answered, the beginning shared with an earlier one."""
    setup, turns = read_recording(path)
    asked: dict[str, tuple[float, tuple[int, ...]]] = {}
    given: dict[str, int] = {}
    for turn in turns:
        for command in turn.received():
            if isinstance(command, commands.Admit):
                asked[command.request.request_id] = turn.time, command.request.prompt
        for name, tokens in turn.ended:
            given[name] = given.get(name, 0) + tokens
    start = min((time for time, _ in asked.values()), default=0.0)
    families: dict[int, int] = {}
    found = []
    for name, (time, prompt) in asked.items():
        prefix, shared = _family(prompt, setup.kv.block_tokens, families)
        found.append(Arrival(time - start, len(prompt), max(1, given.get(name, 1)), prefix, shared))
    return found


def _family(prompt: tuple[int, ...], size: int, families: dict[int, int]) -> tuple[int, int]:
    """(number of the first prompt with the same first block, tokens of leading blocks that some prompt before had); 0 without a block."""
    chain, shared, family = 0, 0, 0
    for end in range(size, len(prompt) + 1, size):
        chain = hash((chain, prompt[end - size : end]))
        if chain in families:
            shared = end
        family = family or families.get(chain, len(families) + 1)
        families.setdefault(chain, family)
    return family, shared


def steps(path: Path) -> list[Observed]:
    """The step log: what each step computed and how long it took."""
    _, turns = read_recording(path)
    return [Observed(turn.tokens, turn.cached, turn.seconds) for turn in turns if turn.step >= 0]
