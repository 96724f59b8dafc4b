"""KV blocks in a tier are found by engines whose blocks are larger or smaller than those of the one that has computed them."""

from pathlib import Path
from typing import Any

import pytest
from tiny import write_tiny

from ridgeline.core.params import SamplingParams
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.engine.llm import LLM
from ridgeline.engine.tiers.seal import Seal

PROMPT = [3 + number * 7 % 90 for number in range(200)]


@pytest.fixture(autouse=True)
def time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is so small that computing takes less than asking."""
    monkeypatch.setattr("ridgeline.engine.tiers.patience.SHARE", 1e5)


def answer(path: Path, block_size: int, folder: Path | None, **settings: Any) -> tuple[list[int], int]:
    """(ids, prompt tokens from a cache) of an engine that begins anew."""
    more = settings | ({"kv_cache_dir": str(folder)} if folder else {})
    with LLM(str(path), block_size=block_size, max_model_len=256, max_num_seqs=2, kv_cache_memory_bytes=8 << 20, **more) as llm:
        found = llm.generate([PROMPT], SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True))[0]
        return list(found.outputs[0].token_ids), found.num_cached_tokens or 0


@pytest.mark.parametrize(("runner", "kv_dtype"), [("native", "int8"), ("native", "bf16"), ("numpy", "f32")])
def test_blocks_of_another_size_are_used(tmp_path: Path, runner: str, kv_dtype: str) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    settings = {"runner": runner, "kv_dtype": kv_dtype}
    alone = answer(path, 16, None, **settings)
    assert alone[1] == 0
    for number, size in enumerate((32, 16, 48, 64)):
        folder = tmp_path / "kv"
        ids, cached = answer(path, size, folder, **settings)
        assert ids == alone[0]
        assert cached == ((len(PROMPT) - 1) // size * size if number else 0), size


def test_one_that_is_no_multiple_finds_its_like_alone(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    found = [answer(path, size, tmp_path / "kv", runner="numpy", kv_dtype="f32") for size in (16, 24, 24)]
    assert [cached for _, cached in found] == [0, 0, 192] and len({tuple(ids) for ids, _ in found}) == 1


def test_units_are_parts_of_each_run() -> None:
    shape = KVShape((KVGroup("full", (0,)),), 48, 10, b"f", block_bytes=2 * 3 * 16 * 5)
    seal, data = Seal(bytes(32), shape, runs=2), bytes(range(240)) * 2
    units = seal.cut(data)
    assert len(units) == 3 == seal.units and seal.join((seal,), units) == data
    assert units[1] == data[80:160] + data[240 + 80 : 240 + 160]
    assert Seal(bytes(32), shape).cut(data) == [data]
