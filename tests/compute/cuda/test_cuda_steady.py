"""Steps in steady state, through the engine: nothing is allocated, and nothing is waited for but the events of results."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small import SIZE, device
from tiny import write_tiny
from torch.utils._python_dispatch import TorchDispatchMode

from ridgeline.bench.gpu_part import make_requests
from ridgeline.compute.cuda import backend
from ridgeline.compute.cuda.runner import CudaRunner
from ridgeline.compute.runtime import worker
from ridgeline.compute.runtime.null_graphs import null_executor
from ridgeline.config.groups import EngineConfig
from ridgeline.core.plan import Result
from ridgeline.engine.compose import make_engine, start_engine
from ridgeline.engine.engine import Engine
from ridgeline.facts.headers.read import read_model_facts

ROWS, PROMPT, LENGTH = 3, 5, 48
Harm = Callable[[CudaRunner], None]


class Strict(TorchDispatchMode):
    """Fails where an op makes memory, takes a number to Python, or copies in a way that would wait for a device.

    On the interpreter all memory is the host's, so every copy outside of kernels has to be asked for without waiting.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        before = {tensor.untyped_storage().data_ptr() for tensor in _tensors((args, kwargs))}
        made = func(*args, **kwargs)
        name = func.name()
        assert name != "aten::_local_scalar_dense", "a number is taken to the host"
        assert {tensor.untyped_storage().data_ptr() for tensor in _tensors(made)} <= before, f"{name} allocates"
        if name == "aten::copy_":
            assert kwargs.get("non_blocking", args[2] if len(args) > 2 else False), "a copy waits"
        return made


def _tensors(found: Any) -> Iterator[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        yield found
    elif isinstance(found, (tuple, list, dict)):
        for each in found.values() if isinstance(found, dict) else found:
            yield from _tensors(each)


def decoding(engine: Engine) -> Engine:
    """The engine when each of its rows gets a token per step."""
    turn = engine.turn(make_requests(engine, ROWS, PROMPT, LENGTH))
    while len(turn.outputs) < ROWS:
        turn = engine.turn()
    for _ in range(4):  # round the ring
        engine.turn()
    return engine


@pytest.fixture
def still(tmp_path: Path) -> Engine:
    """Over a device that does nothing: what is seen is what the host does around the kernels."""
    facts = read_model_facts(write_tiny(tmp_path / "small.gguf", SIZE))
    config = EngineConfig("still", max_num_seqs=ROWS, max_num_batched_tokens=32)
    executor = null_executor(facts, rows=ROWS, tokens=32, positions=LENGTH, block_tokens=4, depth=config.depth)
    return decoding(make_engine(executor, config)[0])


def _allocates(runner: CudaRunner) -> None:
    launch = runner.launch
    runner.launch = lambda *given, **more: (runner.ids.results.clone(), launch(*given, **more))[1]  # type: ignore[method-assign]


def _takes_a_number(runner: CudaRunner) -> None:
    read = runner.read
    runner.read = lambda launched: (runner.ids.results[0, 0].item(), read(launched))[1]  # type: ignore[method-assign]


def _copies_and_waits(runner: CudaRunner) -> None:
    launch, host = runner.launch, torch.zeros(runner.ids.results.shape, dtype=runner.ids.results.dtype, device="cpu")
    runner.launch = lambda *given, **more: (host.copy_(runner.ids.results), launch(*given, **more))[1]  # type: ignore[method-assign]


HARMS: dict[str, Harm] = {"allocates": _allocates, "a number is taken": _takes_a_number, "a copy waits": _copies_and_waits}


def test_the_host_neither_allocates_nor_waits(still: Engine) -> None:
    with Strict():
        for _ in range(8):
            assert len(still.turn().outputs) == ROWS


@pytest.mark.parametrize("says", HARMS)
def test_what_does_is_found(still: Engine, says: str) -> None:
    HARMS[says](still.executor.backend.runner)  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match=says), Strict():
        still.turn()


def test_steps_of_the_same_rows_make_no_object_a_row(still: Engine) -> None:
    """What is split of rows is made when they change, not in every step."""
    executor: Any = still.executor
    split = executor.backend._split
    for _ in range(4):
        still.turn()
        assert executor.backend._split is split


def test_a_step_says_what_it_took(still: Engine) -> None:
    timed: list[Result] = []
    collect = still.executor.collect
    still.executor.collect = lambda ticket: timed.append(collect(ticket)) or timed[-1]  # type: ignore[method-assign,func-returns-value]
    for _ in range(3):
        still.turn()
    assert all(each.timings.run > 0 and each.timings.prepare > 0 and each.timings.queue >= 0 for each in timed)


@pytest.mark.gpu
@pytest.mark.parametrize("harm", [None, *HARMS.values()])
def test_a_gpu_neither_allocates_nor_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Harm | None) -> None:
    """By torch's own account: a wait of any call but an event's is an error, and so is a block that is asked for."""
    monkeypatch.setattr(worker, "gpu_missing", lambda: None)
    monkeypatch.setattr(backend, "open_device", device)
    path = write_tiny(tmp_path / "small.gguf", SIZE)
    config = EngineConfig(str(path), runner="cuda", dtype="f32", max_num_seqs=ROWS, max_num_batched_tokens=32, max_model_len=LENGTH)
    engine, _ = start_engine(config, lambda stage, fraction: None)
    decoding(engine)
    if harm is not None:
        harm(engine.executor.backend.runner)  # type: ignore[attr-defined]

    def turns() -> int:
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        for _ in range(8):
            assert len(engine.turn().outputs) == ROWS
        return int(torch.cuda.memory_stats()["allocation.all.allocated"]) - before

    torch.cuda.set_sync_debug_mode("error")
    try:
        if harm is None:
            assert not turns()
        else:
            with pytest.raises((RuntimeError, AssertionError)):
                assert not turns()
    finally:
        torch.cuda.set_sync_debug_mode("default")
        engine.executor.close()
