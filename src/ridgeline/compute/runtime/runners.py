"""A runner with its weights and its cache, for the settings that `config.runner` has settled.

Owns which weights a runner takes in which form. Decides nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.cache import allocate_native_kv
from ridgeline.compute.cpu.runner import NativeRunner
from ridgeline.compute.cpu.sampling import Sampler
from ridgeline.compute.cpu.trace import StepTrace
from ridgeline.compute.cpu.weights import pack_weights, screened, widened
from ridgeline.compute.decoding.sampler import sample, score
from ridgeline.compute.exact.cache import allocate_kv
from ridgeline.compute.load.weights import load_weights
from ridgeline.compute.numpy_runner import NumpyRunner
from ridgeline.compute.record import record
from ridgeline.compute.runtime.executor import Runner, Sample
from ridgeline.compute.runtime.scores import SLICE, Score
from ridgeline.config.groups import EngineConfig
from ridgeline.config.resolve import Decision
from ridgeline.core.plan import KVShape
from ridgeline.facts.model import ModelFacts

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A runner, the cache that it writes to, and what samples from its logits. `name` is what users see of it."""

    runner: Runner
    kv: Any
    sample: Sample
    score: Score
    name: str
    weights_bytes: int
    said: tuple[Decision, ...] = ()
    """What users should know of how it was loaded."""


def load_runner(config: EngineConfig, facts: ModelFacts, shape: KVShape, memory_bytes: int, progress: Progress) -> Loaded:
    """Loads weights and allocates the cache. `config` has nothing left open."""
    load = _native if config.runner == "native" else _numpy
    return load(config, facts, shape, memory_bytes, progress)


def _native(config: EngineConfig, facts: ModelFacts, shape: KVShape, memory_bytes: int, progress: Progress) -> Loaded:
    threads = config.threads or 1
    weights = pack_weights(facts, threads, progress)
    runner = NativeRunner(
        record(facts)["step"],
        weights,
        shape,
        tokens=max(config.tokens, SLICE),
        selected=max(config.rows, SLICE),
        vocab=facts.tokens,
        threads=threads,
        trace=None if config.trace is None else StepTrace(Path(config.trace)),
    )
    kv = allocate_native_kv(shape, facts.kv_heads, facts.head_dim, config.kv_dtype)
    stored = sum(weight.nbytes for weight in weights.values())
    sampler = Sampler(facts.tokens, runner.team)
    wide = widened(facts, weights)
    reason = f"no kernel multiplies {', '.join(wide[:3])}{' …' if len(wide) > 3 else ''} as stored: more memory, and slower"
    said: tuple[Decision, ...] = (Decision("fp32_matrices", len(wide), "model", reason),) if wide else ()
    for name in screened(weights):
        reason = f"{name} is Q8_0: greedy and top-k rows read 5 of its 8 bits, and all of outputs that could be largest; same ids"
        said += (Decision("screened_head", name, "model", reason),)
    return Loaded(runner, kv, sampler.sample, sampler.score, f"native, {ext.isa()}", stored, said)


def _numpy(config: EngineConfig, facts: ModelFacts, shape: KVShape, memory_bytes: int, progress: Progress) -> Loaded:
    threads = config.threads or 1
    weights = load_weights(facts, memory_bytes, threads, progress)
    runner = NumpyRunner(record(facts)["step"], weights, shape, threads=threads)
    exactness = runner.exactness()
    name = "numpy" if exactness.exact else f"numpy, not exact on this machine ({'; '.join(exactness.failures)})"
    kv = allocate_kv(shape, facts.kv_heads, facts.head_dim)
    return Loaded(runner, kv, sample, score, name, sum(weight.nbytes for weight in weights.values()))
