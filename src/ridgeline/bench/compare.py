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

from ridgeline.bench.report import LoadReport, get_metric, make_report, report_notes
from ridgeline.bench.servers import Server, ServerSpec
from ridgeline.bench.session import Load, RequestOptions, Session
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
class LoadScenario:
    """One load. figures: metrics to compare, the main one first.

    shared  tokens of the prefix that all prompts of a round share        rate  of Poisson arrivals, None: a closed loop
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
            return Load(self.name, arrivals, None, is_open_loop=True)
        rng = Random(seed + number)
        arrivals = [Arrival(0.0, prompt(rng), output(rng), prefix, self.shared) for _ in range(self.requests)]
        return Load(self.name, arrivals, self.streams)

    @property
    def mean_lengths(self) -> tuple[int, int]:
        """Mean prompt and output tokens of a request."""
        prompt, output = (
            (int(low) + int(high or low)) // 2 for low, _, high in (text.partition("-") for text in (self.prompt, self.output))
        )
        return prompt, output

    @property
    def context(self) -> int:
        """Tokens of its longest request, prompt and output."""
        return sum(int(text.rpartition("-")[2]) for text in (self.prompt, self.output))


def _streams(count: int, requests: int) -> LoadScenario:
    text = f"{count} stream{'s' * (count > 1)}, 127 tokens in, 64 out, {requests} requests per round"
    return LoadScenario(f"streams-{count}", text, count, requests, "127", "64", THROUGHPUT if count > 1 else (*DECODE, THROUGHPUT[0]))


START: Final = "start"
"""Name of the measurement of start-up: from the start of a server's process to its first token."""

SCENARIOS: Final[Mapping[str, LoadScenario]] = {
    each.name: each
    for each in (
        _streams(1, 2), _streams(4, 4), _streams(16, 16), _streams(32, 32),
        LoadScenario("prefill-512", "1 stream, prompts of 512 tokens, 1 out", 1, 2, "512", "1", PREFILL),
        LoadScenario("prefill-2048", "1 stream, prompts of 2,048 tokens, 1 out", 1, 1, "2048", "1", PREFILL),
        LoadScenario("shared-prefix", "16 streams, prompts of 1,024 shared and 32 own tokens, 64 out; not cached before", 16, 16,
                 "1056", "64", THROUGHPUT, shared=1024),
        LoadScenario("decode-2000", "1 stream, 2,000 tokens of context, 64 out", 1, 1, "2000", "64", DECODE),
        LoadScenario("mixed", "prompts of 20 to 1,000 tokens, 10 to 300 out, 24 requests, 2 per second on average (Poisson)", 24, 24,
                     "20-1000", "10-300", THROUGHPUT, rate=2.0),
    )
}  # fmt: skip


def parse_scenarios(text: str | None) -> tuple[bool, list[LoadScenario]]:
    """(start-up is measured, scenarios in the order of the table) from names with commas; None: all. Raises ConfigError."""
    names = [START, *SCENARIOS] if text is None else [name.strip() for name in text.split(",")]
    for name in names:
        if name != START and name not in SCENARIOS:
            raise ConfigError(
                f"--scenarios: {name[:40]!r} is not known; known: {', '.join((START, *SCENARIOS))}", fix={"--scenarios": None}
            )
    return START in names, [each for name, each in SCENARIOS.items() if name in names]


FLOATS: Final = ("f32_flops_per_second", "bf16_flops_per_second")
INTEGERS: Final = tuple(f"int{bits}_ops_per_second" for bits in (4, 5, 6, 8))
MAX_ROOFLINE_BYTES: Final = 1 << 20


def read_roofline(path: Path, threads: int, model: ModelFacts) -> Device:
    """The machine of a roofline, with one thread or with all. Raises ConfigError.

    For weights of 8 bits or fewer, the fastest integer products set the peak of all operations.
    """
    try:
        text = path.expanduser().read_bytes()[: MAX_ROOFLINE_BYTES + 1]
        found = json.loads(text) if len(text) <= MAX_ROOFLINE_BYTES else None
    except (ValueError, RecursionError):
        found = None
    except OSError as error:
        raise ConfigError(f"--roofline {str(path)!r:.200} cannot be read: {error.strerror}", fix={"--roofline": None}) from None
    if not isinstance(found, dict):
        raise ConfigError(f"--roofline {str(path)!r:.200} is not JSON of `ridgeline bench roofline --json`", fix={"--roofline": None})
    which = "one" if threads == 1 else "all"
    keys = (*FLOATS, *INTEGERS) if WEIGHT_FORMATS[model.dtype].layer_bits < 16 else FLOATS
    peak = max((_rate(found, key, which) for key in keys), default=0.0)
    bandwidth = _rate(found, "dram_bytes_per_second", which)
    if not bandwidth or not peak:
        missing = "dram_bytes_per_second" if not bandwidth else "f32_flops_per_second"
        raise ConfigError(f"{path.name} has no {missing}; write it with `ridgeline bench roofline --json`")
    # memory size and links do not matter: one machine holds the model
    return Device("this machine", 1 << 60, bandwidth, {"f32": peak}, 1.0, 0.0, 0)


def _rate(found: Mapping[str, Any], key: str, which: str) -> float:
    """A rate of the roofline's JSON, 0 where it is missing."""
    entry = found.get(key)
    value = entry.get(which) if isinstance(entry, dict) else None
    return float(value) if isinstance(value, (int, float)) and 0 < value < 1e18 else 0.0


def ceilings(scenario: LoadScenario, model: ModelFacts, device: Device) -> dict[str, float]:
    """Upper bounds of tokens per second by metric: one stream's decode, prefill, all output; for the scenario's mean lengths."""
    prompt, output = scenario.mean_lengths
    load = Workload(prompt, output, reused=scenario.shared / prompt * (1 - 1 / scenario.requests) if scenario.shared else 0.0)
    deployment = Deployment(model, device, Layout(), None, "f16", prompt + output, scenario.streams, load)
    prefill, single = _seconds(deployment, prefill_work(deployment)), _seconds(deployment, decode_work(deployment, 1))
    together = _seconds(deployment, decode_work(deployment, scenario.streams))
    waves = scenario.requests / scenario.streams
    seconds = scenario.requests * prefill + waves * (output - 1) * together
    return {
        "decode_tokens_per_second": 1 / single,
        "prefill_tokens_per_second": prompt / prefill,
        "output_tokens_per_second": scenario.requests * output / seconds,
    }


def _seconds(deployment: Deployment, work: StepWork) -> float:
    return max(resource_seconds(deployment, work, IDEAL))


RESAMPLES: Final = 2_000
CONFIDENCE: Final = 0.95
SETTLE_SECONDS: Final = 0.3
"""Between two turns: a server's threads may spin for some time after its last token."""
ROUND_PROMPTS: Final = 1 << 16
"""Prompt numbers reserved for each round of each scenario."""

OnTurn = Callable[[str, str, int], None]


@dataclass(slots=True)
class ServerRounds:
    """The rounds of one server in one scenario: for each a report, resident bytes afterwards, and the answer to the first prompt.

    alone_text  the answer to the first round's first prompt when it is repeated alone; None where it was alone before
    """

    reports: list[LoadReport] = field(default_factory=list)
    resident_bytes: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    alone_text: str | None = None


@dataclass(slots=True)
class ServerStarts:
    """Per start the seconds from the start of the process to the first token, and resident bytes then."""

    seconds: list[float] = field(default_factory=list)
    resident_bytes: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ComparisonResults:
    """Results by server name, grown while measuring; `notes` without duplicates, as keys.

    failed_servers  servers that could not be started, with the error; the others are measured without them
    """

    starts: dict[str, ServerStarts] = field(default_factory=dict)
    rounds_by_scenario: dict[str, dict[str, ServerRounds]] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    failed_servers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ComparisonOptions:
    """Options of a comparison.

    rounds   runs of all scenarios in turn, so that a time limit affects all of them
    starts   start-up measurements of each server that is started here, before the rounds
    restart  run only the server whose turn it is; else all started servers stay in memory, idle
    seconds  time limit: after the first round, no round starts that would end later; None for no limit
    """

    rounds: int
    starts: int
    restart: bool = False
    seconds: float | None = None


class Comparison:
    """Comparison of several servers.

    results  so far, also after an interrupted run
    """

    def __init__(self, specs: Sequence[ServerSpec], request_options: RequestOptions, seed: int, settings: ComparisonOptions) -> None:
        self._specs, self._request_options, self._seed, self._settings = specs, request_options, seed, settings
        self._running: dict[str, tuple[Session, Server | None]] = {}
        self._began, self._round_seconds = perf_counter(), dict[str, float]()
        self.results = ComparisonResults({spec.name: ServerStarts() for spec in specs})

    async def run(self, scenarios: Sequence[LoadScenario], on_turn: OnTurn, on_round: Callable[[], None]) -> None:
        """Measures start-up, then the scenarios. Raises ConfigError where no server can be measured.

        on_turn   called with scenario, server and round before each turn
        on_round  called after each round of a scenario
        """
        for number in range(self._settings.starts):
            for spec in self._available():
                if spec.command is not None:
                    on_turn(START, spec.name, number)
                    await self._start_and_stop(spec)
        async with AsyncExitStack() as stack:
            if not self._settings.restart and scenarios:
                for spec in self._available():
                    await self._open_session(spec, stack)
            for number in range(self._settings.rounds):
                for place, scenario in enumerate(scenarios):
                    if self._has_time(scenario, number):
                        first = (place * self._settings.rounds + number) * ROUND_PROMPTS
                        await self._round(scenario, number, first, stack, on_turn)
                        on_round()
        is_measured = any(each.seconds for each in self.results.starts.values()) or self.results.rounds_by_scenario
        if self.results.failed_servers and not is_measured:
            raise ConfigError("; ".join(self.results.failed_servers.values()))

    def _available(self) -> list[ServerSpec]:
        return [spec for spec in self._specs if spec.name not in self.results.failed_servers]

    def _has_time(self, scenario: LoadScenario, number: int) -> bool:
        """True if a round may begin; the first always."""
        limit = self._settings.seconds
        if limit is None or number == 0 or perf_counter() - self._began + self._round_seconds[scenario.name] <= limit:
            return True
        self.results.notes[f"{scenario.name}: the time limit allowed {number} of {self._settings.rounds} rounds"] = None
        return False

    async def _round(self, scenario: LoadScenario, number: int, first: int, stack: AsyncExitStack, on_turn: OnTurn) -> None:
        began = perf_counter()
        turns = self.results.rounds_by_scenario.setdefault(scenario.name, {spec.name: ServerRounds() for spec in self._available()})
        for spec in self._available():
            if spec.name in turns:
                on_turn(scenario.name, spec.name, number)
                await self._turn(spec, scenario, number, first, turns[spec.name], stack)
        self._round_seconds[scenario.name] = max(perf_counter() - began, self._round_seconds.get(scenario.name, 0.0))

    async def _start_and_stop(self, spec: ServerSpec) -> None:
        try:
            await (await self._start(spec)).stop()
        except ConfigError as error:
            self.results.failed_servers[spec.name] = str(error)

    async def _start(self, spec: ServerSpec) -> Server:
        server = await Server.start(spec, self._request_options)
        self.results.starts[spec.name].seconds.append(server.first_token_seconds)
        self.results.starts[spec.name].resident_bytes.append(server.started_bytes)
        return server

    async def _open_session(self, spec: ServerSpec, stack: AsyncExitStack) -> None:
        """Starts a server and opens its session until the stack unwinds, or records its failure."""
        server = None
        try:
            if spec.command is not None:
                server = await self._start(spec)
                stack.push_async_callback(server.stop)
            session = await Session.open(spec.url, self._request_options.with_model(spec.model), self._seed)
        except ConfigError as error:
            self.results.failed_servers[spec.name] = str(error)
            return
        stack.callback(session.close)
        self.results.models[spec.name] = session.model
        self._running[spec.name] = session, server

    async def _turn(
        self, spec: ServerSpec, scenario: LoadScenario, number: int, first: int, turns: ServerRounds, run_stack: AsyncExitStack
    ) -> None:
        """Measures one server; after the first round repeats its first prompt alone. A server that has ended is started again."""
        async with AsyncExitStack() as stack:
            server = self._running[spec.name][1] if spec.name in self._running else None
            is_restarted = self._settings.restart or (server is not None and server.has_ended)
            if is_restarted:
                if not self._settings.restart:
                    self._note(spec, scenario, ["it had ended and was started again"])
                await self._open_session(spec, stack if self._settings.restart else run_stack)
                if spec.name in self.results.failed_servers:
                    return
            session, server = self._running[spec.name]
            load = scenario.load(number, self._seed)
            if is_restarted or number == 0:
                failed = await session.warm_up(scenario.load(-1, self._seed), 1, 1)
                self._note(spec, scenario, [f"the request to warm up failed, {message}" for message in failed])
            await asyncio.sleep(SETTLE_SECONDS)
            measured = await session.measure(load, first)
            first_outcome = min(measured.outcomes, key=lambda outcome: outcome.request.number)
            report = make_report(measured, Objective())
            turns.reports.append(report)
            turns.texts.append(first_outcome.text)
            turns.resident_bytes.append(0 if server is None else server.resident_bytes())
            if number == 0 and scenario.streams > 1:
                turns.alone_text = (await session.measure(first_request(load), first)).outcomes[0].text
            self._note(spec, scenario, report_notes(report))

    def _note(self, spec: ServerSpec, scenario: LoadScenario, messages: Sequence[str]) -> None:
        self.results.notes.update({f"{spec.name}, {scenario.name}: {each}": None for each in messages})


@dataclass(frozen=True, slots=True)
class Ratio:
    """The ratio of two medians with its `CONFIDENCE` interval."""

    value: float
    low: float
    high: float


def first_request(load: Load) -> Load:
    """A load of the first request alone."""
    first = replace(next(iter(load.arrivals)), time=0.0)
    return Load(load.name, [first], 1)


def round_values(turns: ServerRounds, figure: str) -> list[float]:
    """A metric of each round; empty where a round has no answers."""
    return [get_metric(report, figure) for report in turns.reports] if all(report.requests for report in turns.reports) else []


def ratio(numerators: Sequence[float], denominators: Sequence[float], seed: int = 0) -> Ratio | None:
    """Ratio of medians over paired rounds, unpaired ones left out; None without rounds or where a denominator is 0."""
    pairs = min(len(numerators), len(denominators))
    numerators, denominators = numerators[:pairs], denominators[:pairs]
    if not pairs or min(denominators) <= 0:
        return None
    rng, rounds = Random(seed), range(len(numerators))
    found = []
    for _ in range(RESAMPLES):
        drawn = rng.choices(rounds, k=len(numerators))
        found.append(median([numerators[at] for at in drawn]) / median([denominators[at] for at in drawn]))
    found.sort()
    tail = int((1 - CONFIDENCE) / 2 * RESAMPLES)
    return Ratio(median(numerators) / median(denominators), found[tail], found[-1 - tail])


def common_prefix(one: str, other: str) -> tuple[int, int]:
    """(length of the common prefix of two answers, length of the longer one), in characters."""
    longest = max(len(one), len(other))
    same = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return same, longest
