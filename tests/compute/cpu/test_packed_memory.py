"""Memory of packed matrices: whose it is, and that systems can give it in huge pages."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.cache import NativeKVCache
from ridgeline.compute.cpu.memory import ALIGNMENT, PIECE_BYTES, Pieces, allocate
from ridgeline.compute.cpu.packing import FORMATS, pack, pack_weights
from ridgeline.config.env import ModelStores
from ridgeline.facts.files.formats import FORMATS as STORED
from ridgeline.facts.hardware.machine import anonymous_bytes
from ridgeline.facts.headers.read import describe_model, read_model_facts
from ridgeline.planning.arguments import PlanOptions, deployment_of


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_private_since_shared_memory_has_no_huge_pages() -> None:
    memory = allocate(3 << 20)
    memory[:] = 1
    at = memory.ctypes.data
    ranges = [line.split()[:2] for line in Path("/proc/self/maps").read_text().splitlines()]
    (rights,) = [rights for span, rights in ranges if (lambda b, e: int(b, 16) <= at < int(e, 16))(*span.split("-"))]
    assert rights == "rw-p"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_blocks_that_are_touched_have_memory_and_others_their_content() -> None:
    layers, heads, blocks, width = 2, 2, 256, 16 * 256
    pool = allocate(layers * 2 * blocks * heads * width * 4).view(np.float32).reshape(layers, 2, blocks, heads, 16, 256)
    cache = NativeKVCache(pool, "f32", 256, 256)
    cache.fill(7, content := os.urandom(len(cache.content(7))))
    before = anonymous_bytes(os.getpid())
    cache.touch([*range(1, 7), *range(8, blocks)])
    after = anonymous_bytes(os.getpid())
    assert before is not None and after is not None and after - before > 0.7 * pool.nbytes
    assert cache.content(7) == content


def test_matrices_of_a_piece_are_aligned_and_apart() -> None:
    pieces = Pieces()
    counts = [1, 63, 64, 65, 5 << 20, 30 << 20, 7, PIECE_BYTES, PIECE_BYTES + 1, 100]
    taken = [pieces.take(count) for count in counts]
    assert [len(each) for each in taken] == counts
    assert all(each.ctypes.data % ALIGNMENT == 0 for each in taken)
    assert not any(each.any() for each in taken)
    for number, each in enumerate(taken):
        each[:] = number + 1
    assert [np.unique(each).tolist() for each in taken] == [[number + 1] for number in range(len(taken))]


@pytest.mark.skipif(not ext.isa_levels(), reason=f"native extension not built: {ext.lost()}")
def test_planning_knows_what_each_format_takes() -> None:
    known = [kind for kind in FORMATS if kind in STORED]
    with ThreadPoolExecutor(1) as pool:
        for kind in known:
            codes = np.zeros((32, STORED[kind].row_bytes(512)), np.uint8)
            assert pack(kind, codes, (32, 512), pool).nbytes == STORED[kind].packed_bytes(codes.nbytes), kind
    assert len(known) > 20


@pytest.mark.skipif(not ext.isa_levels(), reason=f"native extension not built: {ext.lost()}")
def test_the_plan_of_a_cpu_has_the_weights_that_loading_measures(demo_file: Path) -> None:
    """A mixture of formats, the second form of the head among them."""
    packed = pack_weights(read_model_facts(demo_file), 2, lambda stage, fraction: None)
    planned = deployment_of(describe_model(str(demo_file), ModelStores(Path())), PlanOptions("epyc-9654"))
    assert planned.memory.weights == sum(weight.nbytes for weight in packed.values())
