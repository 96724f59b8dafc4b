"""The KV pool of a device: its bytes, what is written to it and where, copies of its blocks to the host and back."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paged import empty_cache
from small import device
from tensors import DEVICE, error, numbers, on_device, poisoned, within

from ridgeline.compute.cuda import cache as cache_module
from ridgeline.compute.cuda.cache import DTYPES, HostTier, allocate_device_kv, block_bytes, independent_runs
from ridgeline.compute.cuda.triton.rope import kv_write, rotate_write
from ridgeline.compute.ops.definition import floats
from ridgeline.compute.ops.table import OPS
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.facts.model import CachedHeads
from ridgeline.planning.memory import kv_head_bytes

ROUNDING = {"f32": 1e-6, "bf16": 2.0**-8, "fp16": 2.0**-11, "fp8": 2.0**-4, "int8": 0.6 / 127}
"""In units of the largest number: what a cache of each type loses."""

SLOTS = [21, 16, 17, 47, 33]


@pytest.mark.parametrize("kind", ["f32", "bf16", "int8"])
def test_bytes_are_those_of_the_planner(kind: str) -> None:
    assert block_bytes(kind, 16, 3, 80) == 16 * 3 * kv_head_bytes(80, kind)


def test_layers_differ_in_no_block() -> None:
    groups = (KVGroup("full", (0, 1), 0), KVGroup("full", (2,), 0))
    with pytest.raises(ValueError, match="equally many layers"):
        allocate_device_kv(KVShape(groups, 16, 4, b""), CachedHeads(2, 8), "bf16", DEVICE)


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("width", [16, 20])
def test_written_where_slots_say(kind: str, width: int) -> None:
    """Each number in its place, rounded to the nearest; every other byte of the pool as before."""
    cache = empty_cache(kind, 3, 16, 2, width, layers=2)
    before = cache.pool.clone()
    k, v, slots = floats(1, 5, 2 * width), floats(2, 5, 2 * width), on_device(np.array(SLOTS, np.int64))
    kv_write(within(on_device(k)), within(on_device(v)), slots, cache.layer(1))()
    for found, written in zip(cache.read(1, slots), (k, v), strict=True):
        assert error(found, written.reshape(5, 2, width)) <= ROUNDING[kind]
        if kind in ("bf16", "fp16", "fp8"):
            assert torch.equal(found, on_device(written).to(DTYPES[kind]).float().view(5, 2, width))
    changed = (cache.pool != before).sum().item()
    assert torch.equal(cache.pool[0], before[0]) and changed <= 2 * 5 * block_bytes(kind, 1, 2, width)
    others = torch.tensor([slot for slot in range(64) if slot not in SLOTS], device=DEVICE)
    assert all(torch.isnan(found).all() for found in cache.read(1, others))


def test_int8_of_strange_heads() -> None:
    """A head of zeros is zeros; one with a number that is not finite is NaN throughout, and its neighbour is not."""
    k = floats(1, 4, 32)
    k[0, :16], k[1, 3], k[2, 20], k[3, :16] = 0, np.inf, np.nan, 1e-38
    cache, slots = empty_cache("int8", 3, 16, 2, 16), on_device(np.array(SLOTS[:4], np.int64))
    kv_write(on_device(k), on_device(k), slots, cache.layer(0))()
    found = cache.read(0, slots)[0]
    bad = torch.tensor([[False, False], [True, False], [False, True], [False, False]], device=DEVICE)
    assert torch.equal(found.isnan().all(dim=2), bad) and torch.equal(found.isnan().any(dim=2), bad)
    assert not found[0, 0].any() and not found[3, 0].any()


@pytest.mark.parametrize("kind", ["bf16", "int8"])
@pytest.mark.parametrize(("norms", "turned"), [(True, 32), (False, 32), (True, 16)])
def test_rotate_write(kind: str, norms: bool, turned: int) -> None:
    """What norms, rotation and write give one after the other, over strided views of one buffer."""
    wide, turn = floats(1, 5, (5 + 2 + 2) * 32), floats(2, 5, turned)
    weights = [on_device(floats(seed, 32)) for seed in (3, 4)] if norms else [None, None]
    buffer, cache, slots = on_device(wide), empty_cache(kind, 3, 16, 2, 32), on_device(np.array(SLOTS, np.int64))
    parts, out = buffer.split([160, 64, 64], dim=1), within(poisoned(5, 160))
    rotate_write(*parts, on_device(turn), slots, cache.layer(0), 32, out, *weights, 1e-6)()
    expected = []
    for part, weight in zip((wide[:, :160], wide[:, 160:224]), weights, strict=True):
        normed = part if weight is None else OPS["rms_norm"].reference(part, numbers(weight), eps=1e-6)
        expected.append(OPS["rotate"].reference(normed, turn, head_dim=32))
    keys, values = cache.read(0, slots)
    assert error(out, expected[0]) <= OPS["rotate_write"].tolerance["cuda f32"]
    assert error(keys, expected[1].reshape(5, 2, 32)) <= ROUNDING[kind]
    assert error(values, wide[:, 224:].reshape(5, 2, 32)) <= ROUNDING[kind]
    assert torch.equal(buffer, on_device(wide))


def test_no_tokens_write_nothing() -> None:
    cache = empty_cache("bf16", 1, 16, 2, 16)
    before, nothing = cache.pool.clone(), poisoned(0, 32)
    slots = torch.empty(0, dtype=torch.int64, device=DEVICE)
    kv_write(nothing, nothing, slots, cache.layer(0))()
    rotate_write(nothing, nothing, nothing, poisoned(0, 16), slots, cache.layer(0), 16, nothing)()
    assert torch.equal(cache.pool, before)


@pytest.mark.parametrize(("kind", "width"), [("bf16", 16), ("int8", 20), ("fp8", 5)])
@pytest.mark.parametrize("most", [2, 4096])
def test_copies_to_the_host_and_back(kind: str, width: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order: blocks that are taken at once for something else, and blocks of the host that are given back and taken again."""
    monkeypatch.setattr(cache_module, "MAX_PAIRS", most)
    cache = empty_cache(kind, 5, 4, 1, width, layers=2)
    cache.pool.copy_(torch.randint(0, 256, cache.pool.shape, dtype=torch.uint8, device=DEVICE))
    host = HostTier(cache, 4, device(), depth=1)
    nines = torch.full_like(cache.pool[:, :, 0], 9)
    expected = {6: nines, 9: nines} | {block: cache.pool[:, :, block].clone() for block in range(6)}
    host.compile_kernels()
    assert torch.equal(host._host[:, :, 0], cache.pool[:, :, 0].cpu())
    host._host.fill_(9)
    for copies in (((1, 6), (2, 7)), ((3, 8), (6, 3), (4, 6), (7, 1), (8, 4)), ()):
        host.copy(copies)
        for source, target in copies:
            expected[target] = expected[source]
    for block, content in expected.items():
        found = cache.pool[:, :, block] if block < 6 else host._host[:, :, block - 6]
        assert torch.equal(found.cpu(), content.cpu()), f"block {block}"
    host.close()
    host.close()
    assert host.nbytes == 0


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6))))
def test_what_is_copied_at_once_has_no_order(copies: list[tuple[int, int]]) -> None:
    runs = list(independent_runs(copies))
    assert [pair for run in runs for pair in copies[run]] == copies and all(copies[run] for run in runs)
    for run in runs:
        written = [target for _, target in copies[run]]
        assert len(set(written)) == len(written)
        assert all(source == target or source not in written for source, target in copies[run])
