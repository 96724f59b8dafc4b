"""Servers compared: each scenario in rounds, in every round each server in turn, on the same prompts, while the others rest.

Owns the order of what is measured and the statistics: medians of rounds, and the ratio of medians with a bootstrap interval over rounds
(Efron 1979), which are resampled together, since what disturbs a round disturbs both.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random
from statistics import median
from typing import Final

from ridgeline.bench.report import Figures, figures, notes, value_of
from ridgeline.bench.scenarios import Scenario
from ridgeline.bench.servers import Server, Spec
from ridgeline.bench.session import Manner, Session
from ridgeline.planning.objectives import Objective

RESAMPLES: Final = 2_000
CONFIDENCE: Final = 0.95
SETTLE_SECONDS: Final = 0.3
"""Between two turns: a server's threads may look for work for some time after its last token."""
ROUND_PROMPTS: Final = 1 << 16
"""Numbers of prompts that are set aside for each round of each scenario."""


@dataclass(slots=True)
class Turns:
    """What one server did in one scenario: a report, the bytes resident afterwards, and the first prompt's answer, for each round."""

    reports: list[Figures] = field(default_factory=list)
    resident_bytes: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Starts:
    """Seconds from the start of the process to the first token, and bytes resident then, for each start."""

    seconds: list[float] = field(default_factory=list)
    resident_bytes: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Found:
    """Everything by name of server, turns by scenario before that; grows while it is measured. notes: of reports, each once."""

    starts: dict[str, Starts] = field(default_factory=dict)
    turns: dict[str, dict[str, Turns]] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)


class Comparison:
    """Several servers. `restart`: only the one whose turn it is runs; else all that are started stay in memory, at rest.

    found  what is known so far, also after a run that was broken off
    """

    def __init__(self, specs: Sequence[Spec], manner: Manner, seed: int, restart: bool, on_turn: Callable[[str, str, int], None]) -> None:
        self._specs, self._manner, self._seed, self._restart, self._on_turn = specs, manner, seed, restart, on_turn
        self._running: dict[str, tuple[Session, Server | None]] = {}
        self.found = Found({spec.name: Starts() for spec in specs})

    async def run(self, scenarios: Sequence[Scenario], rounds: int, starts: int) -> None:
        """`starts` starts of each server that is started here, in turn, then the scenarios. Raises ConfigError."""
        for number in range(starts):
            for spec in self._specs:
                if spec.command is not None:
                    self._on_turn("start", spec.name, number)
                    await (await self._start(spec)).stop()
        async with AsyncExitStack() as stack:
            if not self._restart and scenarios:
                for spec in self._specs:
                    await self._ready(spec, stack)
            for place, scenario in enumerate(scenarios):
                turns = self.found.turns[scenario.name] = {spec.name: Turns() for spec in self._specs}
                for number in range(rounds):
                    for spec in self._specs:
                        self._on_turn(scenario.name, spec.name, number)
                        first = (place * rounds + number) * ROUND_PROMPTS
                        await self._turn(spec, scenario, number, first, turns[spec.name])

    async def _start(self, spec: Spec) -> Server:
        server = await Server.start(spec, self._manner)
        self.found.starts[spec.name].seconds.append(server.first_token_seconds)
        self.found.starts[spec.name].resident_bytes.append(server.started_bytes)
        return server

    async def _ready(self, spec: Spec, stack: AsyncExitStack) -> tuple[Session, Server | None]:
        """The server runs and its words are known, until the stack unwinds."""
        server = None
        if spec.command is not None:
            server = await self._start(spec)
            stack.push_async_callback(server.stop)
        session = await Session.open(spec.url, self._manner.named(spec.model), self._seed)
        stack.callback(session.close)
        self.found.models[spec.name] = session.model
        self._running[spec.name] = session, server
        return session, server

    async def _turn(self, spec: Spec, scenario: Scenario, number: int, first: int, turns: Turns) -> None:
        async with AsyncExitStack() as stack:
            session, server = await self._ready(spec, stack) if self._restart else self._running[spec.name]
            load = scenario.load(number, self._seed)
            if self._restart or number == 0:
                failed = await session.warm_up(scenario.load(-1, self._seed), 1, 1)
                self._note(spec, scenario, [f"the request to warm up failed, {message}" for message in failed])
            await asyncio.sleep(SETTLE_SECONDS)
            measured = await session.measure(load, first)
            earliest = min(measured.outcomes, key=lambda outcome: outcome.asked.number)
            report = figures(measured, Objective())
            turns.reports.append(report)
            turns.texts.append(earliest.text)
            turns.resident_bytes.append(0 if server is None else server.resident_bytes())
            self._note(spec, scenario, notes(report))

    def _note(self, spec: Spec, scenario: Scenario, said: Sequence[str]) -> None:
        self.found.notes.update({f"{spec.name}, {scenario.name}: {each}": None for each in said})


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of two medians, with the interval that holds it with `CONFIDENCE`."""

    value: float
    low: float
    high: float


def values(turns: Turns, figure: str) -> list[float]:
    """A figure in each round; none at all where a round was not answered."""
    return [value_of(report, figure) for report in turns.reports] if all(report.requests for report in turns.reports) else []


def ratio(ours: Sequence[float], theirs: Sequence[float], seed: int = 0) -> Ratio | None:
    """Median over median of paired rounds; None where there is nothing to divide, or to divide by."""
    if not ours or len(ours) != len(theirs) or min(theirs) <= 0:
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
