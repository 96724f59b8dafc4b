"""KV blocks in tiers are found by engines of another runner or KV type, where both operators say that any will do; nowhere else."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calls import kv_write
from redis_server import RedisProcess
from tiny import write_tiny

from ridgeline.compute.cpu.cache import DTYPES, allocate_native_kv, converted, head_bytes, narrowed, record_width, widened
from ridgeline.compute.exact.cache import allocate_kv
from ridgeline.compute.runtime.queue import MemoryBlocks
from ridgeline.config.secret import private_folder
from ridgeline.core.params import SamplingParams
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.engine.llm import LLM
from ridgeline.engine.tiers.file import FileArchive, FileTier
from ridgeline.facts.model import CachedHeads

PROMPT = [3 + number * 7 % 90 for number in range(200)]
ENGINES = {
    "int8": {"runner": "native", "kv_dtype": "int8", "block_size": 32},
    "bf16": {"runner": "native", "kv_dtype": "bf16", "block_size": 16},
    "f32": {"runner": "native", "kv_dtype": "f32", "block_size": 64},
    "numpy": {"runner": "numpy", "kv_dtype": "f32", "block_size": 48},
}
GAP = 0.05
"""Of a log-probability, behind KV of another type."""


def engine(path: Path, kind: str, **settings: Any) -> LLM:
    return LLM(str(path), max_model_len=256, max_num_seqs=2, kv_cache_memory_bytes=8 << 20, **ENGINES[kind], **settings)


def answer(llm: LLM) -> tuple[list[int], list[float], int]:
    """(ids, their log-probabilities, prompt tokens from a cache)"""
    found = llm.generate([PROMPT], SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True, logprobs=0))[0]
    ids = list(found.outputs[0].token_ids)
    numbers = [each[token].logprob for each, token in zip(found.outputs[0].logprobs or (), ids, strict=True)]
    return ids, numbers, found.num_cached_tokens or 0


def whole(kind: str) -> int:
    return (len(PROMPT) - 1) // ENGINES[kind]["block_size"] * ENGINES[kind]["block_size"]  # type: ignore[operator,no-any-return]


def counts(llm: LLM) -> dict[str, int]:
    return dict(next(iter(llm._engine._engine.store.counts.values())))  # type: ignore[union-attr,attr-defined]


@pytest.fixture(autouse=True)
def time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is so small that computing takes less than asking."""
    monkeypatch.setattr("ridgeline.engine.tiers.patience.SHARE", 1e5)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.mark.parametrize(("writer", "reader"), [("int8", "f32"), ("bf16", "numpy"), ("numpy", "int8"), ("f32", "bf16"), ("numpy", "f32")])
def test_where_any_will_do_a_file_of_another_type_is_read(tmp_path: Path, path: Path, writer: str, reader: str) -> None:
    settings = {"kv_cache_dir": str(tmp_path / "kv"), "kv_cache_numerics": "any"}
    with engine(path, reader) as llm:
        ids, numbers, _ = answer(llm)
    with engine(path, writer, **settings) as llm:
        assert answer(llm)[2] == 0
    for number in range(2):  # what one has converted it does not keep: the next one converts again
        with engine(path, reader, **settings) as llm:
            found, near, cached = answer(llm)
            told = {decision.name: str(decision.reason) for decision in llm.decisions}
            assert cached == whole(reader) and "answers may differ" in told["kv_cache_numerics"], number
            is_same = "f32" in writer + reader and "numpy" in writer + reader
            assert (counts(llm)["converted"] == 0) == is_same and counts(llm)["fetched"] and not counts(llm)["bad"]
        assert found == ids and np.abs(np.array(near) - numbers).max() < GAP


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [("same", "same", "f32"), ("any", "same", "f32"), ("any", "same", "bf16"), ("same", "any", "f32"), ("same", "any", "bf16")],
)
def test_nowhere_else(tmp_path: Path, path: Path, first: str, second: str, kind: str) -> None:
    """What an engine of any has computed stands on blocks of whoever: one that wants its own numerics finds none of it."""
    with engine(path, "bf16", kv_cache_dir=str(tmp_path / "kv"), kv_cache_numerics=first) as llm:
        answer(llm)
    with engine(path, kind, kv_cache_dir=str(tmp_path / "kv"), kv_cache_numerics=second) as llm:
        assert answer(llm)[2] == 0


def reasons(llm: LLM) -> dict[str, str]:
    return {decision.name: f"{decision.value}: {decision.reason}" for decision in llm.decisions}


def test_blocks_that_are_not_used_are_told_by_name(tmp_path: Path, path: Path) -> None:
    """Files of another layout at the start; other engines' when they are asked; blocks that are no multiple of the unit."""
    folder, secret = str(tmp_path / "kv"), {"kv_cache_secret_file": str(tmp_path / "secret")}
    with engine(path, "bf16", kv_cache_dir=folder, kv_cache_listen="127.0.0.1:0", **secret) as first:
        ids, *_ = answer(first)
        assert "kv_cache_other_files" not in reasons(first) and "block_size" not in reasons(first)
        port = reasons(first)["kv_cache_listen"].rpartition(" ")[2]
        with engine(path, "f32", kv_cache_dir=folder, kv_cache_peers=(f"127.0.0.1:{port}",), **secret) as second:
            found, _, cached = answer(second)
            assert found == ids and cached == 0
            told = reasons(second)["kv_cache_other_files"]
            pattern = (
                r"1 not used: .* \(weights (\w{12}), native \w+, KV type f32, units of 16 tokens\): weights \1, .* KV type bf16, units"
            )
            assert re.match(pattern, told), told
            store = second._engine._engine.store  # type: ignore[union-attr,attr-defined]
            assert store.counts["peer"]["refused"] == 1 and not store.counts["peer"]["failures"]
    settings = {**ENGINES["bf16"], "block_size": 24, "kv_cache_dir": folder, "runner": "numpy", "kv_dtype": "f32"}
    with LLM(str(path), max_model_len=256, max_num_seqs=2, kv_cache_memory_bytes=8 << 20, **settings) as odd:
        assert re.match(r"24: engines of another --block-size do not find .* multiple of 16", reasons(odd)["block_size"])
        assert reasons(odd)["kv_cache_other_files"].startswith("2 not used: ")
        assert re.search(r"\d+: tiers are asked for so many and more: it takes [\d.e-]+ ms", reasons(odd)["kv_fetch_tokens"])


def test_a_server_between_two_types(path: Path, redis_server: RedisProcess, tmp_path: Path) -> None:
    settings = {
        "kv_cache_redis": redis_server.url, "kv_cache_redis_password_file": redis_server.password_file,
        "kv_cache_secret_file": str(tmp_path / "secret"), "kv_cache_numerics": "any",
    }  # fmt: skip
    with engine(path, "bf16", **settings) as llm:
        ids, *_ = answer(llm)
    with engine(path, "int8", **settings) as llm:
        found, _, cached = answer(llm)
        assert found == ids and cached == whole("int8") and counts(llm)["converted"]


def test_another_engine_of_another_type(path: Path, tmp_path: Path) -> None:
    settings = {"kv_cache_secret_file": str(tmp_path / "secret"), "kv_cache_numerics": "any"}
    with engine(path, "numpy", kv_cache_listen="127.0.0.1:0", **settings) as first:
        ids, *_ = answer(first)
        port = next(str(each.reason) for each in first.decisions if each.name == "kv_cache_listen").rpartition(" ")[2]
        with engine(path, "bf16", kv_cache_peers=(f"127.0.0.1:{port}",), **settings) as second:
            found, _, cached = answer(second)
            assert found == ids and cached == whole("bf16") and counts(second)["converted"]


def test_a_poisoned_file_of_another_type_is_a_miss(tmp_path: Path, path: Path) -> None:
    settings: dict[str, Any] = {"kv_cache_dir": str(tmp_path / "kv"), "kv_cache_numerics": "any", "kv_cache_dir_bytes": 4 << 20}
    with engine(path, "bf16", **settings) as llm:
        ids, *_ = answer(llm)
    (file,) = (tmp_path / "kv").glob("*.kv")
    poisoned = bytearray(file.read_bytes())
    for at in range(len(poisoned) // 8, len(poisoned), 1_000):  # behind the table
        poisoned[at] ^= 1
    file.write_bytes(poisoned)
    with engine(path, "int8", **settings) as llm:
        found, _, cached = answer(llm)
        assert found == ids and cached == 0 and counts(llm)["bad"] and not counts(llm)["converted"]
    assert file.read_bytes() == poisoned, "another engine's file is read alone"


def test_a_file_that_another_engine_goes_on_writing(tmp_path: Path) -> None:
    """What has been in a slot since the start is found; what is there since then is a miss."""
    names = [bytes([number]) * 32 for number in range(1, 5)]
    with private_folder(str(tmp_path / "kv")) as folder:
        writer = FileTier(folder, "other", 200, 4_096 + 2 * 276)
        for name in names[:2]:
            writer.put(name, name * 6 + bytes(8))
        reader = FileArchive(folder, ["other"], 200, 4_096 + 2 * 276)
        assert reader.has(names) == [True, True, False, False] and not reader.takes
        writer.put(names[2], bytes(200))
        (gone,) = {*names[:2]} - {name for name in names[:2] if writer.might_have(name)}
        values = dict(zip(names, reader.get(names, 1.0, 200), strict=True))
        assert values.pop(gone) is None and sorted(map(bool, values.values())) == [False, False, True]
        with pytest.raises(OSError, match="No such file"):
            FileArchive(folder, ["nobody's"], 200, 4_096 + 2 * 276)
        assert not FileArchive(folder, ["other"], 300, 1 << 20).has(names[:1])[0], "another size"
        assert (tmp_path / "kv" / "other.kv").exists() and not (tmp_path / "kv" / "nobody's.kv").exists()
        writer.close()
        reader.close()


def numbers(*shape: int) -> Any:
    found = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
    found[0, 0], found[1, 0, 3], found[1, 1, 2], found[2, 0] = 0, np.inf, np.nan, 1e-38
    found[3, 1] = np.array([1.00390625, 1.01171875, -3e38, 127.5] * (shape[-1] // 4), np.float32)
    return found


@pytest.mark.parametrize("type", list(DTYPES))
def test_converted_numbers_have_the_bits_that_a_step_writes(type: str) -> None:
    given = numbers(16, 2, 32)
    keys = np.zeros((1, 2, 16, record_width(type, 32)), DTYPES[type])
    kv_write(given.reshape(16, -1), given.reshape(16, -1), keys, keys.copy(), np.arange(16))
    written = keys[0].tobytes()
    assert converted(given.swapaxes(0, 1).tobytes(), 32, "f32", type) == written
    back = np.frombuffer(converted(written, 32, type, "f32"), np.float32).reshape(2, 16, 32)
    np.testing.assert_array_equal(back, widened(keys[0]))
    assert narrowed(back, type).tobytes() == written or type == "int8"


@pytest.mark.parametrize("type", list(DTYPES))
def test_a_content_has_its_heads_one_after_the_other(type: str) -> None:
    """So that ranks with a share of the heads each take theirs of one, and one with all of them is put together from theirs."""
    shape = KVShape((KVGroup("full", (0, 1)),), 32, 3, b"")
    all_heads = allocate_native_kv(shape, CachedHeads(6, 16), type)
    all_heads.pool[:] = np.random.default_rng(3).integers(0, 100, all_heads.pool.shape)
    content = all_heads.content(2)
    heads = np.frombuffer(content, np.uint8).reshape(2, 2, 6, -1)  # layers, K and V, heads
    for ranks in (2, 3, 6):
        parts = []
        for rank in range(ranks):
            own = slice(rank * 6 // ranks, (rank + 1) * 6 // ranks)
            kv = allocate_native_kv(shape, CachedHeads(6 // ranks, 16), type)
            kv.fill(1, heads[:, :, own].tobytes())
            np.testing.assert_array_equal(kv.pool[:, :, 1], all_heads.pool[:, :, 2, own])
            assert kv.runs == all_heads.runs // ranks
            parts.append(np.frombuffer(kv.content(1), np.uint8).reshape(2, 2, 6 // ranks, -1))
        assert np.concatenate(parts, axis=2).tobytes() == content
    assert MemoryBlocks(all_heads).types[type] == head_bytes(type, 16) and next(iter(MemoryBlocks(all_heads).types)) == type


def test_runners_have_one_order_of_heads() -> None:
    shape, cached = KVShape((KVGroup("full", (0, 1)),), 32, 3, b""), CachedHeads(3, 8)
    exact, native = allocate_kv(shape, cached), allocate_native_kv(shape, cached, "f32")
    exact.pool[:] = np.random.default_rng(5).standard_normal(exact.pool.shape)
    native.fill(1, exact.content(2))
    slots = np.arange(64, 96)
    for layer in range(2):
        for ours, theirs in zip(native.read(layer, slots - 32), exact.layer(layer), strict=True):
            np.testing.assert_array_equal(ours, theirs[slots])
    exact.fill(3, native.content(1))
    np.testing.assert_array_equal(exact.pool[:, :, 96:128], exact.pool[:, :, 64:96])
    assert exact.runs == native.runs
