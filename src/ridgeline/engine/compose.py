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
from ridgeline.core.drafts.prompt_lookup import PromptLookupDrafter
from ridgeline.core.params import Limits
from ridgeline.core.policy import POLICIES
from ridgeline.core.scheduler import Scheduler
from ridgeline.core.step_time import StepSeconds
from ridgeline.engine.engine import Engine
from ridgeline.engine.executor import Executor, ExecutorInfo
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
        samples=info.samples,
        depth=config.depth,
        max_model_len=info.max_model_len,
        prefix_caching=config.enable_prefix_caching,
    )
    if info.seconds is not None:
        limits = replace(limits, mixed_tokens=info.seconds.mixed_tokens(config.step_ms / 1e3), row_tokens=info.seconds.row_tokens)
        decisions = (pace(config, info.seconds),)
    drafter = None
    if config.speculative != "off":
        drafter = PromptLookupDrafter(config.num_speculative_tokens, info.price, barrier=config.depth > 1)
        decisions += (_speculation(config, info),)
    scheduler = Scheduler(limits, info.kv, POLICIES[config.scheduling_policy], drafter)
    return Engine(scheduler, executor, MonotonicClock(), config.depth), decisions


def _speculation(config: EngineConfig, info: ExecutorInfo) -> Decision:
    """What drafts are expected to cost, from what was measured at the start."""
    cost = "what that costs is seen as it runs"
    if len(info.price) > 1:
        seconds = {tokens: seconds for tokens, _, seconds in info.price}
        few, most = min(seconds), max(tokens for tokens in seconds if tokens <= 1 + config.num_speculative_tokens)
        cost = f"a step that verifies {most - 1} takes {seconds[most] / seconds[few]:.1f} times as long as one that verifies none"
    reason = f"--speculative: up to {config.num_speculative_tokens} ids per sequence and step, as many as are worth it; {cost}"
    return Decision("speculative", config.speculative, "flag", reason)


def pace(config: EngineConfig, seconds: StepSeconds) -> Decision:
    """The decision how many prompt tokens a step may have in which somebody waits for the next token."""
    wanted = config.step_ms / 1e3
    return Decision(
        "mixed_tokens",
        seconds.mixed_tokens(wanted),
        "machine",
        f"a step takes {seconds.fixed * 1e3:.1f} ms and {seconds.token * 1e3:.2f} ms per prompt token, each row that gets its next token "
        f"counts for {seconds.row_tokens:.1f}; while anybody waits for one it may take {seconds.target_seconds(wanted) * 1e3:.0f} ms",
    )


def start_executor(config: EngineConfig, progress: Progress) -> tuple[Executor, tuple[Decision, ...]]:
    """The executor for `config.model`, and the decisions that it took."""
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
