"""Adapters on a device: rows of several ranks and of none, slots that are filled between steps, and whole models against numpy's ids."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bound import filled_slots, tiles_of
from lora_files import write_tensors
from serving import SETTINGS, read_adapters, serve
from small import SIZE as SMALL
from small import DeviceDriver, device, open_tiny
from tensors import error, numbers, on_device, poisoned, within
from tiny import write_tiny

from ridgeline.compute.adapters.store import read_pairs
from ridgeline.compute.cuda import backend, runner
from ridgeline.compute.cuda.adapters import AdapterColumns, DeviceAdapterSlots, put_in_order
from ridgeline.compute.cuda.graphs import Graphs
from ridgeline.compute.cuda.triton.lora import LARGE_TILE, SMALL_TOKENS, Tiles, add_changes, scratch_bytes
from ridgeline.compute.exact.runner import NumpyRunner
from ridgeline.compute.load.record import record
from ridgeline.compute.ops.definition import floats
from ridgeline.compute.ops.lora import Pair
from ridgeline.compute.ops.table import OPS
from ridgeline.compute.runner import relative_error
from ridgeline.compute.runtime import worker
from ridgeline.core.params import Adapter as Named
from ridgeline.core.params import Admitted, Sampling
from ridgeline.facts.headers.adapter import digest_of, file_contents, read_adapter
from ridgeline.facts.headers.read import read_model_facts

SIZE = replace(SMALL, ffn=64)  # a multiple of the blocks of quantised files
MODULES = {
    "self_attn.q_proj": (64, 32), "self_attn.k_proj": (32, 32), "self_attn.v_proj": (32, 32), "self_attn.o_proj": (32, 64),
    "mlp.gate_proj": (64, 32), "mlp.up_proj": (64, 32), "mlp.down_proj": (32, 64),
}  # fmt: skip
"""Outputs and inputs of the small model's matrices."""


def pairs(ranks: list[int], outputs: int, inputs: int) -> list[Pair | None]:
    """One of each rank; none for rank 0."""
    made = [(floats(2 * r, rank, inputs, size=0.2), floats(2 * r + 1, rank, outputs, size=0.2)) for r, rank in enumerate(ranks)]
    return [Pair("F32", a, b, 0.75) if len(a) else None for a, b in made]


def changed(x: np.ndarray, y: np.ndarray, slots: np.ndarray, own: list[Pair | None], *, invariant: bool = False) -> torch.Tensor:
    """y with the changes of its rows, by the kernels."""
    held = filled_slots(OPS["lora"], {"pairs": own}, {"x": x, "y": y}, torch.float32)
    tiles = tiles_of(slots, 4, invariant=invariant)
    scratch = poisoned(scratch_bytes(len(x), 1, held.slots.most_rank, x.shape[1], invariant=invariant), dtype=torch.uint8)
    out = within(on_device(y))
    add_changes(on_device(x), out, (y.shape[1],), held.slots, 0, Tiles(tiles["adapter_tokens"], tiles["adapter_slots"]), scratch)()
    return out


@pytest.mark.parametrize("count", [9, pytest.param(SMALL_TOKENS + 40, marks=pytest.mark.night)])
def test_largest_ranks_and_several_parts_of_inputs(count: int) -> None:
    own, slots = pairs([256, 65, 1], 70, 1100), np.random.default_rng(1).integers(-1, 3, count).astype(np.int32)
    x, y = floats(8, count, 1100, size=0.1), floats(9, count, 70)
    theirs = OPS["lora"].reference(x, y, slots, own)
    out = changed(x, y, slots, own)
    assert error(out, theirs) < 2e-5 and np.abs(theirs - y).max() > 0.1
    assert np.array_equal(numbers(out)[slots < 0], y[slots < 0]), "rows without an adapter keep their bits"


def test_tall_tiles() -> None:
    """Prompts have tiles of more tokens, in which one step's sums are equally near."""
    count = SMALL_TOKENS + 8
    own, slots = pairs([3, 0, 5], 24, 40), np.repeat([2, -1, 0, 1], count // 4).astype(np.int32)
    assert AdapterColumns(4, False).shape(count)[1] == LARGE_TILE
    x, y = floats(8, count, 40), floats(9, count, 24)
    assert error(changed(x, y, slots, own), OPS["lora"].reference(x, y, slots, own)) < 2e-5


def test_bits_do_not_depend_on_company() -> None:
    """Each row alone, and in a step of more tokens than a small tile's, where the runner promises it: bit for bit."""
    own, slots = pairs([17, 4, 0], 40, 50), np.array([1, 0, -1, 0, 1, 1, 2] * 3, np.int32)
    x, y = floats(8, len(slots), 50), floats(9, len(slots), 40)
    together = numbers(changed(x, y, slots, own, invariant=True))
    for row in (0, 1, 2, 20):
        assert np.array_equal(numbers(changed(x[[row]], y[[row]], slots[[row]], own, invariant=True))[0], together[row])
    again = np.resize(slots, SMALL_TOKENS + 14)
    long = changed(np.resize(x, (len(again), 50)), np.resize(y, (len(again), 40)), again, own, invariant=True)
    assert np.array_equal(numbers(long)[: len(slots)], together)


def test_tokens_in_order_of_adapters() -> None:
    """Every token with an adapter once, tiles of one slot each, and never more than are sized for."""
    random = np.random.default_rng(5)
    for _ in range(300):
        count, slots, invariant = int(random.integers(1, 600)), int(random.integers(1, 12)), bool(random.integers(2))
        adapter = random.integers(-1, slots, count).astype(np.int32)
        tokens = np.full(AdapterColumns(slots, invariant).shape(count), 99, np.int32)
        of_tile = np.full(len(tokens), 99, np.int32)
        put_in_order(adapter, tokens, of_tile)
        there = tokens >= 0
        assert sorted(tokens[there]) == (adapter >= 0).nonzero()[0].tolist()
        assert (adapter[tokens[there]] == np.broadcast_to(of_tile[:, None], tokens.shape)[there]).all()
        assert (of_tile[~there.any(axis=1)] == -1).all()
    put_in_order(None, tokens, of_tile)
    assert (tokens == -1).all() and (of_tile == -1).all()


def write_adapter(folder: Path, seed: int, rank: int, modules: tuple[str, ...] = tuple(MODULES)) -> Path:
    """A random adapter of the small model."""
    random, tensors = np.random.default_rng(seed), dict[str, np.ndarray]()
    for layer in range(SIZE.layers):
        for module in modules:
            (outputs, inputs), name = MODULES[module], f"model.layers.{layer}.{module}"
            tensors[f"{name}.lora_A.weight"] = random.standard_normal((rank, inputs)).astype(np.float32)
            tensors[f"{name}.lora_B.weight"] = random.standard_normal((outputs, rank)).astype(np.float32)
    return write_tensors(folder, tensors, r=rank, target_modules=list(modules))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Named]]:
    """A model, and adapters of three ranks, of which one changes some matrices of a merged product."""
    folder = tmp_path_factory.mktemp("lora")
    path, found = write_tiny(folder / "small.gguf", SIZE), []
    facts = read_model_facts(path)
    some, every = ("self_attn.k_proj", "mlp.up_proj", "mlp.down_proj"), tuple(MODULES)
    for number, (rank, modules) in enumerate(((2, every), (5, some), (16, every))):
        own = write_adapter(folder / f"a{number}", number, rank, modules)
        found.append(Named(f"a{number}", digest_of(file_contents(read_adapter(own, facts))), str(own)))
    return path, found


@pytest.fixture
def _on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """fp32 on the GPU, or interpreted."""
    monkeypatch.setattr(worker, "gpu_missing", lambda: None)
    monkeypatch.setattr(backend, "open_device", device)
    small = {"max_num_batched_tokens": 8, "max_num_seqs": 3, "max_model_len": 16, "block_size": 4, "enable_lora": True, "max_lora_rank": 16}
    for name, value in {**small, "runner": "cuda", "dtype": "f32", "kv_dtype": "f32"}.items():
        monkeypatch.setitem(SETTINGS, name, value)


def replayed(run: Any, pool: Any) -> Any:
    """Stands in for a captured graph: what was launched then, over the same addresses."""

    class Held:
        replay = staticmethod(run)

    return Held()


def answers(path: Path, adapters: list[Named], asked: list[int | None], **settings: object) -> dict[tuple[str, int], tuple[int, ...]]:
    """Ids of requests with these adapters."""
    requests = []
    for number, which in enumerate(asked):
        ids = np.random.default_rng(40 + number).integers(4, SIZE.vocab, 3 + number).tolist()
        own = None if which is None else adapters[which]
        requests.append(Admitted(f"r{number}", tuple(ids), max_tokens=4, seed=number, sampling=Sampling(temperature=2.0), adapter=own))
    run = serve(path, [requests], lambda engine: read_adapters(engine, adapters), **settings)
    return {key: ids for key, (ids, _) in run.answers.items()}


@pytest.mark.usefixtures("_on_a_device")
def test_answers_are_the_numpy_runners(model: tuple[Path, list[Named]]) -> None:
    """Three adapters take turns in two slots, beside a row of none; chunks, two steps in flight."""
    path, adapters = model
    asked = [0, None, 1, 2]
    theirs = answers(path, adapters, asked, runner="numpy", dtype="auto", max_loras=2)
    assert answers(path, adapters, asked, max_loras=2, depth=2) == theirs
    plain = answers(path, adapters, [None] * len(asked), runner="numpy", dtype="auto", max_loras=2)
    assert [plain[key] != theirs[key] for key in sorted(theirs)] == [True, False, True, True]


@pytest.mark.night
@pytest.mark.usefixtures("_on_a_device")
def test_graphs_give_what_launches_give(model: tuple[Path, list[Named]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured before any adapter is there, replayed for every mixture."""
    path, adapters = model
    asked = [0, None, 1, 2]
    eager = answers(path, adapters, asked, max_loras=2, depth=2)
    made = Graphs(replayed)
    monkeypatch.setattr(runner, "Graphs", lambda *_: made)
    assert answers(path, adapters, asked, max_loras=2, depth=2) == eager


@pytest.mark.filterwarnings("ignore:All-NaN slice")
@pytest.mark.parametrize(
    ("kind", "dtype", "tolerance"),
    [
        ("Q8_0", "bf16", 3e-2),
        pytest.param("F32", "fp8", 0.2, marks=pytest.mark.night),
        pytest.param("F32", "f32", 1e-5, marks=pytest.mark.night),
    ],
)
def test_quantised_base(model: tuple[Path, list[Named]], tmp_path: Path, kind: str, dtype: str, tolerance: float) -> None:
    """The change is added to the product with quantised matrices."""
    (_, adapters), (facts, weights) = model, open_tiny(tmp_path / "small.gguf", SIZE, kind=kind)
    driver = DeviceDriver(facts, weights, kv="bf16" if dtype == "fp8" else dtype, dtype=dtype, slots=2)
    own = read_pairs(adapters[2], facts, 16)
    reference = NumpyRunner(record(facts)["step"], weights, driver.shape, slots=2)
    assert reference.adapters is not None and driver.cuda.adapters is not None
    for slots in (reference.adapters, driver.cuda.adapters):
        slots.fill(1, slots.pack(own))
    inputs = driver.inputs([(0, [5, 6, 7]), (1, [5, 6, 7])], select=[2, 5])
    inputs = replace(inputs, adapter=np.array([1, 1, 1, -1, -1, -1], np.int32))
    theirs = reference.run(inputs, driver.kv)["logits"].copy()
    assert relative_error(driver.cuda.run(inputs, driver.cache)["logits"], theirs) <= tolerance
    assert relative_error(theirs[:1], theirs[1:]) > 0.3


def test_memory_of_slots() -> None:
    """Sized before anything is loaded, and not by what an adapter has."""
    held = filled_slots(OPS["lora"], {"pairs": pairs([8], 70, 48)}, {"x": floats(1, 2, 48), "y": floats(2, 2, 70)}, torch.bfloat16)
    assert isinstance(held, DeviceAdapterSlots)
    assert held.nbytes == 4 * (-(-(16 + 8 * 48 * 2 + 8 * 70 * 2) // 256) * 256)
    assert held.pack({}).nbytes == 16 < held.pack({"pairs": pairs([4], 70, 48)[0]}).nbytes < held.nbytes / 4
