"""The whole stack over every runner and KV format on a tiny random model: how a request is computed changes no bit of its answer.

Ids and log-probabilities are compared exactly, whatever the chunk, block size, batch, depth, preemption, cache, threads or kind of weights.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import SETTINGS, Answer, serve
from tiny import write_tiny
from tiny_requests import REQUESTS, SIZE

from ridgeline.compute.cpu import ext
from ridgeline.compute.runtime import worker
from ridgeline.config.groups import EngineConfig
from ridgeline.facts.hardware.machine import MachineFacts, machine_facts
from ridgeline.planning.memory import kv_head_bytes

KINDS = [("native", "bf16"), ("native", "int8"), ("numpy", "f32")]


@pytest.fixture(scope="module", autouse=True, params=KINDS, ids=" ".join)
def kind(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """The runner and the format of its KV cache, for all that is served."""
    before = dict(SETTINGS)
    SETTINGS.update(zip(("runner", "kv_dtype"), request.param, strict=True))
    yield request.param
    SETTINGS.clear()
    SETTINGS.update(before)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Matrices as Q8_0, so that fp32 and codes differ in memory."""
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf", SIZE, kind="Q8_0")


@pytest.fixture(scope="module")
def alone(tiny: Path, kind: tuple[str, str]) -> dict[tuple[str, int], Answer]:
    """Every request by itself, whole prompts, without a cache."""
    run = serve(tiny, [[each] for each in REQUESTS], enable_prefix_caching=False)
    assert set(run.answers) == {(each.request_id, 0) for each in REQUESTS}
    for ids, logprobs in run.answers.values():
        assert len(ids) == len(logprobs) == 12
        assert all(len(each.top) == 3 and np.isfinite(each.logprob) for each in logprobs)
    assert len({ids for ids, _ in run.answers.values()}) == len(REQUESTS)
    return run.answers


@pytest.mark.parametrize(("chunk", "block_size"), [(1, 16), (3, 1), (3, 16), (7, 4), (2048, 1)])
def test_chunks_and_blocks(tiny: Path, kind: tuple[str, str], alone: dict[tuple[str, int], Answer], chunk: int, block_size: int) -> None:
    """Other pairs are met at random (`test_native_company.py`) and by the numpy runner itself (`test_gemma3_exact.py`)."""
    some = REQUESTS[:4] if kind[0] == "native" else REQUESTS[:2]
    run = serve(tiny, [[each] for each in some], block_size=block_size, max_num_batched_tokens=chunk, enable_prefix_caching=False)
    assert run.answers == {key: alone[key] for key in run.answers}


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("chunk", [9, pytest.param(2048, marks=pytest.mark.night)])
def test_company_and_depth(tiny: Path, alone: dict[tuple[str, int], Answer], depth: int, chunk: int) -> None:
    run = serve(tiny, [REQUESTS], depth=depth, max_num_batched_tokens=chunk, enable_prefix_caching=False)
    assert run.answers == alone


@pytest.mark.parametrize("depth", [pytest.param(1, marks=pytest.mark.night), 3])
def test_forced_preemption(tiny: Path, kind: tuple[str, str], depth: int) -> None:
    """Short prompts are admitted together and outgrow the pool."""
    long = [replace(each, max_tokens=40) for each in REQUESTS[::2]]
    block = 2 * 4 * SIZE.kv_heads * kv_head_bytes(SIZE.head_dim, kind[1])
    undisturbed = serve(tiny, [[each] for each in long])
    run = serve(tiny, [long], depth=depth, block_size=4, kv_cache_memory_bytes=54 * block, max_model_len=60, max_num_batched_tokens=12)
    assert undisturbed.preempted == 0
    assert run.preempted > 0
    assert run.answers == undisturbed.answers


@pytest.mark.parametrize(("depth", "host_blocks"), [(1, 400), (3, 100)])
def test_pages_that_were_on_the_host(
    tiny: Path, kind: tuple[str, str], alone: dict[tuple[str, int], Answer], depth: int, host_blocks: int
) -> None:
    """Prompts push each other out of a pool for little more than one of them, and come back."""
    block = 2 * 4 * SIZE.kv_heads * kv_head_bytes(SIZE.head_dim, kind[1])
    some = REQUESTS[:4]
    again = [replace(each, request_id=each.request_id + "-again") for each in some]
    tight = {"depth": depth, "block_size": 4, "kv_cache_memory_bytes": 54 * block, "max_model_len": 60, "max_num_batched_tokens": 12}
    run = serve(tiny, [some, again], **tight, swap_space=host_blocks * block / 2**30)
    assert run.hit_tokens > 100 and run.host_tokens > 20
    for (name, choice), answer in run.answers.items():
        assert answer == alone[name.removesuffix("-again"), choice]


def test_warm_cache(tiny: Path, alone: dict[tuple[str, int], Answer]) -> None:
    again = [replace(each, request_id=each.request_id + "-again") for each in REQUESTS]
    run = serve(tiny, [REQUESTS, again], block_size=4)
    assert run.hit_tokens >= 4 * 32
    for (name, choice), answer in run.answers.items():
        assert answer == alone[name.removesuffix("-again"), choice]


def test_choices_share_a_prompt(tiny: Path, alone: dict[tuple[str, int], Answer]) -> None:
    both = replace(REQUESTS[3], choices=2)
    run = serve(tiny, [[both]], block_size=4)
    assert run.answers["r3", 0] == alone["r3", 0]
    assert run.answers["r3", 1] != alone["r3", 0]


def test_weights_as_codes(tiny: Path, alone: dict[tuple[str, int], Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    """For numpy: where fp32 weights do not fit, the file's codes give the same bits, tile by tile."""
    monkeypatch.setattr("ridgeline.compute.load.weights.DENSE_SHARE", 0.0)
    run = serve(tiny, [REQUESTS])
    assert run.answers == alone


def test_threads(tiny: Path, alone: dict[tuple[str, int], Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    machine = machine_facts()
    for cpu_cores in (1, 3):
        facts = MachineFacts(machine.memory_bytes, machine.available_bytes, cpu_cores)
        monkeypatch.setattr(worker, "machine_facts", lambda facts=facts: facts)
        assert serve(tiny, [REQUESTS[:4]]).answers == {key: alone[key] for key in list(alone)[:4]}


def test_what_pages_held_before_does_not_matter(tiny: Path, alone: dict[tuple[str, int], Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks come back with whatever their last holder wrote, NaN included."""

    def poisoned(allocate: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: object) -> Any:
            kv = allocate(*arguments)
            kv.pool.view(np.uint8)[...] = 0xFF  # NaN as fp32, as bf16 and as a scale
            return kv

        return made

    for name in ("allocate_kv", "allocate_native_kv"):
        monkeypatch.setattr(worker, name, poisoned(getattr(worker, name)))
    assert serve(tiny, [REQUESTS], block_size=4, kv_cache_memory_bytes=1 << 20).answers == alone


def test_info_and_start_up_messages(tiny: Path, kind: tuple[str, str]) -> None:
    seen: list[str] = []
    runner, dtype = kind
    config = EngineConfig(str(tiny), max_num_seqs=3, runner=runner, kv_dtype=dtype)
    executor = worker.build(config, lambda stage, fraction: seen.append(stage))
    info = executor.info
    name = f"native, {ext.isa()}" if runner == "native" else "numpy"
    assert (info.vocab, info.rows, info.max_model_len, info.runner) == (SIZE.vocab, 3, SIZE.context, name)
    assert [group.window for group in info.kv.groups] == [0, *[SIZE.window] * 6]
    block_bytes = 2 * 16 * SIZE.kv_heads * kv_head_bytes(SIZE.head_dim, dtype)
    assert info.kv_bytes // block_bytes == info.kv.blocks
    assert {decision.name for decision in executor.decisions} - {"screened_head"} == {
        *("runner", "kv_dtype", "threads", "max_model_len", "kv_cache_memory_bytes", "max_num_seqs", "max_num_batched_tokens")
    }
    assert ("screened_head" in {decision.name for decision in executor.decisions}) == (runner == "native")
    reading = "packing weights" if runner == "native" else "dequantising weights"
    assert list(dict.fromkeys(seen)) == ["checking weights", reading, "warming up"]
    other = worker.build(EngineConfig(str(tiny), block_size=4, runner=runner, kv_dtype=dtype), lambda stage, fraction: None)
    assert other.info.kv.fingerprint != info.kv.fingerprint
