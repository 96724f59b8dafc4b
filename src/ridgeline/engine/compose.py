"""Puts an engine together from settings: starts the computing wing by name, gives it a scheduler and a clock.

The one place where the two wings meet; used by the engine process and by the in-process `LLM`. Knows no socket and no text.
"""

import importlib
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from ridgeline.config.groups import FAKE_PREFIX, EngineConfig
from ridgeline.config.resolve import Decision, check_bounds
from ridgeline.core.pace import StepSeconds
from ridgeline.core.params import Limits
from ridgeline.core.policy import POLICIES
from ridgeline.core.scheduler import Scheduler
from ridgeline.engine.engine import Engine
from ridgeline.engine.executor import Executor
from ridgeline.errors import ConfigError

WORKER: Final = "ridgeline.compute.runtime.worker"
FAKE: Final = "ridgeline.sim.laws.executor"
Progress = Callable[[str, float], None]
"""Called with (stage, fraction done)."""


class MonotonicClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()


def start_engine(config: EngineConfig, progress: Progress) -> tuple[Engine, tuple[Decision, ...]]:
    """A warmed-up engine, and what was decided for settings that were left open.

    Raises ConfigError, ModelNotFoundError or ModelFormatError where the settings or the model are at fault.
    """
    check_bounds(config)
    if config.scheduling_policy not in POLICIES:
        raise ConfigError(
            f"--scheduling-policy is {config.scheduling_policy!r}; it must be one of {', '.join(POLICIES)}",
            fix={"--scheduling-policy": next(iter(POLICIES))},
        )
    executor, decisions = start_executor(config, progress)
    engine, paced = engine_over(executor, config)
    return engine, decisions + paced


def engine_over(executor: Executor, config: EngineConfig) -> tuple[Engine, tuple[Decision, ...]]:
    """An engine over an executor that is warm, and what was decided from its speed. The settings' bounds have been checked."""
    info = executor.info
    decisions: tuple[Decision, ...] = ()
    limits = Limits(
        rows=info.rows if config.max_num_seqs is None else min(info.rows, config.max_num_seqs),
        token_budget=info.tokens if config.max_num_batched_tokens is None else config.max_num_batched_tokens,
        depth=config.depth,
        max_model_len=info.max_model_len,
        prefix_caching=config.enable_prefix_caching,
    )
    if info.seconds is not None:
        limits = replace(limits, mixed_tokens=info.seconds.mixed_tokens(config.step_ms / 1e3), row_tokens=info.seconds.row_tokens)
        decisions = (pace(config, info.seconds),)
    return Engine(Scheduler(limits, info.kv, POLICIES[config.scheduling_policy]), executor, MonotonicClock(), config.depth), decisions


def pace(config: EngineConfig, seconds: StepSeconds) -> Decision:
    """What a step may cost in which somebody waits for the next token, in tokens of prompts, and why."""
    wanted = config.step_ms / 1e3
    return Decision(
        "mixed_tokens",
        seconds.mixed_tokens(wanted),
        "machine",
        f"a step takes {seconds.fixed * 1e3:.1f} ms and {seconds.token * 1e3:.2f} ms a token of prompts, each row that gets its next token "
        f"counts for {seconds.row_tokens:.1f}; while anybody waits for one it may take {seconds.aimed(wanted) * 1e3:.0f} ms",
    )


def start_executor(config: EngineConfig, progress: Progress) -> tuple[Executor, tuple[Decision, ...]]:
    """What computes for `config.model`, and the decisions that it took."""
    if config.model.startswith(FAKE_PREFIX):
        return _start_fake(config.model.removeprefix(FAKE_PREFIX)), ()
    worker = importlib.import_module(WORKER).build(config, progress)
    return worker, worker.decisions


def _start_fake(text: str) -> Executor:
    try:
        arguments = json.loads(text or "{}")
        executor: Executor = importlib.import_module(FAKE).fake_executor(**arguments)
    except (TypeError, ValueError) as error:
        simple = FAKE_PREFIX + '{"rows": 4}'
        raise ConfigError(f"the model fake:{text} cannot be made: {error}; write {simple}, say", fix={"MODEL": simple}) from None
    return executor
