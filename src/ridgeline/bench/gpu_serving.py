"""A serving run in this process: requests that all come at once through the engine that serves, without HTTP, on random weights.

Owns the load and its figures. Prompts are random ids and share nothing; answers have the length that is asked for.
"""

import importlib
import random
from collections.abc import Iterator, Mapping
from math import inf
from statistics import median
from time import perf_counter
from typing import Any, Final

from ridgeline.config.groups import EngineConfig
from ridgeline.core.commands import Admit
from ridgeline.core.events import StepTimed
from ridgeline.core.params import SamplingParams
from ridgeline.engine.admit import ModelLimits, admit
from ridgeline.engine.compose import engine_over
from ridgeline.engine.engine import Engine
from ridgeline.facts.model import ModelFacts

BUILD: Final = "ridgeline.compute.runtime.gpu"
LOAD: Final = "ridgeline.compute.cuda.load"
WARM_REQUESTS: Final = 32
WARM_TOKENS: Final = 8
"""Requests, and the length of their answers, before anything is measured."""


def serving(facts: ModelFacts, settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows: how the engine started, then what it did. Raises ConfigError where the model does not fit.

    settings  requests, prompt_tokens, output_tokens, rows (at once), budget (tokens of a step), seconds (no request is added after them),
              dtype, kv_dtype, memory_bytes (of the cache, or None)
    """
    length = settings["prompt_tokens"] + settings["output_tokens"]
    config = EngineConfig(
        facts.name, runner="cuda", dtype=settings["dtype"], kv_dtype=settings["kv_dtype"], max_model_len=length,
        max_num_seqs=settings["rows"], max_num_batched_tokens=settings["budget"], enable_prefix_caching=False,
        kv_cache_memory_bytes=settings["memory_bytes"],
    )  # fmt: skip
    began = perf_counter()
    load = importlib.import_module(LOAD).random_weights
    executor = importlib.import_module(BUILD).build_on_gpu(config, facts, (), lambda stage, part: None, load=load)
    engine, _ = engine_over(executor, config)
    try:
        info = executor.info
        yield {"start_seconds": perf_counter() - began, "rows": info.rows, "kv_bytes": info.kv_bytes, "weights_bytes": info.weights_bytes,
               "decisions": {each.name: str(each.value) for each in executor.decisions}}  # fmt: skip
        few = {"requests": min(WARM_REQUESTS, settings["requests"]), "output_tokens": min(WARM_TOKENS, settings["output_tokens"])}
        # Mixed steps have kernels of their own, which are compiled here. All of it ends before the load that counts begins.
        yield {"warm_up": _run(engine, {**settings, **few, "seconds": inf})}
        yield _run(engine, settings)
    finally:
        executor.close()


def _run(engine: Engine, settings: Mapping[str, Any]) -> dict[str, Any]:
    """All requests from their admission to the last one's end, or to `seconds`, behind which those under way are left alone.

    output_tokens_per_second           from first to last       steady_…  over the steps in which every row got a token
    host_seconds                       of a step: everything but waiting for the device
    """
    turns: list[tuple[float, int, float]] = []
    requests = list(_requests(engine, settings))
    began = perf_counter()
    turn = engine.turn(requests)
    ended = began
    while True:
        before, ended = ended, perf_counter()
        waited = sum(event.timings.run for event in turn.events if isinstance(event, StepTimed))
        turns.append((ended - before, sum(len(output.ids) for output in turn.outputs), waited))
        if engine.idle or ended - began > settings["seconds"]:
            break
        turn = engine.turn()
    total = sum(tokens for _, tokens, _ in turns)
    most = max(tokens for _, tokens, _ in turns)
    steady = [(seconds, tokens, waited) for seconds, tokens, waited in turns[1:] if tokens == most] or turns
    return {
        "complete": engine.idle, "seconds": ended - began, "steps": len(turns), "output_tokens": total,
        "output_tokens_per_second": total / (ended - began), "rows_at_most": most,
        "steady_tokens_per_second": sum(tokens for _, tokens, _ in steady) / sum(seconds for seconds, _, _ in steady),
        "step_seconds": median(seconds for seconds, _, _ in steady),
        "host_seconds": median(max(0.0, seconds - waited) for seconds, _, waited in steady),
    }  # fmt: skip


def _requests(engine: Engine, settings: Mapping[str, Any]) -> Iterator[Admit]:
    info, draws = engine.executor.info, random.Random(0)
    limits = ModelLimits(info.vocab, info.max_model_len, frozenset(), info.kv)
    params = SamplingParams(temperature=0.0, max_tokens=settings["output_tokens"], ignore_eos=True)
    for number in range(settings["requests"]):
        ids = [draws.randrange(info.vocab) for _ in range(settings["prompt_tokens"])]
        yield Admit(admit(ids, params, limits, request_id=str(number), draw_seed=lambda: 0))
