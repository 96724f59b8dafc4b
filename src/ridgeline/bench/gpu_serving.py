"""Serving in this process: as many requests at once as are asked for, all the time, through the engine that serves, without HTTP.

Owns the load and its figures. The weights are random, prompts are random ids and share nothing, answers have the length that is asked for.
The first requests are as old as if the load had run for long: some have nearly all of their answer in their prompt. So a short window shows
what a long run would.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import ceil
from statistics import median
from time import perf_counter
from typing import Any, Final, Protocol

from ridgeline.bench.gpu_traffic import Traffic, Wish
from ridgeline.config.groups import EngineConfig
from ridgeline.config.runner import resolve_runner
from ridgeline.core.events import Scheduled
from ridgeline.core.params import SamplingParams
from ridgeline.engine.compose import engine_over
from ridgeline.engine.engine import Engine
from ridgeline.facts.hardware.machine import machine_facts
from ridgeline.facts.model import ModelFacts

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
    """What looks at the device's side of steps; see `compute/cuda/bench/watch.py`."""

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
    settled, _ = resolve_runner(config, missing=None, no_gpu=None, processors=1)
    began = perf_counter()
    load = importlib.import_module(LOAD).random_weights
    open_cuda = partial(importlib.import_module(BACKEND).open_cuda, load=load, graphs=watch)
    source = importlib.import_module(OPENING).Source(settled, facts, machine_facts().memory_bytes)
    executor = importlib.import_module(WORKER).start(source, open_cuda, lambda stage, part: None)
    engine, _ = engine_over(executor, settled)
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
    """What the engine does in so many seconds once `rows` requests get tokens, or `FILL_SECONDS` are over: `rows_served` says how many do.

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
        before = executor.waited
        turn = engine.turn(traffic.commands())
        traffic.take(turn)
        tokens = sum(len(output.ids) for output in turn.outputs)
        computed = sum(sum(event.count) for event in turn.events if isinstance(event, Scheduled))
        yield tokens, executor.waited - before, computed


def drain(engine: Engine, traffic: Traffic) -> None:
    """Ends every request."""
    commands = traffic.abort()
    while commands or not engine.idle:
        traffic.take(engine.turn(commands))
        commands = []


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that `share` of all do not exceed."""
    return sorted(values)[ceil(share * len(values)) - 1]
