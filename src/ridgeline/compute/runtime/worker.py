"""Where compute starts: from settings to an executor that is loaded, sized, tested and warm. Thinking calls `build` by name.

Owns the order of start-up. Decides nothing: sizes come from `config.resolve` and `planning.memory`.
"""

import hashlib
from array import array
from collections.abc import Callable
from typing import Any

from ridgeline.compute.cpu import ext
from ridgeline.compute.runtime.batch import step_inputs
from ridgeline.compute.runtime.executor import Runner, StepExecutor
from ridgeline.compute.runtime.pace import measure
from ridgeline.compute.runtime.rows import Rows
from ridgeline.compute.runtime.runners import load_runner
from ridgeline.config.env import cache_directory
from ridgeline.config.groups import EngineConfig
from ridgeline.config.resolve import Decision, resolve
from ridgeline.config.runner import resolve_runner
from ridgeline.core.params import RowParams
from ridgeline.core.plan import KVShape, NewRow, Plan
from ridgeline.engine.executor import Executor, ExecutorInfo
from ridgeline.errors import ConfigError
from ridgeline.facts.hardware.gpu import gpu_missing
from ridgeline.facts.hardware.machine import machine_facts
from ridgeline.facts.headers.read import RANDOM_PREFIX, random_facts, read_model_facts
from ridgeline.facts.headers.rope import rope_for
from ridgeline.facts.hub.source import resolve_model
from ridgeline.facts.model import ModelFacts
from ridgeline.planning.memory import kv_costs, kv_groups

Progress = Callable[[str, float], None]
"""Called with (stage, fraction done)."""


def build(config: EngineConfig, progress: Progress) -> Executor:
    """Loads `config.model` and returns an executor that is ready for its first plan.

    Raises ModelNotFoundError, ModelFormatError or ConfigError where the model or the settings are at fault.
    """
    chance = config.model.startswith(RANDOM_PREFIX)
    facts = random_facts(config.model) if chance else read_model_facts(resolve_model(config.model, cache_directory(), progress))
    machine = machine_facts()
    config, said = resolve_runner(config, missing=ext.lost(), no_gpu=gpu_missing(), processors=machine.processors)
    if config.runner == "cuda":
        # Loaded here alone: they import torch.
        from ridgeline.compute.cuda.load import load_weights, random_weights
        from ridgeline.compute.runtime.gpu import build_on_gpu

        return build_on_gpu(config, facts, said, progress, load=random_weights if chance else load_weights)
    if chance:
        raise ConfigError(f"{config.model} has weights that a GPU makes, and the runner is {config.runner}; give a model with files",
                          fix={"MODEL": "demo"})  # fmt: skip
    groups = kv_groups(facts)
    costs = kv_costs(facts, config.block_size, config.tokens, config.kv_dtype)
    resolved = resolve(config, context=facts.context, memory_bytes=machine.memory_bytes, costs=costs)
    config = resolved.config
    assert config.max_model_len is not None and config.kv_cache_memory_bytes is not None
    facts, turned = rope_for(facts, config.max_model_len)
    decisions = said + resolved.decisions
    if turned is not None:
        decisions += (Decision("rope_positions", config.max_model_len, "model", turned),)
    shape = KVShape(groups, config.block_size, resolved.pages, _fingerprint(facts, config), resolved.host_pages, costs.page_bytes)
    loaded = load_runner(config, facts, shape, machine.memory_bytes, progress)
    progress("warming up", 0.0)
    _warm_up(loaded.runner, loaded.kv, shape)
    longest = min(config.tokens, config.max_model_len)
    seconds = measure(loaded.runner, loaded.kv, shape, config.threads or 1, config.rows, longest)
    progress("warming up", 1.0)
    info = ExecutorInfo(
        kv=shape,
        vocab=facts.tokens,
        max_model_len=config.max_model_len,
        rows=config.rows,
        runner=loaded.name,
        weights_bytes=loaded.weights_bytes,
        kv_bytes=config.kv_cache_memory_bytes,
        seconds=seconds,
        tokens=config.tokens,
    )
    return StepExecutor(info, decisions + loaded.said, loaded.runner, loaded.kv, loaded.sample, loaded.score)


def _fingerprint(facts: ModelFacts, config: EngineConfig) -> bytes:
    """Identity of weights and KV layout: pages are interchangeable only where it is equal."""
    return hashlib.sha256(facts.fingerprint + f"{config.runner} {ext.isa()} {config.kv_dtype} {config.block_size}".encode()).digest()


def _warm_up(runner: Runner, kv: Any, shape: KVShape) -> None:
    """One token through the whole list, in the reserved page 0: threads start and buffers are taken before anyone waits."""
    rows = Rows(1, len(shape.groups), 1)
    nothing = array("i", [0])
    new = NewRow(0, 0, RowParams(seed=0, choice=0, prompt_tokens=1), (0,), ((0,),) * len(shape.groups))
    plan = Plan(0, nothing, nothing, array("i", [1]), nothing, nothing, bytearray(1), bytearray(1), (new,))
    rows.apply(plan)
    runner.run(step_inputs(plan, rows, shape.block_tokens).complete(rows.last), kv)
