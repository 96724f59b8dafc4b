"""Whole models on a device: op for op the numpy runner's values, whatever is computed beside them; no allocation and no wait in a step."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small import ARCHITECTURES, DeviceDriver, small
from torch.utils._python_dispatch import TorchDispatchMode

from ridgeline.compute.cuda.runner import CudaRunner, LaunchedStep
from ridgeline.compute.cuda.step import SAMPLING_COLUMNS, DeviceSampling
from ridgeline.compute.graph import StepInputs
from ridgeline.compute.runner import diff, relative_error

IDS = np.random.default_rng(1).integers(4, 300, 12).tolist()
TOLERANCE = 1e-5


@pytest.fixture(scope="module", params=ARCHITECTURES)
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DeviceDriver:
    return DeviceDriver(*small(tmp_path_factory.mktemp(request.param), request.param))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> DeviceDriver:
    return DeviceDriver(*small(tmp_path_factory.mktemp("llama"), "llama"))


@pytest.fixture(autouse=True)
def _pages_of_their_own(request: pytest.FixtureRequest) -> None:
    """Tests share runners, which are slow to make, and no sequence."""
    for name in ("driver", "llama"):
        if name in request.fixturenames:
            found: DeviceDriver = request.getfixturevalue(name)
            found.computed.clear()
            found._tables.clear()
            found._free = iter(np.random.default_rng(3).permutation(np.arange(1, 61)).tolist())
            found.cache.pool[:, :, 1:].fill_(0xFF)


def greedy(inputs: StepInputs, rows: list[int]) -> DeviceSampling:
    columns = {name: np.full(len(rows), 1.0 if name == "top_p" else 0.0) for name in SAMPLING_COLUMNS}
    return DeviceSampling(np.array(rows, np.int32), np.ones(len(rows), np.bool_), columns)


def launch(runner: CudaRunner, inputs: StepInputs, rows: list[int]) -> LaunchedStep:
    """Starts a step of these permanent rows, with its block tables."""
    runner.tables.write(rows, inputs.tables)
    return runner.launch(inputs, greedy(inputs, rows))


def test_every_value_is_the_numpy_runners(driver: DeviceDriver) -> None:
    inputs = driver.inputs([(0, IDS[:4]), (1, IDS[4:6])], select=[1, 3, 5])
    assert diff(driver.cuda, driver.runner, inputs, driver.cache, driver.kv, tolerance=TOLERANCE) is None


def test_greedy_ids_are_the_numpy_runners_and_stay_on_the_device(driver: DeviceDriver) -> None:
    """A prompt in one step, then decode tokens whose id the host does not know; then the same by the numpy runner."""
    runner = driver.cuda
    runner.attach(driver.cache)
    found = []
    launched = []
    for count in range(3):
        chunk = IDS[:5] if not count else [-1]
        inputs = driver.inputs([(0, chunk)], select=[len(chunk) - 1])
        launched.append((inputs, launch(runner, inputs, [2])))
        if len(launched) == 2:
            found += runner.read(launched.pop(0)[1])[0]
    found += runner.read(launched.pop(0)[1])[0]
    ids, driver.computed[7] = list(IDS[:5]), 0
    for _ in range(3):
        driver.computed[7] = 0
        driver._tables.pop(7, None)
        ids.append(int(driver.step((7, ids), select=[len(ids) - 1])[0].argmax()))
    assert ids[5:] == found


def test_chunks_rows_beside_it_and_single_tokens_give_a_sequence_what_it_has_alone(llama: DeviceDriver) -> None:
    prompt = IDS[:7]
    whole = llama.cuda.run(llama.inputs([(0, prompt)], select=[6]), llama.cache)["logits"]
    llama.cuda.run(llama.inputs([(1, prompt[:3]), (2, IDS[7:9])], select=[0]), llama.cache)
    llama.cuda.run(llama.inputs([(2, IDS[9:10]), (1, prompt[3:6])], select=[0]), llama.cache)
    decode = llama.cuda.run(llama.inputs([(2, IDS[10:11]), (1, prompt[6:])], select=[1]), llama.cache)["logits"]
    assert relative_error(decode, whole) <= TOLERANCE
    llama.computed.clear()
    llama._tables.clear()
    assert relative_error(llama.step((5, prompt), select=[6]), whole) <= TOLERANCE


def test_padding_changes_nothing(llama: DeviceDriver) -> None:
    """One row beside one of padding, and beside a real one: the bucket is the same."""
    chunk = IDS[:3]
    alone = llama.cuda.run(llama.inputs([(0, chunk)], select=[2]), llama.cache, ("hidden",))
    before = llama.cache.pool.clone()
    full = llama.cuda.run(llama.inputs([(1, chunk), (2, IDS[5:10])], select=[2]), llama.cache, ("hidden",))
    assert relative_error(full["logits"], alone["logits"]) <= TOLERANCE
    written = (before.view(torch.uint8) != 0xFF).any(dim=-1).nonzero()[:, 2].unique().tolist()
    assert written == [0, *sorted({block for table in llama._tables[0] for block in table})], "padding is written to block 0 alone"


def test_a_row_that_is_not_finite_is_told(llama: DeviceDriver) -> None:
    runner = llama.cuda
    runner.attach(llama.cache)
    inputs = llama.inputs([(0, IDS[:2]), (1, IDS[2:5])], select=[1, 4])
    assert runner.read(launch(runner, inputs, [0, 1]))[1].tolist() == [True, True]
    block = llama._tables[1][0][0]
    llama.cache.pool[0, :, block].fill_(0xFF)
    inputs = llama.inputs([(0, [-1]), (1, [-1])], select=[0, 1])
    assert runner.read(launch(runner, inputs, [0, 1]))[1].tolist() == [True, False]


class Strict(TorchDispatchMode):
    """Fails when an op makes memory of its own, or takes numbers to Python. `allowed`: copies between buffers that are there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        before = {tensor.untyped_storage().data_ptr() for tensor in tensors((args, kwargs))}
        made = func(*args, **kwargs)
        name = func.name()
        assert name != "aten::_local_scalar_dense", "a number is taken to the host"
        after = {tensor.untyped_storage().data_ptr() for tensor in tensors(made)}
        assert after <= before, f"{name} allocates"
        return made


def tensors(found: Any) -> Iterator[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        yield found
    elif isinstance(found, (tuple, list)):
        for each in found:
            yield from tensors(each)
    elif isinstance(found, dict):
        yield from tensors(list(found.values()))


def steps(driver: DeviceDriver) -> list[StepInputs]:
    made = [driver.inputs([(0, IDS[:3]), (1, IDS[3:5])], select=[2, 4]), driver.inputs([(0, [-1]), (1, [-1])], select=[0, 1])]
    return [*made, driver.inputs([(0, [-1]), (1, IDS[5:8])], select=[0, 3]), driver.inputs([(0, [-1]), (1, [-1])], select=[0, 1])]


def without_kernels(driver: DeviceDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreted kernels make memory as they like: what a launcher does before its kernel starts is looked at, not the kernel."""
    from triton.runtime.interpreter import GridExecutor

    if driver.device.real:
        return
    monkeypatch.setattr(GridExecutor, "__call__", lambda self, *args, **kwargs: None)


def test_a_step_allocates_nothing_and_waits_for_nothing(llama: DeviceDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = llama.cuda
    runner.attach(llama.cache)
    planned = steps(llama)
    without_kernels(llama, monkeypatch)
    for each in planned:
        runner.read(launch(runner, each, [0, 1]))
    with Strict():
        for each in planned:
            launch(runner, each, [0, 1])


@pytest.mark.parametrize("harm", ["allocation", "number"])
def test_what_allocates_or_waits_is_found(llama: DeviceDriver, harm: str) -> None:
    x = torch.ones(3, device="cpu")
    with pytest.raises(AssertionError, match="allocates" if harm == "allocation" else "to the host"), Strict():
        x + x if harm == "allocation" else x[0].item()


def test_graphs_give_what_launches_give(llama: DeviceDriver) -> None:
    """With a stand-in that runs what it captured: which buckets replay, and that a replay needs nothing but new inputs."""
    replayed: list[int] = []

    class Held:
        def __init__(self, run: Any) -> None:
            self.run = run

        def replay(self) -> None:
            replayed.append(1)
            self.run()

    runner = llama.cuda
    runner.attach(llama.cache)
    runner._graphs.capture = lambda run, pool: Held(run)
    try:
        first = llama.inputs([(0, IDS[:2]), (1, IDS[2:4])], select=[1, 3])
        launch(runner, first, [0, 1])
        assert not replayed
        decode = llama.inputs([(0, [-1]), (1, [-1])], select=[0, 1])
        bucket = runner.buckets.of([1, 1], decode.tables[0].shape[1])
        launched = runner.read(launch(runner, decode, [0, 1]))[0]
        runner._graphs.add_step(bucket, *runner._launches.launches(bucket))
        again = launch(runner, replace(decode, ids=np.array(IDS[2:4], np.int32)), [0, 1])
        assert len(replayed) == 1 and len(runner.read(again)[0]) == len(launched) == 2
    finally:
        runner._graphs.capture = runner.device.capture if runner.device.real else None
        runner._graphs.clear()


@pytest.mark.gpu
def test_a_gpu_neither_allocates_nor_waits(tmp_path_factory: pytest.TempPathFactory) -> None:
    """By the driver's own account, graphs included."""
    driver = DeviceDriver(*small(tmp_path_factory.mktemp("real"), "llama"))
    runner = driver.cuda
    runner.attach(driver.cache)
    runner.warm_up(lambda stage, part: None)
    planned = steps(driver)
    for each in planned:
        runner.read(launch(runner, each, [0, 1]))
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        launched = [launch(runner, each, [0, 1]) for each in planned[:2]]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    assert all(runner.read(each)[1].all() for each in launched)
