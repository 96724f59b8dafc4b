"""Serving in this process: as many requests at once as are asked for, all the time, through the engine that serves, without HTTP and text.

Owns the load and its figures. The weights are random, prompts are random ids, answers have the length that is asked for. In a window of
serving prompts share nothing, and the first requests are as old as if the load had run for long (some have nearly all of their answer in
their prompt), so a short window shows what a long run would. A soak is mixed load for minutes, and says whether memory grows meanwhile:
requests have random lengths; some share a beginning, some sample, a few are sampled on the host, a few are aborted; the cache is too small
for all, so some are preempted; full and light load take turns.
"""

import importlib
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final, Protocol

from ridgeline.config.groups import EngineConfig
from ridgeline.config.runner import resolve_runner
from ridgeline.core.commands import Abort, Admit, Command
from ridgeline.core.events import Closed, Preempted, Rejected, Scheduled
from ridgeline.core.params import SamplingParams
from ridgeline.engine.admit import ModelLimits, admit
from ridgeline.engine.compose import make_engine
from ridgeline.engine.engine import Engine, Turn
from ridgeline.facts.hardware.machine import machine_facts
from ridgeline.facts.model import ModelFacts

POOL: Final = 64
"""Prompts that take turns: to make one takes longer than to admit it."""
SHARED: Final = 8
"""Different beginnings of prompts that share one."""


@dataclass(frozen=True, slots=True)
class Wish:
    """The request to make: tokens of its prompt, and how it is sampled. shared: leading ids that it has in common with its like."""

    prompt: int
    params: SamplingParams
    shared: int = 0


class Traffic:
    """Keeps `most` requests of an engine open; each is what `wish` returns for its number."""

    def __init__(self, engine: Engine, most: int, wish: Callable[[int], Wish], longest: int) -> None:
        info, draws = engine.executor.info, random.Random(0)
        self.most = most
        self.closed = 0
        self._limits = ModelLimits(info.vocab, info.max_model_len, frozenset(), info.kv)
        self._wish, self._number = wish, 0
        self._open: set[str] = set()
        self._pool = [tuple(draws.randrange(info.vocab) for _ in range(longest)) for _ in range(POOL)]

    @property
    def open(self) -> frozenset[str]:
        """Requests that have not ended."""
        return frozenset(self._open)

    def commands(self) -> list[Command]:
        """Requests in place of those that have ended."""
        return [self._next() for _ in range(self.most - len(self._open))]

    def take(self, turn: Turn) -> None:
        """Notes what has ended. Raises RuntimeError where the engine refuses a request: the load is then not what was asked for."""
        for event in turn.events:
            if isinstance(event, Rejected):
                raise RuntimeError(f"the engine rejects {event.request_id}: {event.message}")
            if isinstance(event, Closed) and event.request_id in self._open:
                self._open.remove(event.request_id)
                self.closed += 1

    def abort(self) -> list[Command]:
        """Ends everything."""
        return [Abort(name) for name in self._open]

    def _next(self) -> Admit:
        number, self._number = self._number, self._number + 1
        wish = self._wish(number)
        own, common = self._pool[number % POOL], self._pool[number % SHARED]
        ids = (*common[: wish.shared], *own[wish.shared : wish.prompt])
        self._open.add(f"r{number}")
        return Admit(admit(ids, wish.params, self._limits, request_id=f"r{number}", draw_seed=lambda: number))


WORKER: Final = "ridgeline.compute.runtime.worker"
BACKEND: Final = "ridgeline.compute.cuda.backend"
OPENING: Final = "ridgeline.compute.opening"
LOAD: Final = "ridgeline.compute.cuda.load"
WARM_STEPS: Final = 64
"""Full ones, before anything is measured: steps of every kind have run then, and kernels are compiled."""
FULL_SHARE: Final = 0.9
"""Of the rows that get a token in a step that counts as full: some may be in their prompts."""
FILL_SECONDS: Final = 40.0
WAITING: Final = 8
"""Requests that wait where the engine has no row for more: one that is free is taken at once."""


class Watch(Protocol):
    """A watch on the device's side of steps; see `compute/cuda/bench/timing.py`."""

    def begin(self) -> None:
        """Steps count from now on."""
        ...

    def end(self) -> tuple[Sequence[float], Sequence[float]]:
        """Seconds that the device computed for each step, and that it had nothing to do before each but the first."""
        ...


def start(
    facts: ModelFacts, settings: Mapping[str, Any], watch: object, *, rows: int, length: int, prefix_caching: bool
) -> tuple[Engine, dict[str, Any]]:
    """An engine with random weights, and a row that says how it started. Raises ConfigError where the model does not fit.

    settings  dtype, kv_dtype, budget (tokens of a step), memory_bytes (of the cache, or None)
    """
    config = EngineConfig(
        facts.name, runner="cuda", dtype=settings["dtype"], kv_dtype=settings["kv_dtype"], max_model_len=length, max_num_seqs=rows,
        max_num_batched_tokens=settings["budget"], enable_prefix_caching=prefix_caching, kv_cache_memory_bytes=settings["memory_bytes"],
    )  # fmt: skip
    settled, _ = resolve_runner(config, no_extension=None, no_gpu=None, cpu_cores=1)
    began = perf_counter()
    load = importlib.import_module(LOAD).random_weights
    open_cuda = partial(importlib.import_module(BACKEND).open_cuda, load=load, graphs=watch)
    source = importlib.import_module(OPENING).ModelSource(settled, facts, machine_facts().memory_bytes)
    executor = importlib.import_module(WORKER).start(source, open_cuda, lambda stage, part: None)
    engine, _ = make_engine(executor, settled)
    info = executor.info
    return engine, {
        "start_seconds": perf_counter() - began, "rows": info.rows, "kv_bytes": info.kv_bytes, "weights_bytes": info.weights_bytes,
        "decisions": {each.name: str(each.value) for each in executor.decisions},
    }  # fmt: skip


def serving(facts: ModelFacts, settings: Mapping[str, Any], watch: Any) -> Iterator[dict[str, Any]]:
    """Rows: how the engine started, then what it did with each number of requests at once.

    settings  those of `start`; prompt_tokens, output_tokens; phases: (requests at once, seconds that are measured) each
    """
    most = max(rows for rows, _ in settings["phases"])
    length = settings["prompt_tokens"] + settings["output_tokens"]
    engine, began = start(facts, settings, watch, rows=most, length=length, prefix_caching=False)
    try:
        yield began
        for rows, seconds in settings["phases"]:
            waiting = WAITING if rows == most else 0
            traffic = Traffic(engine, rows + waiting, aged(rows, settings["prompt_tokens"], settings["output_tokens"]), length)
            yield {"rows": rows, **phase(engine, traffic, rows, seconds, watch)}
            drain(engine, traffic)
    finally:
        engine.executor.close()


def aged(rows: int, prompt: int, output: int) -> Callable[[int], Wish]:
    """Requests of `prompt` and `output` tokens, of which the first `rows` have already had equally spaced parts of their answers."""

    def wish(number: int) -> Wish:
        had = output * number // rows if number < rows else 0
        return Wish(prompt + had, SamplingParams(temperature=0.0, max_tokens=output - had, ignore_eos=True))

    return wish


def phase(engine: Engine, traffic: Traffic, rows: int, seconds: float, watch: Watch) -> dict[str, Any]:
    """Figures of so many seconds once `rows` requests get tokens, or `FILL_SECONDS` are over: `rows_served` says how many do.

    step_seconds  from one step's results to the next one's      host_seconds  of a step: everything but waiting for the device
    idle_seconds  what the device waited for a step's kernels    fill_seconds  until all rows were there, steps to warm up included
    """
    began, full = perf_counter(), 0
    for tokens, _, _ in _turns(engine, traffic):
        full += tokens >= FULL_SHARE * rows
        if full == WARM_STEPS or perf_counter() - began > FILL_SECONDS:
            break
    filled, ended_before = perf_counter(), traffic.closed
    watch.begin()
    turns, prompts, ended = [], 0, filled
    for tokens, waited, computed in _turns(engine, traffic):
        before, ended = ended, perf_counter()
        turns.append((ended - before, tokens, max(0.0, ended - before - waited)))
        prompts += max(0, computed - tokens)
        if ended - filled >= seconds:
            break
    device, idle = watch.end()
    spans, hosts = [each for each, _, _ in turns], [each for _, _, each in turns]
    total = sum(tokens for _, tokens, _ in turns)
    return {
        "tokens_per_second": total / (ended - filled), "seconds": ended - filled, "fill_seconds": filled - began, "steps": len(turns),
        "rows_served": median(tokens for _, tokens, _ in turns), "output_tokens": total,
        "prompt_tokens": prompts, "requests": traffic.closed - ended_before,
        "step_seconds": median(spans), "step_p99_seconds": percentile(spans, 0.99), "device_seconds": median(device or [0.0]),
        "host_seconds": median(hosts), "host_p99_seconds": percentile(hosts, 0.99),
        "idle_seconds": median(idle or [0.0]), "idle_p99_seconds": percentile(idle or [0.0], 0.99),
        "share_idle": sum(idle) / (ended - filled),
    }  # fmt: skip


def _turns(engine: Engine, traffic: Traffic) -> Iterator[tuple[int, float, int]]:
    """Turns of the engine, for ever: tokens sampled, seconds waited for the device, tokens that steps were given."""
    executor: Any = engine.executor
    while True:
        before = executor.wait_seconds
        turn = engine.turn(traffic.commands())
        traffic.take(turn)
        tokens = sum(len(output.ids) for output in turn.outputs)
        computed = sum(sum(event.count) for event in turn.events if isinstance(event, Scheduled))
        yield tokens, executor.wait_seconds - before, computed


def drain(engine: Engine, traffic: Traffic) -> None:
    """Ends every request."""
    commands = traffic.abort()
    while commands or not engine.idle:
        traffic.take(engine.turn(commands))
        commands = []


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that `share` of all do not exceed."""
    return sorted(values)[ceil(share * len(values)) - 1]


Memory = dict[str, int]
"""Bytes by who counts them: `allocated` and `reserved` by torch, `used` by the driver."""

SPARE_BYTES: Final[Mapping[str, int]] = {"allocated": 4 << 20, "reserved": 64 << 20, "used": 64 << 20}
"""What each may differ by and count as the same: a kernel that is loaded late, a copy that lives for a moment."""
LIGHT_SHARE: Final = 8
"""Of the rows, one in so many is used while the load is light."""
ABORTED, HOST_SAMPLED, BEGINNING = 50, 64, 4
"""One request in so many: is aborted, is sampled on the host, shares its beginning."""


@dataclass(slots=True)
class Samples:
    """Memory over time, in seconds from the beginning."""

    times: list[float] = field(default_factory=list)
    values: list[dict[str, int]] = field(default_factory=list)

    def add(self, time: float, values: Memory) -> None:
        """One look."""
        self.times.append(time)
        self.values.append(dict(values))

    def growth(self) -> dict[str, int]:
        """Bytes by which the median of the last quarter of the time exceeds that of the second quarter; the first is for warming up."""
        end = self.times[-1]
        early = [value for time, value in zip(self.times, self.values, strict=True) if end / 4 <= time < end / 2] or self.values[:1]
        late = [value for time, value in zip(self.times, self.values, strict=True) if time >= 3 * end / 4]
        return {name: int(_middle(late, name) - _middle(early, name)) for name in self.values[0]}


def _middle(values: Sequence[Memory], name: str) -> float:
    return median(value[name] for value in values)


def soak(facts: ModelFacts, settings: Mapping[str, Any], memory: Callable[[], Memory]) -> Iterator[dict[str, Any]]:
    """Rows: how the engine started, memory from time to time, then what became of it, an error where it grew.

    settings  as of `gpu_serving.start`; rows; prompt_tokens, output_tokens: the most; seconds; every_seconds, of a sample; swing_seconds,
              of full and of light load
    """
    length = settings["prompt_tokens"] + settings["output_tokens"]
    engine, began = start(facts, settings, None, rows=settings["rows"], length=length, prefix_caching=True)
    try:
        yield began
        yield from run(engine, settings, memory)
    finally:
        engine.executor.close()


def run(engine: Engine, settings: Mapping[str, Any], memory: Callable[[], Memory]) -> Iterator[dict[str, Any]]:
    """The load on an engine that is there."""
    rows, longest = settings["rows"], settings["prompt_tokens"]
    traffic = Traffic(engine, rows + rows // LIGHT_SHARE, mixture(longest, settings["output_tokens"]), longest)
    samples, draws, began, tokens, preempted, aborted = Samples(), random.Random(1), perf_counter(), 0, 0, 0
    now = looked = 0.0
    while now < settings["seconds"]:
        light = int(now / settings["swing_seconds"]) % 2
        traffic.most = rows // LIGHT_SHARE if light else rows + rows // LIGHT_SHARE
        commands = traffic.commands()
        if traffic.open and draws.randrange(settings["output_tokens"] * ABORTED) < len(traffic.open):
            commands.append(Abort(draws.choice(sorted(traffic.open))))
            aborted += 1
        turn = engine.turn(commands)
        traffic.take(turn)
        tokens += sum(len(output.ids) for output in turn.outputs)
        preempted += sum(isinstance(event, Preempted) for event in turn.events)
        now = perf_counter() - began
        if now - looked >= settings["every_seconds"] or not samples.times:
            looked = now
            samples.add(now, memory() | {"host": host_bytes()})
            yield {"at_seconds": now, **samples.values[-1]}
    samples.add(now, memory() | {"host": host_bytes()})
    drain(engine, traffic)
    yield verdict(samples) | {
        "requests": traffic.closed, "aborted": aborted, "preempted": preempted, "output_tokens": tokens, "seconds": now,
    }  # fmt: skip


def verdict(samples: Samples) -> dict[str, Any]:
    """Growth of each count, `grown_bytes`: of the device's that grew most beyond what it may; an error where one did."""
    growth = samples.growth()
    beyond = {name: max(0, growth[name] - spare) for name, spare in SPARE_BYTES.items()}
    found: dict[str, Any] = {f"{name}_growth_bytes": value for name, value in growth.items()} | {"grown_bytes": max(beyond.values())}
    if found["grown_bytes"]:
        told = ", ".join(f"{name} by {growth[name]} (at most {SPARE_BYTES[name]})" for name, bytes_ in beyond.items() if bytes_)
        found["error"] = f"device memory grew: bytes {told}"
    return found


def mixture(prompt: int, output: int) -> Callable[[int], Wish]:
    """Requests of up to so many tokens, the same for the same number."""

    def wish(number: int) -> Wish:
        draws = random.Random(number)
        length = max(1, round(prompt ** draws.random()))
        asked: dict[str, Any] = {"temperature": 0.0} if draws.random() < 0.5 else {"temperature": 0.8, "top_p": 0.95, "top_k": 50}
        if not draws.randrange(HOST_SAMPLED):
            asked |= {"logprobs": 2, "repetition_penalty": 1.1}
        shared = length // 2 if not draws.randrange(BEGINNING) else 0
        return Wish(length, SamplingParams(**asked, max_tokens=draws.randint(1, output), ignore_eos=True), shared)

    return wish


def host_bytes() -> int:
    """Resident memory of this process; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
