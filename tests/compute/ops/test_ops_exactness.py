"""The self-test of the arithmetic passes here, fails where it should, and threads change nothing."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

from ridgeline.compute.exact import product, self_test, threads
from ridgeline.compute.exact.self_test import HeadShape, check_exactness
from ridgeline.compute.exact.threads import Team, one_blas_thread
from ridgeline.compute.ops.definition import floats
from ridgeline.compute.quant.weight import DenseWeight

HEADS = [HeadShape(4, 1, 256), HeadShape(4, 2, 16, softcap=0.7), HeadShape(20, 1, 64), HeadShape(5, 5, 24)]
SHAPES = [(2048, 640), (640, 2048), (256, 640), (1300, 64), (7, 33)]


@pytest.mark.parametrize("count", [1, 3])
def test_this_machine_is_exact(count: int) -> None:
    found = check_exactness(SHAPES, HEADS, Team(count))
    assert found.exact, found.failures


PUBLISHED = {
    "GPT-2": ([(768, 768), (3072, 768), (768, 3072), (50_257, 768)], HeadShape(12, 12, 64)),
    "SmolLM 135M": ([(576, 576), (192, 576), (1536, 576), (576, 1536), (49_152, 576)], HeadShape(9, 3, 64)),
    "Qwen 2 0.5B": ([(896, 896), (128, 896), (4864, 896), (896, 4864), (151_936, 896)], HeadShape(14, 2, 64)),
    "Qwen 3 0.6B": ([(2048, 1024), (1024, 1024), (1024, 2048), (3072, 1024), (1024, 3072)], HeadShape(16, 8, 128)),
    "Gemma 2 2B": ([(2048, 2304), (1024, 2304), (2304, 2048), (9216, 2304), (2304, 9216)], HeadShape(8, 4, 256, softcap=50.0)),
    "Phi-3 mini": ([(3072, 3072), (8192, 3072), (3072, 8192), (32_064, 3072)], HeadShape(32, 32, 96)),
    "Llama 3 8B": ([(4096, 4096), (1024, 4096), (14_336, 4096), (4096, 14_336), (128_256, 4096)], HeadShape(32, 8, 128)),
    "one KV head": ([], HeadShape(71, 1, 64)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_shapes_of_published_models(name: str) -> None:
    matrices, heads = PUBLISHED[name]
    found = check_exactness(matrices, [heads], Team(2))
    assert found.exact, found.failures


def test_it_finds_products_that_depend_on_position(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_position(weight, tokens, out=None):
        return np.matmul(weight, tokens.swapaxes(-1, -2)) * np.linspace(1, 2, tokens.shape[-2], dtype=np.float32)

    monkeypatch.setattr(self_test, "multiply", by_position)
    found = check_exactness([(300, 64)], [], Team())
    assert not found.exact and "a product with 300 x 64 weights" in found.failures


def test_it_finds_products_that_depend_on_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    def mixing(weight, tokens, out=None):
        return np.matmul(weight, tokens.swapaxes(-1, -2)) + 0 * tokens.sum()

    monkeypatch.setattr(self_test, "multiply", mixing)
    assert not check_exactness([(300, 64)], [], Team()).exact


def test_it_finds_attention_that_depends_on_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    original = self_test.attention

    def by_chunk(team, q, *arrays, **attributes):
        return original(team, q, *arrays, **attributes) * np.float32(1 + len(q) * 1e-6)

    monkeypatch.setattr(self_test, "attention", by_chunk)
    assert check_exactness([], HEADS[:1], Team()).failures == (f"attention with {HEADS[0]}",)


def test_it_says_when_threads_cannot_be_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_openblas", tuple)
    assert check_exactness([], [], Team()).failures == ("the number of BLAS threads cannot be held to one",)


def test_the_number_of_blas_threads_is_restored() -> None:
    ((get, hold), *_) = threads._openblas()
    before = get()
    try:
        hold(2)
        with one_blas_thread() as held:
            assert held and get() == 1
        assert get() == 2
    finally:
        hold(before)


PROGRAM = """
import hashlib, sys
from ridgeline.compute.exact import product
from ridgeline.compute.exact.threads import Team, one_blas_thread
from ridgeline.compute.ops.definition import floats
from ridgeline.compute.quant.weight import DenseWeight
with one_blas_thread():
    out = product.linear(Team(int(sys.argv[1])), floats(1, 40, 640), DenseWeight(floats(2, 3000, 640)))
print(hashlib.sha256(out.tobytes()).hexdigest())
"""


@pytest.mark.parametrize("count", ["1", "2"])
def test_no_number_of_threads_changes_a_bit(count: str) -> None:
    """Neither ours nor those that the environment gives to BLAS."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, count],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": count, "PYTHONPATH": ":".join(sys.path)},
    )
    with one_blas_thread():
        here = product.linear(Team(), floats(1, 40, 640), DenseWeight(floats(2, 3000, 640)))
    assert done.stdout.strip() == hashlib.sha256(here.tobytes()).hexdigest()


def test_work_is_shared_and_errors_come_back() -> None:
    team, seen = Team(3), []
    team.each(seen.append, range(10))
    assert sorted(seen) == list(range(10))

    def fail(item: int) -> None:
        if item == 4:
            raise ValueError("four")

    with pytest.raises(ValueError, match="four"):
        team.each(fail, range(10))
    team.close()
    team.close()
