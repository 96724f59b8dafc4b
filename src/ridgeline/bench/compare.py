"""Servers compared: in every round all scenarios, in each of these every server in turn, on the same prompts, while the others rest.

Owns the order of what is measured and the statistics: medians of rounds, and the ratio of medians with a bootstrap interval over rounds
(Efron 1979), which are resampled together, since what disturbs a round disturbs both. A server that fails takes no other's figures along.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from random import Random
from statistics import median
from time import perf_counter
from typing import Final

from ridgeline.bench.report import Figures, figures, notes, value_of
from ridgeline.bench.scenarios import START, Scenario
from ridgeline.bench.servers import Server, Spec
from ridgeline.bench.session import Load, Manner, Session
from ridgeline.errors import ConfigError
from ridgeline.planning.objectives import Objective

RESAMPLES: Final = 2_000
CONFIDENCE: Final = 0.95
SETTLE_SECONDS: Final = 0.3
"""Between two turns: a server's threads may look for work for some time after its last token."""
ROUND_PROMPTS: Final = 1 << 16
"""Numbers of prompts that are set aside for each round of each scenario."""

OnTurn = Callable[[str, str, int], None]


@dataclass(slots=True)
class Turns:
    """The turns of one server in one scenario: a report, the bytes resident afterwards, and the first prompt's answer, for each round.

    alone  the answer to the first round's first prompt when it is asked again by itself; None where it was by itself before
    """

    reports: list[Figures] = field(default_factory=list)
    resident_bytes: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    alone: str | None = None


@dataclass(slots=True)
class Starts:
    """Seconds from the start of the process to the first token, and bytes resident then, for each start."""

    seconds: list[float] = field(default_factory=list)
    resident_bytes: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Found:
    """Everything by name of server, turns by scenario before that; grows while it is measured. notes: of reports, each once.

    lost  servers that could not be started, and why: the others are measured without them
    """

    starts: dict[str, Starts] = field(default_factory=dict)
    turns: dict[str, dict[str, Turns]] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Course:
    """The length of a comparison. restart: only the server whose turn it is runs; else all that are started stay in memory, at rest.

    rounds   all scenarios in turn, so many times: what a limit cuts off, it cuts off from all of them
    starts   of each server that is started here, before the rounds
    seconds  behind its first round no scenario begins that would end later, by the longest of its rounds; None for no limit
    """

    rounds: int
    starts: int
    restart: bool = False
    seconds: float | None = None


class Comparison:
    """Several servers. `on_turn` is told a scenario, a server and the round before each turn, `on_round` that all servers had theirs.

    found  what is known so far, also after a run that was broken off
    """

    def __init__(self, specs: Sequence[Spec], manner: Manner, seed: int, course: Course) -> None:
        self._specs, self._manner, self._seed, self._course = specs, manner, seed, course
        self._running: dict[str, tuple[Session, Server | None]] = {}
        self._began, self._took = perf_counter(), dict[str, float]()
        self.found = Found({spec.name: Starts() for spec in specs})

    async def run(self, scenarios: Sequence[Scenario], on_turn: OnTurn, on_round: Callable[[], None]) -> None:
        """The starts, then the scenarios. Raises ConfigError where no server can be measured."""
        for number in range(self._course.starts):
            for spec in self._present():
                if spec.command is not None:
                    on_turn(START, spec.name, number)
                    await self._started_and_stopped(spec)
        async with AsyncExitStack() as stack:
            if not self._course.restart and scenarios:
                for spec in self._present():
                    await self._ready(spec, stack)
            for number in range(self._course.rounds):
                for place, scenario in enumerate(scenarios):
                    if self._in_time(scenario, number):
                        first = (place * self._course.rounds + number) * ROUND_PROMPTS
                        await self._round(scenario, number, first, stack, on_turn)
                        on_round()
        if self.found.lost and not any(each.seconds for each in self.found.starts.values()) and not self.found.turns:
            raise ConfigError("; ".join(self.found.lost.values()))

    def _present(self) -> list[Spec]:
        return [spec for spec in self._specs if spec.name not in self.found.lost]

    def _in_time(self, scenario: Scenario, number: int) -> bool:
        """True if a round may begin; the first always."""
        limit = self._course.seconds
        if limit is None or number == 0 or perf_counter() - self._began + self._took[scenario.name] <= limit:
            return True
        self.found.notes[f"{scenario.name}: time was left for {number} of {self._course.rounds} rounds"] = None
        return False

    async def _round(self, scenario: Scenario, number: int, first: int, stack: AsyncExitStack, on_turn: OnTurn) -> None:
        began = perf_counter()
        turns = self.found.turns.setdefault(scenario.name, {spec.name: Turns() for spec in self._present()})
        for spec in self._present():
            if spec.name in turns:
                on_turn(scenario.name, spec.name, number)
                await self._turn(spec, scenario, number, first, turns[spec.name], stack)
        self._took[scenario.name] = max(perf_counter() - began, self._took.get(scenario.name, 0.0))

    async def _started_and_stopped(self, spec: Spec) -> None:
        try:
            await (await self._start(spec)).stop()
        except ConfigError as error:
            self.found.lost[spec.name] = str(error)

    async def _start(self, spec: Spec) -> Server:
        server = await Server.start(spec, self._manner)
        self.found.starts[spec.name].seconds.append(server.first_token_seconds)
        self.found.starts[spec.name].resident_bytes.append(server.started_bytes)
        return server

    async def _ready(self, spec: Spec, stack: AsyncExitStack) -> None:
        """The server runs and its words are known, until the stack unwinds; or it is lost."""
        server = None
        try:
            if spec.command is not None:
                server = await self._start(spec)
                stack.push_async_callback(server.stop)
            session = await Session.open(spec.url, self._manner.named(spec.model), self._seed)
        except ConfigError as error:
            self.found.lost[spec.name] = str(error)
            return
        stack.callback(session.close)
        self.found.models[spec.name] = session.model
        self._running[spec.name] = session, server

    async def _turn(self, spec: Spec, scenario: Scenario, number: int, first: int, turns: Turns, whole: AsyncExitStack) -> None:
        """One server's load, and behind the first its first prompt again by itself. A server that has ended is started again."""
        async with AsyncExitStack() as stack:
            server = self._running[spec.name][1] if spec.name in self._running else None
            fresh = self._course.restart or (server is not None and server.ended)
            if fresh:
                if not self._course.restart:
                    self._note(spec, scenario, ["it had ended and was started again"])
                await self._ready(spec, stack if self._course.restart else whole)
                if spec.name in self.found.lost:
                    return
            session, server = self._running[spec.name]
            load = scenario.load(number, self._seed)
            if fresh or number == 0:
                failed = await session.warm_up(scenario.load(-1, self._seed), 1, 1)
                self._note(spec, scenario, [f"the request to warm up failed, {message}" for message in failed])
            await asyncio.sleep(SETTLE_SECONDS)
            measured = await session.measure(load, first)
            earliest = min(measured.outcomes, key=lambda outcome: outcome.asked.number)
            report = figures(measured, Objective())
            turns.reports.append(report)
            turns.texts.append(earliest.text)
            turns.resident_bytes.append(0 if server is None else server.resident_bytes())
            if number == 0 and scenario.streams > 1:
                turns.alone = (await session.measure(alone(load), first)).outcomes[0].text
            self._note(spec, scenario, notes(report))

    def _note(self, spec: Spec, scenario: Scenario, said: Sequence[str]) -> None:
        self.found.notes.update({f"{spec.name}, {scenario.name}: {each}": None for each in said})


@dataclass(frozen=True, slots=True)
class Ratio:
    """The ratio of two medians, with the interval that holds it with `CONFIDENCE`."""

    value: float
    low: float
    high: float


def alone(load: Load) -> Load:
    """Its first request and nothing beside it."""
    first = replace(next(iter(load.arrivals)), time=0.0)
    return Load(load.name, [first], 1)


def values(turns: Turns, figure: str) -> list[float]:
    """A figure in each round; none at all where a round was not answered."""
    return [value_of(report, figure) for report in turns.reports] if all(report.requests for report in turns.reports) else []


def ratio(ours: Sequence[float], theirs: Sequence[float], seed: int = 0) -> Ratio | None:
    """Median over median of paired rounds, the last left out where only one had it; None without anything to divide, or to divide by."""
    pairs = min(len(ours), len(theirs))
    ours, theirs = ours[:pairs], theirs[:pairs]
    if not pairs or min(theirs) <= 0:
        return None
    rng, rounds = Random(seed), range(len(ours))
    found = []
    for _ in range(RESAMPLES):
        picked = rng.choices(rounds, k=len(ours))
        found.append(median([ours[at] for at in picked]) / median([theirs[at] for at in picked]))
    found.sort()
    tail = int((1 - CONFIDENCE) / 2 * RESAMPLES)
    return Ratio(median(ours) / median(theirs), found[tail], found[-1 - tail])


def agreement(one: str, other: str) -> tuple[int, int]:
    """Characters that two answers begin with in common, and those of the longer one."""
    longest = max(len(one), len(other))
    same = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return same, longest
