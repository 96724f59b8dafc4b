"""Where a GPU starts: weights, buffers, the largest step there can be, and the KV cache out of what that leaves.

Owns the order of start-up on a device. The context is planned from headers, so that every buffer can be sized before anything runs; how
many pages there are is measured, so that nothing runs out of memory later.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from ridgeline.compute.cuda.attention import Case
from ridgeline.compute.cuda.backends import open_attention
from ridgeline.compute.cuda.cache import allocate_device_kv
from ridgeline.compute.cuda.device import DTYPES, Device, open_device
from ridgeline.compute.cuda.graphs import Graphs
from ridgeline.compute.cuda.load import load_weights
from ridgeline.compute.cuda.memory import cache_bytes, weights_bytes
from ridgeline.compute.cuda.plan import Weights
from ridgeline.compute.cuda.runner import CudaRunner
from ridgeline.compute.cuda.step import NOBODY, padding
from ridgeline.compute.cuda.tier import HostTier
from ridgeline.compute.graph import OpList
from ridgeline.compute.record import record
from ridgeline.compute.runtime.device_executor import DeviceExecutor
from ridgeline.config.groups import EngineConfig
from ridgeline.config.resolve import Decision, KVCosts, resolve
from ridgeline.core.pace import StepSeconds
from ridgeline.core.plan import KVShape
from ridgeline.engine.executor import ExecutorInfo
from ridgeline.facts.hardware.machine import machine_facts
from ridgeline.facts.headers.rope import rope_for
from ridgeline.facts.model import ModelFacts
from ridgeline.planning.memory import kv_costs, kv_groups

Progress = Callable[[str, float], None]
"""Called with (stage, fraction done)."""
LAW_ROWS: Final = 64
LAW_TOKENS: Final = 2048
LAW_ROUNDS: Final = 3
"""Rows and tokens of the steps that are timed at the start, and how often each is."""
Load = Callable[..., tuple[OpList, Weights]]
"""As `load_weights`."""


def build_on_gpu(
    config: EngineConfig, facts: ModelFacts, said: tuple[Decision, ...], progress: Progress, *, load: Load = load_weights,
    graphs: Graphs | None = None,
) -> DeviceExecutor:  # fmt: skip
    """Loads a model to the GPU. `config` has its runner and its types settled; raises ConfigError where it does not fit.

    load  where weights come from: the model's files, or chance (`compute.cuda.load.random_weights`), for benchmarks
    graphs  what starts the runner's steps; None: its own
    """
    device = open_device()
    dtype = DTYPES["bf16" if config.dtype == "fp8" else config.dtype]
    attention = open_attention(config.attention_backend, _case(config, facts, device))
    costs = kv_costs(facts, config.block_size, config.tokens, config.kv_dtype)
    length = planned_length(config, facts, device, weights_bytes(facts, dtype, fp8=config.dtype == "fp8"), costs)
    facts, turned = rope_for(facts, length)
    oplist, weights = load(facts, record(facts)["step"], device, dtype, fp8=config.dtype == "fp8", progress=progress)
    shape = KVShape(kv_groups(facts), config.block_size, 1, b"")
    runner = CudaRunner(
        oplist, weights, shape, device, dtype,
        tokens=config.tokens, rows=config.rows, positions=length, vocab=facts.tokens, kv_heads=facts.kv_heads, depth=config.depth,
        invariant=config.batch_invariant, attention=attention, graphs=graphs,
    )  # fmt: skip
    runner.attach(allocate_device_kv(shape, facts.kv_heads, facts.head_dim, config.kv_dtype, device.torch))
    left = _room(runner, device, progress)
    resolved = resolve(config, context=length, memory_bytes=left, costs=costs, share=1.0, host_bytes=machine_facts().memory_bytes)
    settled = resolved.config
    assert settled.max_model_len is not None and settled.kv_cache_memory_bytes is not None
    shape = replace(
        shape,
        blocks=resolved.pages,
        fingerprint=_fingerprint(facts, settled, device),
        host_blocks=resolved.host_pages,
        block_bytes=costs.page_bytes,
    )
    cache = allocate_device_kv(shape, facts.kv_heads, facts.head_dim, config.kv_dtype, device.torch)
    runner.attach(cache)
    graph_bytes = _captured(runner, device, progress)
    decisions = (*said, *resolved.decisions, *_told(runner, turned, settled.max_model_len, graph_bytes))
    info = ExecutorInfo(
        kv=shape,
        vocab=facts.tokens,
        max_model_len=settled.max_model_len,
        rows=config.rows,
        runner=f"cuda, {device.name}",
        weights_bytes=weights.nbytes,
        kv_bytes=settled.kv_cache_memory_bytes,
        tokens=config.tokens,
        seconds=step_law(partial(_seconds, runner), config.rows, min(config.tokens, settled.max_model_len)) if device.real else None,
    )
    tier = HostTier(cache, shape.host_blocks, device, config.depth) if shape.host_blocks else None
    return DeviceExecutor(info, decisions, runner, cache, tier)


def _room(runner: CudaRunner, device: Device, progress: Progress) -> int:
    """Bytes that the KV cache may take: what the largest step leaves, once every kernel is on the device."""
    progress("warming up", 0.0)
    runner.dry()
    runner.rehearse(progress)
    progress("warming up", 1.0)
    return cache_bytes(device, device.free_bytes(), runner.graphs_wanted)


def _captured(runner: CudaRunner, device: Device, progress: Progress) -> int:
    """Captures all graphs; bytes of the device that they took."""
    before = device.memory()["used"]
    runner.warm_up(progress)
    taken = device.memory()["used"] - before
    if runner.graphs:
        progress(f"captured {runner.graphs} graphs, {taken >> 20} MiB", 1.0)
    return taken


def planned_length(config: EngineConfig, facts: ModelFacts, device: Device, weights: int, costs: KVCosts) -> int:
    """Positions that a sequence may have: those asked for, else what the memory behind weights has room for, by their headers."""
    if config.max_model_len is not None:
        return min(config.max_model_len, facts.context)
    room = config.kv_cache_memory_bytes or cache_bytes(device, device.memory_bytes - weights, 0)
    return max(1, costs.longest(room // costs.page_bytes, facts.context))


def _case(config: EngineConfig, facts: ModelFacts, device: Device) -> Case:
    """What decides who can compute the model's attention."""
    dtype = "bf16" if config.dtype == "fp8" else config.dtype
    group = facts.heads // facts.kv_heads
    return Case(device.capability, dtype, config.kv_dtype, facts.head_dim, facts.kv_heads, group, config.batch_invariant)


def _seconds(runner: CudaRunner, tokens: int, rows: int) -> float:
    """The device's seconds for a step on page 0."""
    launched = runner.launch(padding(tokens, rows, len(runner.shape.groups), runner.shape.block_tokens), NOBODY)
    runner.read(launched)
    return runner.seconds(launched)


def step_law(seconds: Callable[[int, int], float], rows: int, tokens: int) -> StepSeconds | None:
    """How long steps take; the best of some rounds. None where a step has room for one token only.

    seconds  of a step of so many tokens, divided evenly among so many rows
    """
    rows, tokens = min(LAW_ROWS, rows, tokens), min(LAW_TOKENS, tokens)
    if tokens < 2:
        return None
    one, many, chunk = (min(seconds(*sizes) for _ in range(LAW_ROUNDS)) for sizes in ((1, 1), (rows, rows), (tokens, 1)))
    return StepSeconds.fitted(one, many, max(2, rows), chunk, tokens)


def _told(runner: CudaRunner, turned: str | None, length: int, graph_bytes: int) -> tuple[Decision, ...]:
    """What users should know of how the device was set up."""
    told = [Decision("step_bytes", runner.nbytes, "machine", "what the largest step takes of the device beside weights and KV cache")]
    if runner.graphs:
        reason = f"steps, or parts of them, that are replayed instead of launched; they took {graph_bytes >> 20} MiB of the device"
        told.append(Decision("graphs", runner.graphs, "machine", reason))
    if turned is not None:
        told.append(Decision("rope_positions", length, "model", turned))
    return tuple(told)


def _fingerprint(facts: ModelFacts, config: EngineConfig, device: Device) -> bytes:
    """Identity of weights and KV layout: pages are interchangeable only where it is equal."""
    named = f"{config.runner} {device.name} {config.dtype} {config.kv_dtype} {config.block_size} {config.batch_invariant} "
    named += config.attention_backend
    return hashlib.sha256(facts.fingerprint + named.encode()).digest()
