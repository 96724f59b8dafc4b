"""`ridgeline bench offline`: throughput of the engine in this process, without HTTP and text, beside the bound of this machine.

Owns the measurement. The engine is the one that serves; the bound of a step is the planner's, with ceilings measured in turn with the runs,
since a machine that shares its cores is fast in one second and slow in the next. Prompts are random ids and share nothing.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from statistics import median
from time import perf_counter
from typing import Final

from ridgeline.bench.processes import busy_processes
from ridgeline.config.env import model_stores
from ridgeline.config.groups import EngineConfig
from ridgeline.core.commands import Admit
from ridgeline.core.events import StepTimed
from ridgeline.core.params import SamplingParams
from ridgeline.core.plan import Timings
from ridgeline.engine.admit import ModelLimits, admit
from ridgeline.engine.compose import start_engine
from ridgeline.engine.engine import Engine
from ridgeline.errors import ConfigError
from ridgeline.facts.hardware.ceilings import PLAN_PATIENCE_SECONDS, RooflineLoops, load_native, measure_codes, measure_peaks
from ridgeline.facts.hardware.machine import machine_facts
from ridgeline.facts.hardware.noise import Noise, NoiseMonitor
from ridgeline.facts.headers.read import describe_model, model_headers, read_model_facts
from ridgeline.planning.arguments import PlanOptions, deployment_of
from ridgeline.planning.deployment import Deployment
from ridgeline.planning.formats import WEIGHT_FORMATS, code_dtype
from ridgeline.planning.step import IDEAL, RowGroup, resource_seconds, step_work

MAX_SEQUENCES, MAX_TOKENS, MAX_REPEATS, MAX_BUSY_PROCESSES = 1_024, 1 << 20, 1_000, 1_024
FIRST_PROMPT_ID: Final = 16
"""Lower ids are often control tokens."""
PREFILL_STEP_MS: Final = 60_000
"""Milliseconds of a step with decode rows: large, so that prefill is not limited."""
Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class OfflineLoad:
    """The load: every batch size in turn, `repeats` times, with prompts of `prompt_tokens` and answers of `output_tokens`.

    busy_processes  each repeat is run again beside so many processes that keep a CPU core busy each
    """

    batches: tuple[int, ...] = (1, 4, 16)
    prompt_tokens: int = 128
    output_tokens: int = 64
    repeats: int = 3
    busy_processes: int = 0

    def check(self) -> None:
        """Raises ConfigError for what cannot be run."""
        for name, value, least, most in (
            *(("--batch", batch, 1, MAX_SEQUENCES) for batch in self.batches),
            ("--prompt-tokens", self.prompt_tokens, 1, MAX_TOKENS),
            ("--output-tokens", self.output_tokens, 2, MAX_TOKENS),
            ("--repeats", self.repeats, 1, MAX_REPEATS),
            ("--hogs", self.busy_processes, 0, MAX_BUSY_PROCESSES),
        ):
            if not least <= value <= most:
                raise ConfigError(f"{name} is {value}; {least} to {most} are possible", fix={name: None})


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One turn of the engine: its end in seconds from the start, its output tokens, those that are a sequence's first, and the executor's
    timings."""

    ended: float
    tokens: int
    first: int
    timings: Timings


@dataclass(frozen=True, slots=True)
class BatchReport:
    """One batch size: medians over repeats, or over the decode steps of all repeats.

    prefill_*   all prompts, until the last of them has its first token       decode_*  steps in which every sequence gets a token
    *_bound     the same at the median ceilings beside these runs             whole     output tokens per second from first to last
    A figure above its bound is None: it would be the bound that is wrong.
    contended_tokens_per_second  the same beside busy processes, None without any
    run, prepare, queue, rest  seconds of a decode step: computing, making inputs, waiting in the executor, everything else
    """

    batch: int
    prefill_tokens_per_second: float | None
    prefill_bound: float
    decode_tokens_per_second: float | None
    decode_bound: float
    whole_tokens_per_second: float
    contended_tokens_per_second: float | None
    step_seconds: float
    slowest_step_seconds: float
    run: float
    prepare: float
    queue: float
    rest: float


@dataclass(frozen=True, slots=True)
class OfflineReport:
    """All batch sizes, what ran them, the ceilings behind the bounds, and the machine's noise."""

    model: str
    runner: str
    load: OfflineLoad
    bytes_per_second: float
    flops_per_second: dict[str, float]
    figures: tuple[BatchReport, ...]
    noise: Noise

    def as_dict(self) -> dict[str, object]:
        """A dict for JSON: tokens, bytes, operations, seconds."""
        return {**asdict(self), "noise": self.noise.as_dict()}


def offline(config: EngineConfig, load: OfflineLoad, progress: Progress = lambda stage, fraction: None) -> OfflineReport:
    """Loads the model and runs `load`. The engine's rows, budget and context are those of `config`, raised to what the load needs.

    Raises ConfigError, ModelNotFoundError or ModelFormatError.
    """
    load.check()
    length, max_batch = load.prompt_tokens + load.output_tokens, max(load.batches)
    settings = replace(config, max_model_len=length, max_num_seqs=max(max_batch, config.max_num_seqs or 0), enable_prefix_caching=False)
    settings = replace(settings, step_ms=PREFILL_STEP_MS)
    question = PlanOptions(device="this", context=length, users=max_batch, kv_dtype=None if config.kv_dtype == "auto" else config.kv_dtype)
    deployment = deployment_of(describe_model(config.model, model_stores()), question)
    engine, _ = start_engine(settings, progress)
    noise, figures, rng = NoiseMonitor(), [], random.Random(0)
    try:
        watch = CeilingWatch(deployment, code_widths(config.model) if engine.executor.info.runner.startswith("native") else {})
        _run(engine, replace(load, output_tokens=2), 1, rng)
        for number, batch in enumerate(load.batches):
            runs, contended, ceilings = [], [], [watch.look()]
            for repeat in range(load.repeats):
                runs.append(_run(engine, load, batch, rng))
                ceilings.append(watch.look())
                if load.busy_processes:
                    with busy_processes(load.busy_processes):
                        contended.append(_run(engine, load, batch, rng))
                progress("measuring", (number + (repeat + 1) / load.repeats) / len(load.batches))
            deployment = at_medians(ceilings)
            figures.append(_make_batch_report(runs, contended, batch, load, deployment))
        info, device = engine.executor.info, deployment.device
    finally:
        engine.executor.close()
    return OfflineReport(
        config.model, info.runner, load, device.bytes_per_second, dict(device.flops_per_second), tuple(figures), noise.stop()
    )


def _run(engine: Engine, load: OfflineLoad, batch: int, rng: random.Random) -> list[TurnRecord]:
    """Runs one batch to its end; times count from its admission."""
    info = engine.executor.info
    limits = ModelLimits(info.vocab, info.max_model_len, frozenset(), info.kv)
    params = SamplingParams(temperature=0.0, max_tokens=load.output_tokens, ignore_eos=True)
    first = min(FIRST_PROMPT_ID, info.vocab - 1)
    prompts = [[rng.randrange(first, info.vocab) for _ in range(load.prompt_tokens)] for _ in range(batch)]
    requests = [Admit(admit(each, params, limits, request_id=str(n), draw_seed=lambda: 0)) for n, each in enumerate(prompts)]
    began, steps = perf_counter(), []
    started: set[str] = set()
    turn = engine.turn(requests)
    while True:
        timed = next((event.timings for event in turn.events if isinstance(event, StepTimed)), Timings())
        fresh = {output.request_id for output in turn.outputs if output.ids} - started
        started |= fresh
        steps.append(TurnRecord(perf_counter() - began, sum(len(output.ids) for output in turn.outputs), len(fresh), timed))
        if engine.idle:
            return steps
        turn = engine.turn()


def _make_batch_report(
    runs: Sequence[list[TurnRecord]], contended: Sequence[list[TurnRecord]], batch: int, load: OfflineLoad, deployment: Deployment
) -> BatchReport:
    prefill, whole, decoding = [], [], []
    for steps in runs:
        done, started = 0, None
        for before, step in zip([TurnRecord(0.0, 0, 0, Timings()), *steps], steps, strict=False):
            done += step.first
            if started is None and done >= batch:
                started = step.ended
            elif step.tokens == batch:
                decoding.append((step.ended - before.ended, step.timings))
        prefill.append(started or steps[-1].ended)
        whole.append(steps[-1].ended)
    seconds = median(each for each, _ in decoding)
    run, prepare, queue = (median(getattr(timings, name) for _, timings in decoding) for name in ("run", "prepare", "queue"))
    middle = load.prompt_tokens + load.output_tokens // 2
    prefill_bound = batch * load.prompt_tokens / _bound(deployment, RowGroup(0, load.prompt_tokens, batch))
    decode_bound = batch / _bound(deployment, RowGroup(middle, 1, batch))
    return BatchReport(
        batch=batch,
        prefill_tokens_per_second=_within(batch * load.prompt_tokens / median(prefill), prefill_bound),
        prefill_bound=prefill_bound,
        decode_tokens_per_second=_within(batch / seconds, decode_bound),
        decode_bound=decode_bound,
        whole_tokens_per_second=batch * load.output_tokens / median(whole),
        contended_tokens_per_second=batch * load.output_tokens / median(steps[-1].ended for steps in contended) if contended else None,
        step_seconds=seconds,
        slowest_step_seconds=max(each for each, _ in decoding),
        run=run,
        prepare=prepare,
        queue=queue,
        rest=max(0.0, seconds - run - prepare),
    )


def _within(figure: float, bound: float) -> float | None:
    return figure if figure <= bound else None


def code_widths(model: str) -> dict[int, float]:
    """Shares of a model's weights in layers by the width of their codes in bits, 0 of floats: a file may hold several formats."""
    weights: Counter[int] = Counter()
    with model_headers(model, model_stores()) as path:
        facts = read_model_facts(path)
    own = WEIGHT_FORMATS[facts.dtype]
    for name, tensor in facts.tensors.items():
        if name.startswith("blk.") and len(tensor.shape) > 1:
            weights[WEIGHT_FORMATS.get(tensor.kind.lower(), own).code_bits] += prod(tensor.shape)
    return {bits: count / weights.total() for bits, count in weights.items()}


class CeilingWatch:
    """The ceilings of this machine from moment to moment; products run at those of the codes that a native runner multiplies.

    widths  of codes, as `code_widths` has them; {}: the ceilings of `deployment` stand, since other runners do not multiply codes
    """

    def __init__(self, deployment: Deployment, widths: Mapping[int, float]) -> None:
        module = load_native() if widths else None
        self._deployment, self._widths, self._threads = deployment, widths, machine_facts().cpu_cores
        self._loops = RooflineLoops(module, self._threads, patience=PLAN_PATIENCE_SECONDS) if module else None

    def look(self) -> Deployment:
        """The deployment at the ceilings of now. Takes some hundredths of a second."""
        loops, model = self._loops, self._deployment.model
        if loops is None:
            return self._deployment
        bandwidth, flops = measure_peaks(loops, self._threads)
        if bits := WEIGHT_FORMATS[model.dtype].code_bits:
            rates = {width: measure_codes(loops, self._threads, width) if width else flops["f32"] for width in self._widths}
            flops = {**flops, code_dtype(bits): 1 / sum(share / rates[width] for width, share in self._widths.items())}
        return replace(self._deployment, device=replace(self._deployment.device, bytes_per_second=bandwidth, flops_per_second=flops))


def at_medians(looks: Sequence[Deployment]) -> Deployment:
    """A deployment at the median of each ceiling."""
    devices = [each.device for each in looks]
    flops = {kind: median(each.flops_per_second[kind] for each in devices) for kind in devices[0].flops_per_second}
    bandwidth = median(each.bytes_per_second for each in devices)
    return replace(looks[0], device=replace(devices[0], bytes_per_second=bandwidth, flops_per_second=flops))


def _bound(deployment: Deployment, rows: RowGroup) -> float:
    """Lower bound of the seconds of a step of these rows."""
    return max(resource_seconds(deployment, step_work(deployment, [rows]), IDEAL))
