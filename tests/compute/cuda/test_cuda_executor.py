"""The engine over a device: greedy ids equal the numpy runner's, whatever the chunk, depth, cache, preemption and company."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from drafting import Hand
from serving import Answer, serve
from small import SIZE, device, served_on_device
from tiny import write_tiny

from ridgeline.compute.cuda import backend
from ridgeline.compute.cuda.device import Device
from ridgeline.compute.opening import ModelSource
from ridgeline.compute.runtime import worker
from ridgeline.config.groups import EngineConfig
from ridgeline.config.runner import resolve_runner
from ridgeline.core.params import Admitted, RowParams, Sampling
from ridgeline.engine.engine import Engine
from ridgeline.errors import ConfigError
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.planning.memory import GRAPH_BYTES, available_kv_bytes, kv_head_bytes

OUTPUTS = 5
"""Of each row whose drafts are verified."""
SMALL = {"max_num_batched_tokens": 8, "max_num_seqs": 3, "max_model_len": 48, "block_size": 4}


@pytest.fixture(scope="module", autouse=True)
def _on_a_device() -> Iterator[None]:
    with served_on_device(**SMALL):
        yield


def request(number: int, prompt: int, outputs: int, **sampling: object) -> Admitted:
    ids = np.random.default_rng(number).integers(4, SIZE.vocab, prompt).tolist()
    asked = Sampling(**{"temperature": 0.0, **sampling})  # type: ignore[arg-type]
    return Admitted(f"r{number}", tuple(ids), max_tokens=outputs, seed=number, sampling=asked)


REQUESTS = [
    request(0, 3, 4, temperature=4.0),  # greedy, a model tied to its embeddings says one thing for ever
    request(1, 9, 4),  # more than a step has: in chunks
    request(2, 2, 4, temperature=4.0, top_p=0.95, top_k=40),
    request(3, 4, 3, logprobs=2),  # sampled on the host
    request(4, 3, 4, repetition_penalty=1.3),
]


@pytest.fixture(scope="module")
def expected(model: Path) -> dict[tuple[str, int], Answer]:
    return serve(model, [REQUESTS], runner="numpy", dtype="auto").answers


def ids_of(answers: dict[tuple[str, int], Answer]) -> dict[tuple[str, int], tuple[int, ...]]:
    return {key: ids for key, (ids, _) in answers.items()}


def test_answers_are_the_numpy_runners(model: Path, expected: dict[tuple[str, int], Answer]) -> None:
    """In company, two steps in flight; those sampled by the host among those sampled by the device."""
    found = serve(model, [REQUESTS], depth=2)
    assert ids_of(found.answers) == ids_of(expected)
    for ours, theirs in zip(found.answers["r3", 0][1], expected["r3", 0][1], strict=True):
        assert abs(ours.logprob - theirs.logprob) < 1e-4 and [i for i, _ in ours.top] == [i for i, _ in theirs.top]


def test_depth_cache_and_preemption_change_nothing(model: Path, expected: dict[tuple[str, int], Answer]) -> None:
    """Blocks for little more than one sequence, and prompts that are there already."""
    block = SIZE.layers * 2 * 4 * SIZE.kv_heads * kv_head_bytes(SIZE.head_dim, "f32")
    again = replace(REQUESTS[1], request_id="again")
    found = serve(model, [REQUESTS[:2], [again]], depth=3, max_model_len=16, kv_cache_memory_bytes=4 * block)
    assert found.preempted > 0
    assert found.answers["r0", 0][0] == expected["r0", 0][0]
    assert found.answers["r1", 0][0] == found.answers["again", 0][0] == expected["r1", 0][0]


def test_pages_that_were_on_the_host(model: Path, expected: dict[tuple[str, int], Answer]) -> None:
    """Three steps in flight; what is pushed out comes back."""
    block = SIZE.layers * 2 * 4 * SIZE.kv_heads * kv_head_bytes(SIZE.head_dim, "f32")
    again = replace(REQUESTS[1], request_id="again")
    settings = {"depth": 3, "max_model_len": 16, "kv_cache_memory_bytes": 4 * block}
    found = serve(model, [REQUESTS[1:2], [request(8, 9, 1)], [again]], **settings, swap_space=20 * block / 2**30)
    assert found.host_tokens > 0
    assert found.answers["r1", 0][0] == found.answers["again", 0][0] == expected["r1", 0][0]


def test_prompts_are_scored(model: Path) -> None:
    asks = replace(request(7, 5, 1), prompt_logprobs=1)
    found, theirs = serve(model, [[asks]]).scores["r7"], serve(model, [[asks]], runner="numpy", dtype="auto").scores["r7"]
    assert len(found) == len(theirs) == 4
    assert all(abs(a.logprob - b.logprob) < 1e-4 and a.top[0][0] == b.top[0][0] for a, b in zip(found, theirs, strict=True))


def test_a_trace_names_the_ops_of_so_many_steps(model: Path, expected: dict[tuple[str, int], Answer], tmp_path: Path) -> None:
    """By torch.profiler, here of the host alone; answers stay, and a file that ended early is there too."""

    def prepare(engine: Engine) -> None:
        assert engine.executor.trace is not None
        engine.executor.trace(str(tmp_path / "none.json"), 2)
        engine.executor.trace(str(tmp_path / "two.json"), 2)

    found = serve(model, [[replace(REQUESTS[0], max_tokens=3)]], prepare)
    assert found.answers["r0", 0][0] == expected["r0", 0][0][:3]
    assert (tmp_path / "none.json").stat().st_mode & 0o777 == 0o600
    names = Counter(event["name"] for event in json.loads((tmp_path / "two.json").read_text())["traceEvents"] if event.get("ph") == "X")
    assert names["sample"] == names["store ids"] == names["resolve ids"] == 2, names
    assert sum(count for name, count in names.items() if name.startswith("attention ->")) == 2 * SIZE.layers


def test_drafts_change_no_id(model: Path) -> None:
    """Rows that the device serves, one that the host samples and one with a history, whose drafts are right up to some place: in steps
    whose rows are padded to a token and all drafts."""
    drafting = {"speculative": "ngram", "num_speculative_tokens": 3, "max_num_batched_tokens": 16}
    config = EngineConfig(str(model), **{**SMALL, "runner": "cuda", "dtype": "f32", "kv_dtype": "f32", **drafting})  # type: ignore[arg-type]
    hand = Hand(worker.build(config, lambda stage, part: None), 6)
    params = [
        RowParams(1, 0, 3, Sampling(temperature=4.0, top_k=40)),
        RowParams(2, 0, 3, Sampling(temperature=4.0, logprobs=1)),
        RowParams(3, 0, 3, Sampling(temperature=4.0, presence_penalty=2.0), min_tokens=3, banned_until=tuple(range(0, SIZE.vocab, 2))),
    ]

    def run(drafts: list[dict[int, list[int]]]) -> tuple[list[list[int]], int]:
        for number, each in enumerate(params):
            hand.admit(each, [10 + number, 20, 30])
        steps = 0
        while min(len(row.outputs) for row in hand.rows) < OUTPUTS:
            hand.step(drafts[steps] if steps < len(drafts) else None)
            steps += 1
        found = [row.outputs[:OUTPUTS] for row in hand.rows]
        hand.clear()
        return found, steps

    plain, steps = run([])
    right, wrong = [ids[1:3] for ids in plain], [[ids[1], (ids[2] + 1) % SIZE.vocab, 4] for ids in plain]
    assert run([{}, dict(enumerate(right))]) == (plain, steps - 2)
    assert run([{}, {0: wrong[0], 2: wrong[2]}])[0] == plain
    assert run([{}, {1: wrong[1]}])[0] == plain
    hand.executor.close()


def test_what_it_says_of_itself(model: Path) -> None:
    settings = {**SMALL, "runner": "cuda", "dtype": "bf16"}
    executor = worker.build(EngineConfig(str(model), **settings), lambda stage, part: None)  # type: ignore[arg-type]
    info = executor.info
    assert info.runner.startswith("cuda, ") and info.max_model_len == 48 and info.rows == 3
    assert info.kv_bytes == info.kv.blocks * SIZE.layers * 2 * 4 * SIZE.kv_heads * kv_head_bytes(SIZE.head_dim, "bf16")
    decided = {decision.name: decision.value for decision in executor.decisions}
    assert decided["dtype"] == decided["kv_dtype"] == "bf16" and decided["step_bytes"] > 0
    executor.close()
    executor.close()
    with pytest.raises(RuntimeError, match="closed"):
        executor.submit(None)  # type: ignore[arg-type]


def test_a_model_that_leaves_no_room_is_refused_with_the_numbers(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "open_device", lambda: replace(device(), memory_bytes=1000))
    with pytest.raises(ConfigError, match="nothing is left for the KV cache") as refused:
        worker.build(EngineConfig(str(model), **{**SMALL, "runner": "cuda", "max_model_len": None}), lambda stage, part: None)  # type: ignore[arg-type]
    assert refused.value.fix == {"--dtype": "fp8"}


def test_memory_that_stays_free() -> None:
    assert available_kv_bytes(100 << 30, 50 << 30, 0) == (50 << 30) - int(0.03 * (100 << 30))
    assert available_kv_bytes(100 << 30, 50 << 30, 40) == available_kv_bytes(100 << 30, 50 << 30, 0) - 40 * GRAPH_BYTES


ABSENT = "there is no NVIDIA device"


@pytest.mark.parametrize(
    ("settings", "no_gpu", "says"),
    [
        ({"runner": "cuda"}, ABSENT, "--runner cuda: there is no NVIDIA device"),
        ({"runner": "gpu"}, None, "one of auto, cuda, native, numpy"),
        ({"runner": "cuda", "dtype": "int3"}, None, "one of auto, bf16, fp16, f32, fp8"),
        ({"runner": "cuda", "kv_dtype": "q4"}, None, "one of auto, bf16, fp16, f32, fp8, int8"),
        ({"runner": "numpy", "dtype": "bf16"}, None, "--dtype is for --runner cuda"),
        ({"runner": "auto", "batch_invariant": True}, ABSENT, "--batch-invariant is for --runner cuda"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, object], no_gpu: str | None, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        resolve_runner(EngineConfig("m", **settings), no_extension=None, no_gpu=no_gpu, cpu_cores=2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "runner", "dtype", "kv_dtype"),
    [
        ({}, "cuda", "bf16", "bf16"),
        ({"dtype": "fp8"}, "cuda", "fp8", "bf16"),
        ({"dtype": "fp16"}, "cuda", "fp16", "fp16"),
        ({"dtype": "f32", "kv_dtype": "fp8"}, "cuda", "f32", "fp8"),
        ({"runner": "numpy"}, "numpy", "auto", "f32"),
    ],
)
def test_where_a_gpu_is(settings: dict[str, object], runner: str, dtype: str, kv_dtype: str) -> None:
    config, _ = resolve_runner(EngineConfig("m", **settings), no_extension=None, no_gpu=None, cpu_cores=2)  # type: ignore[arg-type]
    assert (config.runner, config.dtype, config.kv_dtype) == (runner, dtype, kv_dtype)


def test_positions_are_those_that_fit_behind_weights(tmp_path: Path) -> None:
    """Without --max-model-len; a graph's tables are as wide."""
    facts = read_model_facts(write_tiny(tmp_path / "tiny.gguf", SIZE))
    planned = Device(torch.device("cpu"), "a device", (9, 0), 8 << 30)
    sized = EngineConfig(model="tiny", block_size=4, max_num_batched_tokens=8, kv_dtype="bf16")
    costs = ModelSource(sized, facts, planned.memory_bytes).costs
    few = costs.longest_sequence(3, facts.context)
    assert 0 < few < facts.context
    for asked, memory, expected in ((None, None, facts.context), (7, None, 7), (None, 3 * costs.block_bytes, few)):
        source = ModelSource(replace(sized, max_model_len=asked, kv_cache_memory_bytes=memory), facts, planned.memory_bytes)
        assert backend.planned_positions(source, planned, 1 << 20) == expected
