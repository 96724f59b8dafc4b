"""Every part of the GPU's benchmark on a tiny model: each case gives numbers and none gives an error. No time is looked at."""

import json
import sys
from collections.abc import Mapping
from math import isfinite
from typing import Any

import pytest
from tensors import DEVICE

from ridgeline.bench import gpu_part
from ridgeline.compute.cuda import backend as start
from ridgeline.compute.cuda.bench import parts
from ridgeline.compute.cuda.bench.timing import TimedGraphs, replayed, seconds_of
from ridgeline.compute.cuda.buckets import Bucket
from ridgeline.compute.cuda.device import Device, interpreted
from ridgeline.compute.cuda.graphs import Launch
from ridgeline.compute.runtime import worker

CONFIG = {
    "model_type": "llama", "tie_word_embeddings": False, "num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 64, "max_position_embeddings": 64,
}  # fmt: skip


def small_device() -> Device:
    return parts.device_of("cuda" if DEVICE.type == "cuda" else "cpu")


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    config = tmp_path_factory.mktemp("tiny") / "tiny.json"
    config.write_text(json.dumps(CONFIG))
    return {"model": str(config), "device": small_device().torch.type, "dtype": "f32", "kv_dtype": "f32", "invariant": False}


def rows_of(common: Mapping[str, Any], part: str, **settings: Any) -> list[dict[str, Any]]:
    about, *rows = gpu_part.run_part({**common, "part": part, **settings})
    assert about["about"]["device"]
    assert not [row for row in rows if "error" in row]
    json.dumps(rows)
    for row in rows:
        numbers = [value for value in row.values() if isinstance(value, float)]
        assert all(isfinite(number) and number >= 0 for number in numbers), row
    return rows


def test_decode(common: dict[str, Any]) -> None:
    """In the types and the mode that no other test here has."""
    types = {"dtype": "fp8", "kv_dtype": "fp8", "invariant": True}
    sizes, row, sampled = rows_of({**common, **types}, "invariant", batches=[1], context=4, steps=2)
    assert sizes["weights_bytes"] > 0 and row["batch"] == 1 and row["tokens_per_second"] > 0 and row["device_seconds"] > 0
    assert (sampled["batch"], sampled["top_p"]) == (1, 0.9) and sampled["tokens_per_second"] > 0 and "top_p" not in row
    assert 0 < row["host_seconds"] <= row["host_p99_seconds"] and row["idle_seconds"] <= row["idle_p99_seconds"]


def test_adapters(common: dict[str, Any]) -> None:
    *_, plain, changed = rows_of(common, "adapters", batches=[2], context=4, steps=2, adapters=2, rank=4)
    assert plain["adapters"] == 0 and changed["adapters"] == 2
    assert changed["ratio"] == changed["tokens_per_second"] / plain["tokens_per_second"]


def test_prefill(common: dict[str, Any]) -> None:
    *_, row = rows_of(common, "prefill", prompts=[4, 4096], repeats=1)  # longer than the context: left out
    assert row["tokens"] == 4 and 0 < row["best_seconds"] <= row["seconds"]


def test_serving(common: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "open_device", small_device)
    monkeypatch.setattr("ridgeline.bench.gpu_serving.WARM_STEPS", 1)
    settings = {"prompt_tokens": 2, "output_tokens": 4, "phases": [[1, 0.0]], "budget": 8, "memory_bytes": 1 << 20}
    began, row = rows_of(common, "serving", **settings)
    assert began["rows"] == 1 and row["rows"] == row["rows_served"] == 1
    assert row["output_tokens"] == row["steps"] == 1 and row["device_seconds"] > 0


def test_first_token_through_llm(common: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "open_device", small_device)
    monkeypatch.setattr(worker, "gpu_missing", lambda: None)
    for name in gpu_part.SERVER_PACKAGES:
        monkeypatch.setitem(sys.modules, name, None)  # whoever imports it fails
    small = {"max_num_seqs": 1, "kv_cache_memory_bytes": 1 << 20}
    (row,) = rows_of(common, "ttft", prompt_tokens=3, repeats=1, engine=small)
    assert row["through"] == "LLM, without HTTP" and "msgspec, starlette" in row["absent"] and min(row["seconds"], row["first_seconds"]) > 0


def test_kernels(common: dict[str, Any]) -> None:
    rows = rows_of(common, "kernels", tokens=[1], contexts=[[1, 4]], prompts=[4])
    ceilings, kernels = [row for row in rows if "ceiling" in row], [row for row in rows if "op" in row]
    assert [row["ceiling"] for row in ceilings] == ["copy", "host", "bf16", "fp8"]
    assert {"linear bf16 head", "linear Q4_0", "attention fp8 decode", "rotate_write fp8", "sample top_p"} <= {row["op"] for row in kernels}
    assert all(row["share_of_ceiling"] > 0 and row["bottleneck"] in ("memory", "arithmetic") for row in kernels)


def test_one_case_that_fails_is_told(common: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str, *rest: object) -> float:
        if name == "bf16":
            raise RuntimeError("CUDA error: misaligned address")
        return 1.0

    monkeypatch.setattr(parts, "ceiling", broken)
    _, *rows = gpu_part.run_part({**common, "part": "ceilings"})
    assert [row.get("error") for row in rows] == [None, None, "RuntimeError: CUDA error: misaligned address", None]


def test_seconds_are_of_one_run() -> None:
    device, calls = interpreted(1 << 20), []
    found = seconds_of(device, [lambda: calls.append(0), lambda: calls.append(1)], timings=3)
    assert 0 < found.best <= found.median and calls == [0, 1] * 4
    replayed(device, lambda: calls.append(2), 5)
    assert calls.count(2) == 6


def test_time_between_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of 3 s and 1 s, 2 s apart; a third that nobody looks at."""
    moments = iter([1.0, 4.0, 6.0, 7.0])
    monkeypatch.setattr("ridgeline.compute.cuda.bench.timing.perf_counter", lambda: next(moments))
    watch, ran = TimedGraphs(interpreted(1 << 20)), []
    watch.begin()
    for _ in range(2):
        watch.run(Bucket(1, 1, 1, 1), [Launch(lambda: ran.append(0))], [])
    assert watch.end() == ([3.0, 1.0], [2.0])
    watch.run(Bucket(1, 1, 1, 1), [Launch(lambda: ran.append(0))], [])
    assert len(ran) == 3
