"""Comparison of servers: in every round all scenarios, in each of these every server in turn, on the same prompts, while the others idle.

Owns the scenarios, the order of measurements and the statistics: medians of rounds, and the ratio of medians with a bootstrap interval over
rounds (Efron 1979), which are resampled in pairs, since a disturbance of a round affects all servers. A server that fails does not end the
comparison of the others. Every round has prompts of its own, so that no cache knows them.

The ceiling of a scenario comes from the machine's measured ceilings (the JSON of `ridgeline bench roofline`) and the shape of a model: the
planner's floors, inverted. Weights and KV are read once per step and from memory: a model that fits the CPU caches may exceed its ceiling.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter
from typing import Any, Final

from ridgeline.bench.report import Figures, figures, notes, value_of
from ridgeline.bench.servers import Server, Spec
from ridgeline.bench.session import Load, Manner, Session
from ridgeline.errors import ConfigError
from ridgeline.facts.hardware.devices import Device
from ridgeline.facts.model import ModelFacts
from ridgeline.planning.deployment import Deployment, Layout, Workload
from ridgeline.planning.formats import WEIGHT_FORMATS
from ridgeline.planning.objectives import Objective
from ridgeline.planning.speed import decode_work, prefill_work
from ridgeline.planning.step import IDEAL, StepWork, resource_seconds
from ridgeline.sim.fleet.traffic import Arrival, Traffic, parse_length, poisson

THROUGHPUT: Final = ("output_tokens_per_second", "ttft.p50", "ttft.p99", "itl.p50", "itl.p99")
DECODE: Final = ("decode_tokens_per_second", "ttft.p50", "itl.p50", "itl.p99")
PREFILL: Final = ("prefill_tokens_per_second", "ttft.p50")


@dataclass(frozen=True, slots=True)
class Scenario:
    """One load. figures: what of its report is compared, the first being what it is about.

    shared  leading tokens that all prompts of a round have in common        rate  of Poisson arrivals, None: a closed loop
    """

    name: str
    text: str
    streams: int
    requests: int
    prompt: str
    output: str
    figures: Sequence[str]
    shared: int = 0
    rate: float | None = None

    def load(self, number: int, seed: int) -> Load:
        """The load of round `number`: the same for every server."""
        prompt, output = parse_length("prompt", self.prompt), parse_length("output", self.output)
        prefix = number + 1 if self.shared else 0
        if self.rate is not None:
            arrivals = list(Traffic(poisson(self.rate), prompt, output).arrivals(seed + number, self.requests))
            return Load(self.name, arrivals, None, opened=True)
        rng = Random(seed + number)
        asked = [Arrival(0.0, prompt(rng), output(rng), prefix, self.shared) for _ in range(self.requests)]
        return Load(self.name, asked, self.streams)

    @property
    def mean_lengths(self) -> tuple[int, int]:
        """Tokens in and out of an average request."""
        prompt, output = (
            (int(low) + int(high or low)) // 2 for low, _, high in (text.partition("-") for text in (self.prompt, self.output))
        )
        return prompt, output

    @property
    def context(self) -> int:
        """Tokens of its longest request, prompt and output."""
        return sum(int(text.rpartition("-")[2]) for text in (self.prompt, self.output))


def _streams(count: int, requests: int) -> Scenario:
    text = f"{count} stream{'s' * (count > 1)}, 127 tokens in, 64 out, {requests} requests per round"
    return Scenario(f"streams-{count}", text, count, requests, "127", "64", THROUGHPUT if count > 1 else (*DECODE, THROUGHPUT[0]))


START: Final = "start"
"""Not a load: from the start of a server's process to its first token."""

SCENARIOS: Final[Mapping[str, Scenario]] = {
    each.name: each
    for each in (
        _streams(1, 2), _streams(4, 4), _streams(16, 16), _streams(32, 32),
        Scenario("prefill-512", "1 stream, prompts of 512 tokens, 1 out", 1, 2, "512", "1", PREFILL),
        Scenario("prefill-2048", "1 stream, prompts of 2,048 tokens, 1 out", 1, 1, "2048", "1", PREFILL),
        Scenario("shared-prefix", "16 streams, prompts of 1,024 shared and 32 own tokens, 64 out; not cached before", 16, 16,
                 "1056", "64", THROUGHPUT, shared=1024),
        Scenario("decode-2000", "1 stream, 2,000 tokens of context, 64 out", 1, 1, "2000", "64", DECODE),
        Scenario("mixed", "prompts of 20 to 1,000 tokens, 10 to 300 out, 24 requests, 2 per second on average (Poisson)", 24, 24, "20-1000",
                 "10-300", THROUGHPUT, rate=2.0),
    )
}  # fmt: skip


def parse_scenarios(text: str | None) -> tuple[bool, list[Scenario]]:
    """Names with commas, None: all. Whether the start is among them, and the loads in the order of the table. Raises ConfigError."""
    names = [START, *SCENARIOS] if text is None else [name.strip() for name in text.split(",")]
    for name in names:
        if name != START and name not in SCENARIOS:
            raise ConfigError(
                f"--scenarios: {name[:40]!r} is not known; known: {', '.join((START, *SCENARIOS))}", fix={"--scenarios": None}
            )
    return START in names, [each for name, each in SCENARIOS.items() if name in names]


FLOATS: Final = ("f32_flops_per_second", "bf16_flops_per_second")
INTEGERS: Final = tuple(f"int{bits}_ops_per_second" for bits in (4, 5, 6, 8))
MOST_BYTES: Final = 1 << 20


def read_roofline(path: Path, threads: int, model: ModelFacts) -> Device:
    """The machine of a roofline, with one thread or with all. Raises ConfigError.

    Where the model's weights have 8 bits or fewer, the fastest products of integers count for all of its operations: no product is faster.
    """
    try:
        text = path.expanduser().read_bytes()[: MOST_BYTES + 1]
        found = json.loads(text) if len(text) <= MOST_BYTES else None
    except (ValueError, RecursionError):
        found = None
    except OSError as error:
        raise ConfigError(f"--roofline {str(path)!r:.200} cannot be read: {error.strerror}", fix={"--roofline": None}) from None
    if not isinstance(found, dict):
        raise ConfigError(f"--roofline {str(path)!r:.200} is no JSON of `ridgeline bench roofline --json`", fix={"--roofline": None})
    which = "one" if threads == 1 else "all"
    keys = (*FLOATS, *INTEGERS) if WEIGHT_FORMATS[model.dtype].layer_bits < 16 else FLOATS
    peak = max((_rate(found, key, which) for key in keys), default=0.0)
    bandwidth = _rate(found, "dram_bytes_per_second", which)
    if not bandwidth or not peak:
        missing = "dram_bytes_per_second" if not bandwidth else "f32_flops_per_second"
        raise ConfigError(f"{path.name} has no {missing}; write it with `ridgeline bench roofline --json`")
    # Neither its size nor its links are asked about: one machine holds the model.
    return Device("this machine", 1 << 60, bandwidth, {"f32": peak}, 1.0, 0.0, 0)


def _rate(found: Mapping[str, Any], key: str, which: str) -> float:
    """0 for what the machine lacks."""
    entry = found.get(key)
    value = entry.get(which) if isinstance(entry, dict) else None
    return float(value) if isinstance(value, (int, float)) and 0 < value < 1e18 else 0.0


def ceilings(scenario: Scenario, model: ModelFacts, device: Device) -> dict[str, float]:
    """The most tokens per second by figure: of one stream's decode, of a prompt, and of all output; for the scenario's mean lengths."""
    prompt, output = scenario.mean_lengths
    load = Workload(prompt, output, reused=scenario.shared / prompt * (1 - 1 / scenario.requests) if scenario.shared else 0.0)
    whole = Deployment(model, device, Layout(), None, "f16", prompt + output, scenario.streams, load)
    prefill, alone = _seconds(whole, prefill_work(whole)), _seconds(whole, decode_work(whole, 1))
    together = _seconds(whole, decode_work(whole, scenario.streams))
    waves = scenario.requests / scenario.streams
    seconds = scenario.requests * prefill + waves * (output - 1) * together
    return {
        "decode_tokens_per_second": 1 / alone,
        "prefill_tokens_per_second": prompt / prefill,
        "output_tokens_per_second": scenario.requests * output / seconds,
    }


def _seconds(deployment: Deployment, work: StepWork) -> float:
    return max(resource_seconds(deployment, work, IDEAL))


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
