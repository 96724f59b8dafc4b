"""Start-up of the computing wing: from settings to an executor that is loaded, sized, timed and warm. The thinking wing calls `build` by
name.

Owns the order of start-up, and which weights a CPU runner takes in which form. Decides nothing: sizes come from `config.resolve` and
`planning.memory`.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

from ridgeline.compute.backend import SCORED_POSITIONS
from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.cache import allocate_native_kv
from ridgeline.compute.cpu.expert_file import ExpertMemory, pack_with_slots
from ridgeline.compute.cpu.packing import SCREENED, SPLIT, pack_weights, packed_as, widened
from ridgeline.compute.cpu.runner import NativeRunner
from ridgeline.compute.cpu.sampling import Sampler
from ridgeline.compute.decoding.sampler import sample_rows, score
from ridgeline.compute.exact.cache import allocate_kv
from ridgeline.compute.exact.runner import NumpyRunner
from ridgeline.compute.load.check import check_weights
from ridgeline.compute.load.heads import target_list
from ridgeline.compute.load.weights import load_weights
from ridgeline.compute.opening import ModelSource, OpenedModel, OpenModel, Progress
from ridgeline.compute.runtime.draft_open import OpenedDrafts, open_drafts
from ridgeline.compute.runtime.executor import StepExecutor
from ridgeline.compute.runtime.measure import price, step_seconds, time_steps
from ridgeline.compute.runtime.queue import QueueBackend
from ridgeline.compute.trace import StepTrace
from ridgeline.config.env import cache_directory, model_stores
from ridgeline.config.groups import EngineConfig
from ridgeline.config.resolve import Decision
from ridgeline.config.runner import resolve_runner
from ridgeline.config.values import GIB
from ridgeline.core.params import Pooling
from ridgeline.engine.executor import ExecutorInfo
from ridgeline.errors import ConfigError, Finding, unwritable
from ridgeline.facts.hardware.gpu import gpu_missing
from ridgeline.facts.hardware.machine import machine_facts
from ridgeline.facts.headers.heads import DraftHeads, read_heads
from ridgeline.facts.headers.plausible import check_header
from ridgeline.facts.headers.predictor import find_predictor, read_predictor
from ridgeline.facts.headers.read import RANDOM_PREFIX, read_model_facts, read_random_facts
from ridgeline.facts.hub.source import resolve_model
from ridgeline.facts.model import ModelFacts


def build(config: EngineConfig, progress: Progress) -> StepExecutor:
    """Loads `config.model` and returns an executor that is ready for its first plan.

    Raises ModelNotFoundError, ModelFormatError or ConfigError where the model or the settings are at fault.
    """
    is_random = config.model.startswith(RANDOM_PREFIX)
    facts = read_random_facts(config.model) if is_random else read_model_facts(resolve_model(config.model, model_stores(), progress))
    machine = machine_facts()
    config, decisions = resolve_runner(config, no_extension=ext.lost(), no_gpu=gpu_missing(), cpu_cores=machine.cpu_cores)
    if facts.activation_scales:
        decisions += (Decision("activation_scales", facts.activation_scales, "model", facts.activation_note),)
    if facts.state is not None:
        decisions += _recurrent(config)
    open = _opener(config, is_random)
    drafts = _drafts(config, facts, progress)
    progress("checking weights", 0.0)
    findings = () if is_random else (*check_header(facts), *check_weights(facts, config.threads or 1))
    if drafts is not None:
        findings += check_weights(drafts.facts if isinstance(drafts, DraftHeads) else drafts, config.threads or 1)
    return start(ModelSource(config, facts, machine.memory_bytes, decisions, drafts=drafts), open, progress, findings)


def _recurrent(config: EngineConfig) -> tuple[Decision, ...]:
    """The decision on shared prefixes, which a model with recurrent layers does without, as a state is of one sequence alone. Raises
    ConfigError for what is built on them, and on a GPU."""
    if config.runner == "cuda":
        raise ConfigError("recurrent layers run on a CPU alone, with --runner native or numpy", fix={"--runner": "native"})
    if config.swap_space or config.has_tiers:
        flags = ("--swap-space", "--kv-cache-dir", "--kv-cache-redis", "--kv-cache-listen", "--kv-cache-peers")
        reason = "its sequences share no blocks, since recurrent states are those of one sequence"
        raise ConfigError(f"this model has recurrent layers: {reason}; remove tiers of blocks", fix=dict.fromkeys(flags))
    reason = "recurrent layers: a prompt is computed whole, since states are not kept at the ends of blocks"
    return (Decision("enable_prefix_caching", "False", "model", reason),)


def _drafts(config: EngineConfig, facts: ModelFacts, progress: Progress) -> ModelFacts | DraftHeads | None:
    """Facts of the draft model, or heads of a model with these `facts`; None where there are none. Raises ConfigError for heads of another
    model, and a draft model whose states no cache keeps."""
    if config.draft_model is None and config.speculative != "mtp":
        if config.speculative != "auto" or config.model.startswith(RANDOM_PREFIX):
            return None
        return find_predictor(resolve_model(config.model, model_stores(), progress), facts)
    if config.draft_model is None:
        found: ModelFacts | DraftHeads = read_predictor(resolve_model(config.model, model_stores(), progress), facts)
    else:
        path = resolve_model(config.draft_model, model_stores(), progress)
        found = read_heads(path, facts) or read_model_facts(path)
    if isinstance(found, ModelFacts) and found.state is not None:
        reason = "it has recurrent layers, whose states its own cache does not keep"
        fix = {"--draft-model": None, "--speculative": "ngram"}
        raise ConfigError(f"--draft-model {config.draft_model}: {reason}; give another", fix=fix)
    return found


def start(source: ModelSource, open: OpenModel, progress: Progress, findings: tuple[Finding, ...] = ()) -> StepExecutor:
    """Opens a model and returns the executor over it, timed. The cost of drafts is measured only with --speculative.

    findings  of the checks of its files
    """
    opened = open(source, progress)
    backend, source = opened.backend, opened.source
    config, longest = source.config, min(source.config.tokens, source.positions)
    assert config.kv_cache_memory_bytes is not None
    timed = time_steps(backend.seconds, min(backend.timed_rows, config.rows), min(backend.timed_tokens, longest))
    info = ExecutorInfo(
        kv=opened.shape,
        vocab=source.facts.tokens,
        max_model_len=longest if source.facts.bidirectional else source.positions,
        rows=config.rows,
        runner=opened.name,
        weights_bytes=opened.weights_bytes,
        kv_bytes=config.kv_cache_memory_bytes,
        seconds=step_seconds(timed),
        timed=timed,
        tokens=config.tokens,
        price=price(backend.seconds, min(longest, source.samples)) if config.speculative != "off" and backend.timed_tokens else (),
        samples=source.samples,
        has_grammars=True,
        pooling=pooling_of(config.pooling, source.facts),
        width=source.facts.hidden,
        generates=not source.facts.bidirectional,
        findings=findings,
        adapter_slots=0 if opened.adapters is None else config.adapter_slots,
        drafts=opened.drafts,
    )
    return StepExecutor(info, source.decisions + opened.decisions, backend, opened.adapters)


def pooling_of(asked: str, facts: ModelFacts) -> Pooling:
    """The pooling of texts: as `asked`, else as the model's files say, else of the last token, which has seen all others, or
    of all tokens where each has."""
    kind = facts.pooling or ("mean" if facts.bidirectional else "last") if asked == "auto" else asked
    return Pooling(kind, whole=facts.bidirectional)  # type: ignore[arg-type]


def _opener(config: EngineConfig, is_random: bool) -> OpenModel:
    if config.runner == "cuda":
        # Loaded here alone: they import torch.
        from ridgeline.compute.cuda.backend import open_cuda
        from ridgeline.compute.cuda.load import load_weights, random_weights

        return partial(open_cuda, load=random_weights if is_random else load_weights)
    if is_random:
        raise ConfigError(
            f"{config.model} has random weights, which only --runner cuda makes, not {config.runner}; give a model with files",
            fix={"MODEL": "demo"},
        )
    return open_native if config.runner == "native" else open_numpy


def _sized(source: ModelSource) -> ModelSource:
    """A copy sized by the memory that this process may use, before anything is loaded."""
    sized = source.with_memory(source.facts.context, source.memory_bytes)
    return sized.with_rope(sized.positions)


def open_native(source: ModelSource, progress: Progress) -> OpenedModel:
    """The native runner over packed weights."""
    source = _sized(source)
    config, facts, threads, shape = source.config, source.facts, source.config.threads or 1, source.shape(str(ext.isa()))
    trace = _trace(config.trace)
    step, slots = target_list(facts, source.heads), None
    if config.expert_memory:
        memory = ExpertMemory(int(config.expert_memory * GIB), cache_directory())
        weights, slots = pack_with_slots(facts, threads, progress, step, memory)
    else:
        weights = pack_weights(facts, threads, progress)
    runner = NativeRunner(
        step,
        weights,
        shape,
        tokens=max(config.tokens, SCORED_POSITIONS),
        selected=source.samples,
        vocab=facts.tokens,
        threads=threads,
        trace=trace,
        slots=config.adapter_slots,
    )
    adapters = source.adapter_store(runner.adapters)
    sampler = Sampler(facts.tokens, runner.team)
    kv = allocate_native_kv(shape, facts.cached, config.kv_dtype, source.states())
    wide = widened(facts, weights)
    reason = f"no kernel multiplies {', '.join(wide[:3])}{' …' if len(wide) > 3 else ''} as stored: more memory, and slower"
    decisions: tuple[Decision, ...] = (Decision("fp32_matrices", len(wide), "model", reason),) if wide else ()
    for name in packed_as(weights, SCREENED):
        reason = f"{name} is Q8_0: greedy and top-k rows read 5 of its 8 bits, and all of outputs that could be largest; same ids"
        decisions += (Decision("screened_head", name, "model", reason),)
    if slots is not None:
        reason = f"--expert-memory: {slots.count} of {slots.experts} experts are in memory, others are read from {slots.path}"
        reason += "; those that the next layer will probably choose are read ahead while half of such guesses are right"
        decisions += (Decision("expert_memory", f"{config.expert_memory:g} GiB", "flag", reason),)
    if halved := packed_as(weights, SPLIT):
        reason = "an encoder, and this machine has AMX: fp32 weights and inputs count with 16 bits of 24, as two bf16 each"
        decisions += (Decision("split_matrices", len(halved), "model", reason),)
    drafts = open_drafts(source, progress, weights, runner.team)
    common = {"rows": config.rows, "vocab": facts.tokens, "threads": threads, "adapters": adapters}
    backend = QueueBackend(runner, kv, shape, sampler.sample_rows, sampler.score, **common, drafts=drafts and drafts.model)
    _warm_up(backend, progress)
    stored = sum(weight.nbytes for weight in weights.values()) + (0 if slots is None else slots.data.nbytes)
    opened = OpenedModel(backend, source, shape, f"native, {ext.isa()}", stored, decisions, adapters)
    return _with_drafts(opened, drafts)


def _trace(path: str | None) -> StepTrace | None:
    """The file of `--trace`, opened before the weights are read. Raises ConfigError where it cannot be written."""
    try:
        return None if path is None else StepTrace(Path(path))
    except OSError as error:
        raise unwritable("--trace", path, error) from None


def open_numpy(source: ModelSource, progress: Progress) -> OpenedModel:
    """The numpy runner over weights as the file has them, or widened where they fit."""
    source = _sized(source)
    config, facts, threads, shape = source.config, source.facts, source.config.threads or 1, source.shape(str(ext.isa()))
    weights = load_weights(facts, source.memory_bytes, threads, progress)
    runner = NumpyRunner(target_list(facts, source.heads), weights, shape, threads=threads, slots=config.adapter_slots)
    adapters = source.adapter_store(runner.adapters)
    exactness = runner.exactness()
    name = "numpy" if exactness.exact else f"numpy, not exact on this machine ({'; '.join(exactness.failures)})"
    kv = allocate_kv(shape, facts.cached, source.states())
    drafts = open_drafts(source, progress, weights)
    common = {"rows": config.rows, "vocab": facts.tokens, "threads": threads, "adapters": adapters}
    backend = QueueBackend(runner, kv, shape, sample_rows, score, **common, drafts=drafts and drafts.model)
    _warm_up(backend, progress)
    opened = OpenedModel(backend, source, shape, name, sum(weight.nbytes for weight in weights.values()), adapters=adapters)
    return _with_drafts(opened, drafts)


def _with_drafts(opened: OpenedModel, drafts: OpenedDrafts | None) -> OpenedModel:
    """The model with another that drafts for it, whose weights count too."""
    if drafts is None:
        return opened
    stored, decisions = opened.weights_bytes + drafts.nbytes, (*opened.decisions, drafts.decision)
    return replace(opened, weights_bytes=stored, decisions=decisions, drafts=drafts.cache)


def _warm_up(backend: QueueBackend, progress: Progress) -> None:
    """Runs one token through the whole list: threads start and buffers are allocated before the first request."""
    progress("warming up", 0.0)
    backend.seconds([1], [1])
    progress("warming up", 1.0)
