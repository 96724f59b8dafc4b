"""Serving in this process: a constant number of requests through the production engine, without HTTP and text.

Weights are random, prompts are random ids, answers have a fixed length. In `serving`, prompts share nothing, and the first requests start
at different ages (part of their answer is in their prompt), so that a short window is in steady state. A soak is mixed load for minutes
that checks whether memory grows: requests have random lengths; some share a prefix, some sample, a few are sampled on the host, a few are
aborted; the cache is too small for all, so some are preempted; full and light load alternate.
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

PROMPT_POOL_SIZE: Final = 64
"""Prompts that are reused in turn: making one takes longer than admitting it."""
NUM_SHARED_PREFIXES: Final = 8
"""Number of different shared prefixes."""


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """A request to make: prompt tokens, sampling parameters; shared: tokens of a shared prefix."""

    prompt: int
    params: SamplingParams
    shared: int = 0


class ConstantLoad:
    """Keeps `max_open` requests of an engine open; `make_request(number)` specifies each."""

    def __init__(self, engine: Engine, max_open: int, make_request: Callable[[int], RequestSpec], longest: int) -> None:
        info, rng = engine.executor.info, random.Random(0)
        self.max_open = max_open
        self.closed = 0
        self._limits = ModelLimits(info.vocab, info.max_model_len, frozenset(), info.kv)
        self._make_request, self._number = make_request, 0
        self._open: set[str] = set()
        self._pool = [tuple(rng.randrange(info.vocab) for _ in range(longest)) for _ in range(PROMPT_POOL_SIZE)]

    @property
    def open(self) -> frozenset[str]:
        """Requests that have not ended."""
        return frozenset(self._open)

    def commands(self) -> list[Command]:
        """Admissions that replace the requests that have ended."""
        return [self._next() for _ in range(self.max_open - len(self._open))]

    def on_turn(self, turn: Turn) -> None:
        """Records requests that have ended. Raises RuntimeError where the engine rejects one."""
        for event in turn.events:
            if isinstance(event, Rejected):
                raise RuntimeError(f"the engine rejects {event.request_id}: {event.message}")
            if isinstance(event, Closed) and event.request_id in self._open:
                self._open.remove(event.request_id)
                self.closed += 1

    def abort(self) -> list[Command]:
        """Commands that abort all requests."""
        return [Abort(name) for name in self._open]

    def _next(self) -> Admit:
        number, self._number = self._number, self._number + 1
        make_request = self._make_request(number)
        own, common = self._pool[number % PROMPT_POOL_SIZE], self._pool[number % NUM_SHARED_PREFIXES]
        ids = (*common[: make_request.shared], *own[make_request.shared : make_request.prompt])
        self._open.add(f"r{number}")
        return Admit(admit(ids, make_request.params, self._limits, request_id=f"r{number}", draw_seed=lambda: number))


WORKER: Final = "ridgeline.compute.runtime.worker"
BACKEND: Final = "ridgeline.compute.cuda.backend"
OPENING: Final = "ridgeline.compute.opening"
LOAD: Final = "ridgeline.compute.cuda.load"
WARM_STEPS: Final = 64
"""Full steps before the measurement, so that all kernels are compiled."""
FULL_SHARE: Final = 0.9
"""Share of rows that get a token in a step that counts as full: others may be in prefill."""
FILL_SECONDS: Final = 40.0
NUM_WAITING: Final = 8
"""Requests that wait for a row, so that a free row is taken at once."""


class DeviceTimer(Protocol):
    """A watch on the device's side of steps; see `compute/cuda/bench/timing.py`."""

    def begin(self) -> None:
        """Starts measuring steps."""
        ...

    def end(self) -> tuple[Sequence[float], Sequence[float]]:
        """(seconds of each step on the device, idle seconds before each step but the first)."""
        ...


def start(
    facts: ModelFacts, settings: Mapping[str, Any], watch: object, *, rows: int, length: int, prefix_caching: bool
) -> tuple[Engine, dict[str, Any]]:
    """An engine with random weights, and a row about its start. Raises ConfigError where the model does not fit.

    settings  dtype, kv_dtype, budget (tokens of a step), memory_bytes (of the cache, or None)
    """
    config = EngineConfig(
        facts.name, runner="cuda", dtype=settings["dtype"], kv_dtype=settings["kv_dtype"], max_model_len=length, max_num_seqs=rows,
        max_num_batched_tokens=settings["budget"], enable_prefix_caching=prefix_caching, kv_cache_memory_bytes=settings["memory_bytes"],
    )  # fmt: skip
    settled, _ = resolve_runner(config, no_extension=None, no_gpu=None, cpu_cores=1)
    began = perf_counter()
    load_weights = importlib.import_module(LOAD).random_weights
    open_cuda = partial(importlib.import_module(BACKEND).open_cuda, load=load_weights, graphs=watch)
    source = importlib.import_module(OPENING).ModelSource(settled, facts, machine_facts().memory_bytes)
    executor = importlib.import_module(WORKER).start(source, open_cuda, lambda stage, part: None)
    engine, _ = make_engine(executor, settled)
    info = executor.info
    return engine, {
        "start_seconds": perf_counter() - began, "rows": info.rows, "kv_bytes": info.kv_bytes, "weights_bytes": info.weights_bytes,
        "decisions": {each.name: str(each.value) for each in executor.decisions},
    }  # fmt: skip


def serving(facts: ModelFacts, settings: Mapping[str, Any], watch: Any) -> Iterator[dict[str, Any]]:
    """Yields a row about the start, then one per number of concurrent requests.

    settings  those of `start`; prompt_tokens, output_tokens; phases: (concurrent requests, measured seconds) each
    """
    max_rows = max(rows for rows, _ in settings["phases"])
    length = settings["prompt_tokens"] + settings["output_tokens"]
    engine, began = start(facts, settings, watch, rows=max_rows, length=length, prefix_caching=False)
    try:
        yield began
        for rows, seconds in settings["phases"]:
            waiting = NUM_WAITING if rows == max_rows else 0
            make_request = staggered_requests(rows, settings["prompt_tokens"], settings["output_tokens"])
            load = ConstantLoad(engine, rows + waiting, make_request, length)
            yield {"rows": rows, **measure_phase(engine, load, rows, seconds, watch)}
            drain(engine, load)
    finally:
        engine.executor.close()


def staggered_requests(rows: int, prompt: int, output: int) -> Callable[[int], RequestSpec]:
    """Requests of `prompt` and `output` tokens; the first `rows` start with equally spaced parts of their answers done."""

    def make_request(number: int) -> RequestSpec:
        done = output * number // rows if number < rows else 0
        return RequestSpec(prompt + done, SamplingParams(temperature=0.0, max_tokens=output - done, ignore_eos=True))

    return make_request


def measure_phase(engine: Engine, load: ConstantLoad, rows: int, seconds: float, watch: DeviceTimer) -> dict[str, Any]:
    """Metrics of `seconds`, once `rows` requests get tokens or after `FILL_SECONDS`; `rows_served` is their median number.

    step_seconds  from one step's results to the next one's      host_seconds  of a step: everything but waiting for the device
    idle_seconds  of the device before a step                    fill_seconds  until all rows run, warm-up included
    """
    began, full = perf_counter(), 0
    for tokens, _, _ in _turns(engine, load):
        full += tokens >= FULL_SHARE * rows
        if full == WARM_STEPS or perf_counter() - began > FILL_SECONDS:
            break
    filled, ended_before = perf_counter(), load.closed
    watch.begin()
    turns, prompts, ended = [], 0, filled
    for tokens, waited, computed in _turns(engine, load):
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
        "prompt_tokens": prompts, "requests": load.closed - ended_before,
        "step_seconds": median(spans), "step_p99_seconds": percentile(spans, 0.99), "device_seconds": median(device or [0.0]),
        "host_seconds": median(hosts), "host_p99_seconds": percentile(hosts, 0.99),
        "idle_seconds": median(idle or [0.0]), "idle_p99_seconds": percentile(idle or [0.0], 0.99),
        "share_idle": sum(idle) / (ended - filled),
    }  # fmt: skip


def _turns(engine: Engine, load: ConstantLoad) -> Iterator[tuple[int, float, int]]:
    """Endless turns of the engine: (sampled tokens, seconds waited for the device, scheduled tokens)."""
    executor: Any = engine.executor
    while True:
        before = executor.wait_seconds
        turn = engine.turn(load.commands())
        load.on_turn(turn)
        tokens = sum(len(output.ids) for output in turn.outputs)
        computed = sum(sum(event.count) for event in turn.events if isinstance(event, Scheduled))
        yield tokens, executor.wait_seconds - before, computed


def drain(engine: Engine, load: ConstantLoad) -> None:
    """Aborts all requests and runs until the engine is idle."""
    commands = load.abort()
    while commands or not engine.idle:
        load.on_turn(engine.turn(commands))
        commands = []


def percentile(values: Sequence[float], share: float) -> float:
    """Percentile by the nearest rank."""
    return sorted(values)[ceil(share * len(values)) - 1]


Memory = dict[str, int]
"""Bytes by counter: `allocated` and `reserved` of torch, `used` of the driver."""

ALLOWED_GROWTH: Final[Mapping[str, int]] = {"allocated": 4 << 20, "reserved": 64 << 20, "used": 64 << 20}
"""Growth that is tolerated per counter: a kernel loaded late, a temporary copy."""
LIGHT_LOAD_DIVISOR: Final = 8
"""Light load uses one row in so many."""
ABORT_EVERY, HOST_SAMPLED_EVERY, SHARED_PREFIX_EVERY = 50, 64, 4
"""One request in so many is aborted, is sampled on the host, shares a prefix."""


@dataclass(slots=True)
class MemorySamples:
    """Memory over time, in seconds from the start."""

    times: list[float] = field(default_factory=list)
    values: list[dict[str, int]] = field(default_factory=list)

    def add(self, time: float, values: Memory) -> None:
        """Adds one sample."""
        self.times.append(time)
        self.values.append(dict(values))

    def growth(self) -> dict[str, int]:
        """Bytes by which the median of the last quarter of the time exceeds that of the second quarter; the first quarter is warm-up."""
        end = self.times[-1]
        early = [value for time, value in zip(self.times, self.values, strict=True) if end / 4 <= time < end / 2] or self.values[:1]
        late = [value for time, value in zip(self.times, self.values, strict=True) if time >= 3 * end / 4]
        return {name: int(_median(late, name) - _median(early, name)) for name in self.values[0]}


def _median(values: Sequence[Memory], name: str) -> float:
    return median(value[name] for value in values)


def soak(facts: ModelFacts, settings: Mapping[str, Any], memory: Callable[[], Memory]) -> Iterator[dict[str, Any]]:
    """Yields a row about the start, memory samples, then the summary, with an error where device memory grew.

    settings  as of `start`; rows; prompt_tokens, output_tokens: upper bounds; seconds; every_seconds: between samples; swing_seconds:
              of full and of light load
    """
    length = settings["prompt_tokens"] + settings["output_tokens"]
    engine, began = start(facts, settings, None, rows=settings["rows"], length=length, prefix_caching=True)
    try:
        yield began
        yield from run_soak(engine, settings, memory)
    finally:
        engine.executor.close()


def run_soak(engine: Engine, settings: Mapping[str, Any], memory: Callable[[], Memory]) -> Iterator[dict[str, Any]]:
    """Runs the load of a soak on an engine."""
    rows, longest = settings["rows"], settings["prompt_tokens"]
    load = ConstantLoad(engine, rows + rows // LIGHT_LOAD_DIVISOR, mixed_requests(longest, settings["output_tokens"]), longest)
    samples, rng, began, tokens, preempted, aborted = MemorySamples(), random.Random(1), perf_counter(), 0, 0, 0
    now = sampled_at = 0.0
    while now < settings["seconds"]:
        light = int(now / settings["swing_seconds"]) % 2
        load.max_open = rows // LIGHT_LOAD_DIVISOR if light else rows + rows // LIGHT_LOAD_DIVISOR
        commands = load.commands()
        if load.open and rng.randrange(settings["output_tokens"] * ABORT_EVERY) < len(load.open):
            commands.append(Abort(rng.choice(sorted(load.open))))
            aborted += 1
        turn = engine.turn(commands)
        load.on_turn(turn)
        tokens += sum(len(output.ids) for output in turn.outputs)
        preempted += sum(isinstance(event, Preempted) for event in turn.events)
        now = perf_counter() - began
        if now - sampled_at >= settings["every_seconds"] or not samples.times:
            sampled_at = now
            samples.add(now, memory() | {"host": host_bytes()})
            yield {"at_seconds": now, **samples.values[-1]}
    samples.add(now, memory() | {"host": host_bytes()})
    drain(engine, load)
    yield growth_report(samples) | {
        "requests": load.closed, "aborted": aborted, "preempted": preempted, "output_tokens": tokens, "seconds": now,
    }  # fmt: skip


def growth_report(samples: MemorySamples) -> dict[str, Any]:
    """Growth of each counter; `grown_bytes`: the largest growth beyond the tolerated one; `error` where there is any."""
    growth = samples.growth()
    excess = {name: max(0, growth[name] - spare) for name, spare in ALLOWED_GROWTH.items()}
    found: dict[str, Any] = {f"{name}_growth_bytes": value for name, value in growth.items()} | {"grown_bytes": max(excess.values())}
    if found["grown_bytes"]:
        growths = ", ".join(f"{name} by {growth[name]} (at most {ALLOWED_GROWTH[name]})" for name, bytes_ in excess.items() if bytes_)
        found["error"] = f"device memory grew: bytes {growths}"
    return found


def mixed_requests(prompt: int, output: int) -> Callable[[int], RequestSpec]:
    """Random requests of up to `prompt` and `output` tokens, a function of their number."""

    def make_request(number: int) -> RequestSpec:
        rng = random.Random(number)
        length = max(1, round(prompt ** rng.random()))
        sampling: dict[str, Any] = {"temperature": 0.0} if rng.random() < 0.5 else {"temperature": 0.8, "top_p": 0.95, "top_k": 50}
        if not rng.randrange(HOST_SAMPLED_EVERY):
            sampling |= {"logprobs": 2, "repetition_penalty": 1.1}
        shared = length // 2 if not rng.randrange(SHARED_PREFIX_EVERY) else 0
        return RequestSpec(length, SamplingParams(**sampling, max_tokens=rng.randint(1, output), ignore_eos=True), shared)

    return make_request


def host_bytes() -> int:
    """Resident memory of this process; 0 without /proc."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
