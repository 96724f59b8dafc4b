"""Every part of the GPU's benchmark on a tiny model: each case gives numbers and none gives an error. No time is looked at."""

import json
import subprocess
import sys
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
from tensors import DEVICE

from ridgeline.bench import gpu_part
from ridgeline.compute.cuda.bench import parts
from ridgeline.compute.cuda.bench.clock import replayed, seconds_of
from ridgeline.compute.cuda.device import Device, interpreted
from ridgeline.compute.runtime import gpu as start
from ridgeline.facts.checkpoint import facts_of_config

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
    about, *rows = gpu_part.rows({**common, "part": part, **settings})
    assert about["about"]["device"]
    assert not [row for row in rows if "error" in row]
    json.dumps(rows)
    for row in rows:
        numbers = [value for value in row.values() if isinstance(value, float)]
        assert all(isfinite(number) and number >= 0 for number in numbers), row
    return rows


def test_facts_of_a_config(common: dict[str, Any]) -> None:
    facts = facts_of_config(Path(common["model"]))
    assert facts.architecture == "llama" and len(facts.tensors) == 3 + 9
    assert facts.tensors["blk.0.ffn_down.weight"].shape == (32, 64) and facts.tensors["output.weight"].bytes == 2 * 64 * 32


@pytest.mark.parametrize(("dtype", "invariant"), [("f32", False), ("fp8", True)])
def test_decode(common: dict[str, Any], dtype: str, invariant: bool) -> None:
    types = {"dtype": dtype, "kv_dtype": dtype, "invariant": invariant}
    sizes, row, *_ = rows_of({**common, **types}, "invariant" if invariant else "decode", batches=[1], context=4, steps=2)
    assert sizes["weights_bytes"] > 0 and row["batch"] == 1 and row["tokens_per_second"] > 0 and row["device_seconds"] > 0


def test_prefill(common: dict[str, Any]) -> None:
    *_, row = rows_of(common, "prefill", prompts=[4, 4096], repeats=1)  # longer than the context: left out
    assert row["tokens"] == 4 and 0 < row["best_seconds"] <= row["seconds"]


def test_serving(common: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "open_device", small_device)
    settings = {"requests": 1, "prompt_tokens": 3, "output_tokens": 2, "rows": 1, "budget": 4, "seconds": 600.0, "memory_bytes": 1 << 20}
    began, warm, row = rows_of(common, "serving", **settings)
    assert began["rows"] == 1 and warm["warm_up"]["complete"]
    assert row["complete"] and row["output_tokens"] == 2 and row["rows_at_most"] == 1


def test_kernels(common: dict[str, Any]) -> None:
    rows = rows_of(common, "kernels", tokens=[1], contexts=[[1, 4]], prompts=[4])
    ceilings, kernels = [row for row in rows if "ceiling" in row], [row for row in rows if "op" in row]
    assert [row["ceiling"] for row in ceilings] == ["copy", "bf16", "fp8"]
    assert {"linear bf16 head", "linear Q4_0", "attention fp8 decode", "rotate_write fp8", "sample top_p"} <= {row["op"] for row in kernels}
    assert all(row["share_of_ceiling"] > 0 and row["binds"] in ("memory", "arithmetic") for row in kernels)


def test_one_case_that_fails_is_told(common: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str, *rest: object) -> float:
        if name == "bf16":
            raise RuntimeError("CUDA error: misaligned address")
        return 1.0

    monkeypatch.setattr(parts, "ceiling", broken)
    _, *rows = gpu_part.rows({**common, "part": "ceilings"})
    assert [row.get("error") for row in rows] == [None, "RuntimeError: CUDA error: misaligned address", None]


BLOCKED = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"msgspec", "starlette", "uvicorn"}:
            raise ImportError(name)

sys.meta_path.insert(0, Absent())
import ridgeline.bench.gpu_part, ridgeline.engine.llm, ridgeline.compute.cuda.bench.parts, ridgeline.compute.runtime.gpu
"""


def test_needs_no_package_of_a_server() -> None:
    source = Path(gpu_part.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", BLOCKED], env={"PYTHONPATH": str(source)}, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr


def test_seconds_are_of_one_run() -> None:
    device, calls = interpreted(1 << 20), []
    found = seconds_of(device, [lambda: calls.append(0), lambda: calls.append(1)], timings=3)
    assert 0 < found.best <= found.middle and calls == [0, 1] * 4
    replayed(device, lambda: calls.append(2), 5)
    assert calls.count(2) == 6
