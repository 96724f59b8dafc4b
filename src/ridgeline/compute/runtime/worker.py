"""Where compute starts: from settings to an executor that is loaded, sized, tested and warm. Thinking calls `build` by name.

Owns the order of start-up. Decides nothing: sizes come from `config.resolve` and `planning.memory`.
"""

import hashlib
from array import array
from collections.abc import Callable

from ridgeline.compute.decoding.sampler import sample
from ridgeline.compute.exact.cache import KVCache, allocate_kv
from ridgeline.compute.load.weights import load_weights
from ridgeline.compute.models.registry import record
from ridgeline.compute.numpy_runner import NumpyRunner
from ridgeline.compute.runtime.batch import step_inputs
from ridgeline.compute.runtime.executor import Runner, StepExecutor
from ridgeline.compute.runtime.rows import Rows
from ridgeline.config.env import cache_directory
from ridgeline.config.groups import EngineConfig
from ridgeline.config.resolve import Decision, resolve
from ridgeline.core.params import RowParams
from ridgeline.core.plan import KVShape, NewRow, Plan
from ridgeline.engine.executor import ExecutorInfo
from ridgeline.facts.machine import machine_facts
from ridgeline.facts.model import ModelFacts
from ridgeline.facts.read import read_model_facts
from ridgeline.facts.rope import rope_for
from ridgeline.facts.source import resolve_model
from ridgeline.planning.memory import kv_costs, kv_groups

Progress = Callable[[str, float], None]
"""Called with (stage, fraction done)."""


def build(config: EngineConfig, progress: Progress) -> StepExecutor:
    """Loads `config.model` and returns an executor that is ready for its first plan.

    Raises ModelNotFoundError, ModelFormatError or ConfigError where the model or the settings are at fault.
    """
    facts = read_model_facts(resolve_model(config.model, cache_directory(), progress))
    machine = machine_facts()
    groups = kv_groups(facts)
    costs = kv_costs(facts, config.block_size, config.max_num_batched_tokens, "f32")
    resolved = resolve(config, context=facts.context, memory_bytes=machine.memory_bytes, costs=costs)
    assert resolved.config.max_model_len is not None and resolved.config.kv_cache_memory_bytes is not None
    facts, said = rope_for(facts, resolved.config.max_model_len)
    decisions = resolved.decisions
    if said is not None:
        decisions += (Decision("rope_positions", resolved.config.max_model_len, "model", said),)
    shape = KVShape(groups, config.block_size, resolved.pages, _fingerprint(facts, config.block_size))
    weights = load_weights(facts, machine.memory_bytes, machine.processors, progress)
    progress("warming up", 0.0)
    runner = NumpyRunner(record(facts)["step"], weights, shape, threads=machine.processors)
    exactness = runner.exactness()
    kv = allocate_kv(shape, facts.kv_heads, facts.head_dim)
    _warm_up(runner, kv, shape)
    progress("warming up", 1.0)
    info = ExecutorInfo(
        kv=shape,
        vocab=facts.tokens,
        max_model_len=resolved.config.max_model_len,
        rows=config.max_num_seqs,
        runner="numpy" if exactness.exact else f"numpy, not exact on this machine ({'; '.join(exactness.failures)})",
        weights_bytes=sum(weight.nbytes for weight in weights.values()),
        kv_bytes=resolved.config.kv_cache_memory_bytes,
    )
    return StepExecutor(info, decisions, runner, kv, sample)


def _fingerprint(facts: ModelFacts, block_tokens: int) -> bytes:
    """Identity of weights and KV layout: pages are interchangeable only where it is equal."""
    return hashlib.sha256(facts.fingerprint + f"numpy fp32 {block_tokens}".encode()).digest()


def _warm_up(runner: Runner, kv: KVCache, shape: KVShape) -> None:
    """One token through the whole list, in the reserved page 0: threads start and BLAS takes its buffers before anyone waits."""
    rows = Rows(1, len(shape.groups), 1)
    nothing = array("i", [0])
    new = NewRow(0, 0, RowParams(seed=0, choice=0, prompt_tokens=1), (0,), ((0,),) * len(shape.groups))
    plan = Plan(0, nothing, nothing, array("i", [1]), nothing, nothing, bytearray(1), bytearray(1), (new,))
    rows.apply(plan)
    runner.run(step_inputs(plan, rows, shape.block_tokens), kv)
