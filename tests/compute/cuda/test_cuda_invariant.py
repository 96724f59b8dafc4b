"""The batch-invariant mode: a sequence's bits depend on itself alone, whatever its company, chunks, depth, cache and preemptions."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from serving import Run, serve
from small import SIZE, device

from ridgeline.compute.cuda import backend
from ridgeline.compute.runtime import worker
from ridgeline.core.params import Admitted, Sampling
from ridgeline.planning.memory import kv_head_bytes

SETTINGS = {
    "runner": "cuda", "dtype": "f32", "kv_dtype": "f32", "batch_invariant": True, "block_size": 4, "max_num_seqs": 2, "max_model_len": 16,
}  # fmt: skip
PAGE = SIZE.layers * 2 * 4 * SIZE.kv_heads * kv_head_bytes(SIZE.head_dim, "f32")


@pytest.fixture(scope="module", autouse=True)
def _on_a_device() -> Iterator[None]:
    """The GPU, or interpreted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "gpu_missing", lambda: None)
        patch.setattr(backend, "open_device", device)
        yield


def request(name: str, number: int, prompt: int, outputs: int) -> Admitted:
    """Log-probabilities tell of bits that ids hide."""
    ids = np.random.default_rng(number).integers(4, SIZE.vocab, prompt).tolist()
    return Admitted(name, tuple(ids), max_tokens=outputs, seed=number, sampling=Sampling(temperature=4.0, logprobs=3))


ASKED = [request("b", 2, 3, 4), request("a", 1, 9, 2)]


def bits(run: Run, name: str) -> tuple[object, ...]:
    """Ids and every log-probability that was told, as they are."""
    return run.answers[name, 0]


@pytest.fixture(scope="module")
def alone(model: Path) -> dict[str, tuple[object, ...]]:
    """Each by itself, its prompt in one step, one step in flight."""
    with np.errstate(all="ignore"):  # as for each test
        run = serve(model, [[each] for each in ASKED], **SETTINGS, depth=1, max_num_batched_tokens=9, enable_prefix_caching=False)
    return {each.request_id: bits(run, each.request_id) for each in ASKED}


def test_company_and_chunks_change_no_bit(model: Path, alone: dict[str, tuple[object, ...]]) -> None:
    run = serve(model, [ASKED], **SETTINGS, depth=2, max_num_batched_tokens=5)
    assert {each.request_id: bits(run, each.request_id) for each in ASKED} == alone


@pytest.mark.night
def test_preemption_and_cache_change_no_bit(model: Path, alone: dict[str, tuple[object, ...]]) -> None:
    again = request("again", 1, 9, 2)
    run = serve(model, [ASKED, [again]], **SETTINGS, depth=3, max_num_batched_tokens=8, kv_cache_memory_bytes=4 * PAGE)
    assert run.preempted and run.hit_tokens
    assert bits(run, "a") == bits(run, "again") == alone["a"] and bits(run, "b") == alone["b"]
