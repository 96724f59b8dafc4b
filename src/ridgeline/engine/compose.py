"""Builds an engine from settings: starts the executor by module name, adds a scheduler and a clock.

The one place where scheduling and computing meet; used by the engine process and by the in-process `LLM`. Knows no socket and no text.
"""

import importlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from ridgeline.config.env import model_stores
from ridgeline.config.groups import FAKE_PREFIX, EngineConfig
from ridgeline.config.resolve import Decision
from ridgeline.config.values import check_settings
from ridgeline.core.drafts.kinds import make_drafter
from ridgeline.core.pace import Pace
from ridgeline.core.params import MAX_WAITING, Limits
from ridgeline.core.policy import POLICIES
from ridgeline.core.scheduler import Scheduler
from ridgeline.core.step_time import StepSeconds
from ridgeline.engine.drafting import measured_prices, speculation_decision
from ridgeline.engine.engine import Engine, MonotonicClock, Store
from ridgeline.engine.executor import Executor
from ridgeline.engine.seats import Seat
from ridgeline.errors import ConfigError, unwritable
from ridgeline.facts.headers.read import RANDOM_PREFIX
from ridgeline.facts.hub.source import resolve_model

WORKER_MODULE: Final = "ridgeline.compute.runtime.worker"
GRAMMAR_MODULE: Final = "ridgeline.compute.decoding.grammar"
FAKE_EXECUTOR_MODULE: Final = "ridgeline.sim.laws.executor"
Progress = Callable[[str, float], None]
"""Called with (stage, fraction done)."""


def start_engine(config: EngineConfig, progress: Progress, seat: Seat | None = None) -> tuple[Engine, tuple[Decision, ...]]:
    """Starts and warms up an engine; also returns the decisions for settings that were left open. `seat`: among engines that share cores.

    Raises ConfigError, ModelNotFoundError or ModelFormatError where the settings or the model are at fault.
    """
    check_settings(config)
    needs_model, may_have_one = config.speculative == "draft", config.speculative in ("draft", "auto")
    if not (may_have_one if config.draft_model is not None else not needs_model):
        raise ConfigError(
            "--speculative draft and --draft-model MODEL come together (auto takes one too), and one of them is missing; give both or none",
            fix={"--speculative": None, "--draft-model": None},
        )
    executor, decisions = start_executor(config, progress, seat)
    engine, more = make_engine(executor, config)
    return engine, decisions + more


def make_engine(executor: Executor, config: EngineConfig) -> tuple[Engine, tuple[Decision, ...]]:
    """An engine over a warm executor, and the decisions taken from its speed. The settings' bounds have been checked."""
    info = executor.info
    decisions: tuple[Decision, ...] = ()
    pace = None
    limits = Limits(
        rows=info.rows if config.max_num_seqs is None else min(info.rows, config.max_num_seqs),
        token_budget=info.tokens if config.max_num_batched_tokens is None else config.max_num_batched_tokens,
        samples=info.samples,
        depth=config.depth,
        max_model_len=info.max_model_len,
        max_waiting=MAX_WAITING,
        prefix_caching=config.enable_prefix_caching,
        adapter_slots=info.adapter_slots,
    )
    if info.seconds is not None:
        pace = Pace(info.seconds, config.step_ms / 1e3)
        decisions = (prefill_budget(config, info.seconds),)
    drafter = None
    if config.speculative in ("draft", "mtp") and info.drafts is None:
        reason = f"{config.model:.200} has no weights to draft for"
        raise ConfigError(f"--speculative {config.speculative}: {reason}", fix={"--speculative": "ngram"})
    if config.speculative != "off":
        drafter = make_drafter(config.speculative, config.num_speculative_tokens, info.price, config.depth > 1, info.drafts)
        decisions += (speculation_decision(config, measured_prices(config, info), info.rows),)
    scheduler = Scheduler(limits, info.kv, POLICIES[config.scheduling_policy], drafter, pace)
    store = None
    if config.has_tiers:
        from ridgeline.engine.tiers.opening import open_store  # what nobody asks for is not loaded

        store, more = open_store(config, executor, lambda: 0.0 if pace is None else pace.seconds.token)
        decisions += more
    if config.record is not None:
        return _recorded(scheduler, executor, store, config, Path(config.record)), decisions
    return Engine(scheduler, executor, MonotonicClock(), config.depth, store), decisions


def _recorded(scheduler: Scheduler, executor: Executor, store: Store | None, config: EngineConfig, path: Path) -> Engine:
    """An engine that records itself. Raises ConfigError where the file cannot be written."""
    from ridgeline.engine.record import RecordedEngine, Recorder, Setup  # needs msgspec, which `LLM` does without

    info, drafts = executor.info, config.num_speculative_tokens if scheduler.drafter else 0
    setup = Setup(
        scheduler.limits, info.kv, config.scheduling_policy, info.rows, drafts, info.price, info.seconds, config.step_ms,
        config.speculative, info.drafts,
    )  # fmt: skip
    try:
        recorder = Recorder(executor, path, setup)
    except OSError as error:
        raise unwritable("--record", path, error) from None
    return RecordedEngine(scheduler, MonotonicClock(), config.depth, recorder, store)


def prefill_budget(config: EngineConfig, seconds: StepSeconds) -> Decision:
    """The decision on the number of prompt tokens in a step with decoding rows."""
    target = config.step_ms / 1e3
    return Decision(
        "mixed_tokens",
        seconds.mixed_tokens(target),
        "machine",
        f"a step takes {seconds.fixed * 1e3:.1f} ms and {seconds.token * 1e3:.2f} ms per prompt token, each decoding row "
        f"counts for {seconds.row_tokens:.1f}; with decoding rows a step may take {seconds.target_seconds(target) * 1e3:.0f} ms",
    )


def start_executor(config: EngineConfig, progress: Progress, seat: Seat | None = None) -> tuple[Executor, tuple[Decision, ...]]:
    """Starts the executor for `config.model`; also returns the decisions that it took."""
    if config.model.startswith(FAKE_PREFIX):
        if config.trace is not None:
            raise ConfigError("--trace needs the native runner; a fake model has no threads to trace", fix={"--trace": None})
        return _start_fake(config.model.removeprefix(FAKE_PREFIX)), ()
    worker = importlib.import_module(WORKER_MODULE).build(config, progress)
    if seat is not None:
        worker.share_threads(seat.threads)
    if config.draft_model is not None and worker.info.drafts is not None and not worker.info.drafts.window:
        _map_tokens(worker, config)
    drafts_forced = config.speculative in ("ngram", "suffix", "auto")
    worker.use_grammars(partial(_vocabulary, config.model, worker.info.vocab), tells_forced=drafts_forced)
    return worker, worker.decisions


def _map_tokens(worker: Any, config: EngineConfig) -> None:
    """Tells the executor which ids of the draft model have the texts of the target's, where they differ. Raises ConfigError."""
    from ridgeline.engine.token_map import map_tokens  # what it needs of tokenizers is loaded for a draft model alone

    assert config.draft_model is not None
    found = map_tokens(
        _vocabulary(config.model, worker.info.vocab), _vocabulary(config.draft_model, worker.info.drafts.vocab), config.draft_model
    )
    if found is not None:
        worker.use_token_map(*found)


def _vocabulary(model: str, vocab: int) -> Any:
    """The vocabulary in which outputs follow grammars, with the fields of `compute.decoding.grammar.Vocabulary`."""
    from ridgeline.text.files import read_files  # loads a tokenizer's library: with the first grammar

    path = None if model.startswith((FAKE_PREFIX, RANDOM_PREFIX)) else resolve_model(model, model_stores())
    files = read_files(model, path, chat_template=None, generation_config="none")
    tokenizer, size = files.tokenizer, files.vocab(vocab)
    return SimpleNamespace(
        pieces=[tokenizer.piece(token) for token in range(size)],
        control=[token for token in tokenizer.control if token < size],
        ends=sorted(files.eos_ids(size)),
    )


def _start_fake(text: str) -> Executor:
    """A fake executor of the arguments in `text`. Raises ConfigError for arguments that it does not have."""
    try:
        arguments = json.loads(text or "{}")
        executor = importlib.import_module(FAKE_EXECUTOR_MODULE).fake_executor(**arguments)
    except (TypeError, ValueError) as error:
        simple = FAKE_PREFIX + '{"rows": 4}'
        raise ConfigError(f"the model fake:{text} cannot be made: {error}; try {simple}", fix={"MODEL": simple}) from None
    info = executor.info
    if info.has_grammars:
        compiler = importlib.import_module(GRAMMAR_MODULE).GrammarCompiler
        executor.grammars = compiler(partial(_vocabulary, FAKE_PREFIX, info.vocab), info.vocab)
    return executor  # type: ignore[no-any-return]
