"""`ridgeline bench offline`: the engine alone, without HTTP and text: prompts in, tokens out, beside what this machine allows.

Owns the measurement. The engine is the one that serves, in this process; the bound of a step is the planner's, with the ceilings measured
just before. Prompts are random ids and share nothing.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from time import perf_counter
from typing import Final

from ridgeline.bench.processes import hogs
from ridgeline.config.env import cache_directory
from ridgeline.config.groups import EngineConfig
from ridgeline.core.commands import Admit
from ridgeline.core.events import StepTimed
from ridgeline.core.params import SamplingParams
from ridgeline.core.plan import Timings
from ridgeline.engine.admit import ModelLimits, admit
from ridgeline.engine.compose import start_engine
from ridgeline.engine.engine import Engine
from ridgeline.errors import ConfigError
from ridgeline.facts.hardware.noise import Noise, NoiseMonitor
from ridgeline.facts.headers.read import describe_model
from ridgeline.planning.arguments import PlanOptions, deployment_of
from ridgeline.planning.deployment import Deployment
from ridgeline.planning.step import IDEAL, RowGroup, resource_seconds, step_work

MOST_SEQUENCES, MOST_TOKENS, MOST_REPEATS, MOST_HOGS = 1_024, 1 << 20, 1_000, 1_024
FIRST_ID: Final = 16
"""Ids below it are often control tokens."""
WHOLE_STEPS: Final = 60_000
"""Milliseconds of a step: prompts are computed as fast as they can be, for nobody waits for a next token meanwhile."""
Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Load:
    """The load: every batch size in turn, `repeats` times, with prompts of `prompt_tokens` and answers of `output_tokens`.

    hogs  each repeat is run again beside so many foreign processes that take a CPU core each
    """

    batches: tuple[int, ...] = (1, 4, 16)
    prompt_tokens: int = 128
    output_tokens: int = 64
    repeats: int = 3
    hogs: int = 0

    def check(self) -> None:
        """Raises ConfigError for what cannot be run."""
        for name, value, least, most in (
            *(("--batch", batch, 1, MOST_SEQUENCES) for batch in self.batches),
            ("--prompt-tokens", self.prompt_tokens, 1, MOST_TOKENS),
            ("--output-tokens", self.output_tokens, 2, MOST_TOKENS),
            ("--repeats", self.repeats, 1, MOST_REPEATS),
            ("--hogs", self.hogs, 0, MOST_HOGS),
        ):
            if not least <= value <= most:
                raise ConfigError(f"{name} is {value}; {least} to {most} are possible", fix={name: None})


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of the engine: when it ended, the tokens that it brought, and what the executor says of it."""

    ended: float
    tokens: int
    timings: Timings


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """One batch size: medians over repeats, or over the decoding steps of all repeats.

    prefill_*   all prompts, until the last of them has its first token       decode_*  steps in which every sequence gets a token
    *_bound     the same at this machine's ceilings                           whole     output tokens per second from first to last
    hogged_tokens_per_second  the latter beside foreign processes, None without any
    run, prepare, queue, rest  seconds of a decode step: computing, making inputs, waiting in the executor, everything else
    """

    batch: int
    prefill_tokens_per_second: float
    prefill_bound: float
    decode_tokens_per_second: float
    decode_bound: float
    whole_tokens_per_second: float
    hogged_tokens_per_second: float | None
    step_seconds: float
    slowest_step_seconds: float
    run: float
    prepare: float
    queue: float
    rest: float


@dataclass(frozen=True, slots=True)
class OfflineReport:
    """All batch sizes, what ran them, the ceilings that the bounds come from, and what disturbed the run."""

    model: str
    runner: str
    load: Load
    bytes_per_second: float
    flops_per_second: dict[str, float]
    figures: tuple[BatchFigures, ...]
    noise: Noise

    def as_dict(self) -> dict[str, object]:
        """A dict for JSON: tokens, bytes, operations, seconds."""
        return {**asdict(self), "noise": self.noise.as_dict()}


def offline(config: EngineConfig, load: Load, progress: Progress = lambda stage, fraction: None) -> OfflineReport:
    """Loads the model and runs `load`. The engine's rows, budget and context are those of `config`, widened to what the load needs.

    Raises ConfigError, ModelNotFoundError or ModelFormatError where the settings or the model are at fault.
    """
    load.check()
    length, most = load.prompt_tokens + load.output_tokens, max(load.batches)
    settings = replace(config, max_model_len=length, max_num_seqs=max(most, config.max_num_seqs or 0), enable_prefix_caching=False)
    settings = replace(settings, step_ms=WHOLE_STEPS)
    question = PlanOptions(device="this", context=length, users=most, kv_dtype=None if config.kv_dtype == "auto" else config.kv_dtype)
    deployment = deployment_of(describe_model(config.model, cache_directory()), question)
    engine, _ = start_engine(settings, progress)
    watch, figures, draws = NoiseMonitor(), [], random.Random(0)
    try:
        _run(engine, replace(load, output_tokens=2), 1, draws)
        for number, batch in enumerate(load.batches):
            runs, hogged = [], []
            for repeat in range(load.repeats):
                runs.append(_run(engine, load, batch, draws))
                if load.hogs:
                    with hogs(load.hogs):
                        hogged.append(_run(engine, load, batch, draws))
                progress("measuring", (number + (repeat + 1) / load.repeats) / len(load.batches))
            figures.append(_figures(runs, hogged, batch, load, deployment))
        info, device = engine.executor.info, deployment.device
    finally:
        engine.executor.close()
    return OfflineReport(
        config.model, info.runner, load, device.bytes_per_second, dict(device.flops_per_second), tuple(figures), watch.stop()
    )


def _run(engine: Engine, load: Load, batch: int, draws: random.Random) -> list[Step]:
    """One batch from its admission to its end; times count from the admission."""
    info = engine.executor.info
    limits = ModelLimits(info.vocab, info.max_model_len, frozenset(), info.kv)
    params = SamplingParams(temperature=0.0, max_tokens=load.output_tokens, ignore_eos=True)
    first = min(FIRST_ID, info.vocab - 1)
    prompts = [[draws.randrange(first, info.vocab) for _ in range(load.prompt_tokens)] for _ in range(batch)]
    requests = [Admit(admit(each, params, limits, request_id=str(n), draw_seed=lambda: 0)) for n, each in enumerate(prompts)]
    began, steps = perf_counter(), []
    turn = engine.turn(requests)
    while True:
        timed = next((event.timings for event in turn.events if isinstance(event, StepTimed)), Timings())
        steps.append(Step(perf_counter() - began, sum(len(output.ids) for output in turn.outputs), timed))
        if engine.idle:
            return steps
        turn = engine.turn()


def _figures(runs: Sequence[list[Step]], hogged: Sequence[list[Step]], batch: int, load: Load, deployment: Deployment) -> BatchFigures:
    prefill, whole, decoding = [], [], []
    for steps in runs:
        done, started = 0, None
        for before, step in zip([Step(0.0, 0, Timings()), *steps], steps, strict=False):
            done += step.tokens
            if started is None and done >= batch:
                started = step.ended
            elif step.tokens == batch:
                decoding.append((step.ended - before.ended, step.timings))
        prefill.append(started or steps[-1].ended)
        whole.append(steps[-1].ended)
    seconds = median(each for each, _ in decoding)
    run, prepare, queue = (median(getattr(timings, name) for _, timings in decoding) for name in ("run", "prepare", "queue"))
    middle = load.prompt_tokens + load.output_tokens // 2
    return BatchFigures(
        batch=batch,
        prefill_tokens_per_second=batch * load.prompt_tokens / median(prefill),
        prefill_bound=batch * load.prompt_tokens / _bound(deployment, RowGroup(0, load.prompt_tokens, batch)),
        decode_tokens_per_second=batch / seconds,
        decode_bound=batch / _bound(deployment, RowGroup(middle, 1, batch)),
        whole_tokens_per_second=batch * load.output_tokens / median(whole),
        hogged_tokens_per_second=batch * load.output_tokens / median(steps[-1].ended for steps in hogged) if hogged else None,
        step_seconds=seconds,
        slowest_step_seconds=max(each for each, _ in decoding),
        run=run,
        prepare=prepare,
        queue=queue,
        rest=max(0.0, seconds - run - prepare),
    )


def _bound(deployment: Deployment, rows: RowGroup) -> float:
    """Seconds that a step of these rows takes at least."""
    return max(resource_seconds(deployment, step_work(deployment, [rows]), IDEAL))
