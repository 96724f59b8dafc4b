"""KV blocks in tiers are found by executors that have another share of the KV heads than the one that has computed them."""

import random
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from ranks import Computed, Rank, ranks_of
from redis_server import PASSWORD, RedisProcess
from tiers import SECRET, MemoryTier, poison
from tiny import Tiny, write_tiny

from ridgeline.config.groups import EngineConfig
from ridgeline.config.secret import read_tier_secret
from ridgeline.core.params import SamplingParams
from ridgeline.core.plan import HeadShare, KVGroup, KVShape
from ridgeline.engine.llm import LLM
from ridgeline.engine.tiers.redis import PREFIX
from ridgeline.engine.tiers.seal import Seal
from ridgeline.engine.tiers.units import layouts_of

PROMPT = [3 + number * 7 % 90 for number in range(200)]
HEADS = 8
RUNNERS = {
    "numpy": {"runner": "numpy", "kv_dtype": "f32"},
    **{type: {"runner": "native", "kv_dtype": type} for type in ("f32", "bf16", "int8")},
}


def engine(path: Path, runner: str, **settings: Any) -> LLM:
    return LLM(str(path), max_model_len=256, max_num_seqs=2, kv_cache_memory_bytes=16 << 20, **RUNNERS[runner], **settings)


def answer(llm: LLM) -> tuple[list[int], int]:
    """(ids, prompt tokens from a cache)"""
    found = llm.generate([PROMPT], SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True))[0]
    return list(found.outputs[0].token_ids), found.num_cached_tokens or 0


@pytest.fixture(autouse=True)
def time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is so small that computing takes less than asking."""
    monkeypatch.setattr("ridgeline.engine.tiers.patience.SHARE", 1e5)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf", Tiny(heads=HEADS, kv_heads=HEADS))


@pytest.fixture(scope="module")
def truths(path: Path) -> dict[str, Computed]:
    """What engines with all heads have computed; "any …" of those that take any numerics."""
    found = {}
    for name in (*RUNNERS, "any bf16", "any int8", "any numpy"):
        numerics, _, runner = name.rpartition(" ")
        with engine(path, runner, kv_cache_numerics=numerics or "same") as llm:
            answer(llm)
            found[name] = Computed(llm, PROMPT)
    return found


def settings_of(tier: str, folder: Path, server: RedisProcess) -> dict[str, Any]:
    """Settings of a tier that nobody else uses. Of peers those that are asked are added."""
    secret = {"kv_cache_secret_file": str(folder / "secret")}
    return (
        secret
        | {
            "file": {"kv_cache_dir": str(folder / "kv"), "kv_cache_dir_bytes": 16 << 20},
            "redis": {"kv_cache_redis": server.url, "kv_cache_redis_password_file": server.password_file},
            "peer": {"kv_cache_listen": "127.0.0.1:0"},
        }[tier]
    )  # type: ignore[return-value]


def keep(stack: ExitStack, truth: Computed, shares: Sequence[HeadShare], size: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Executors with these shares keep what they have; returns the settings of who reads it."""
    ports = []
    for share in shares:
        rank = Rank(truth, share, size, **settings)
        stack.callback(rank.close)
        rank.keep()
        if "kv_cache_listen" in settings:
            ports += [str(each.reason).rpartition(" ")[2] for each in rank.decisions if each.name == "kv_cache_listen"]
        else:
            rank.close()
    return settings | {"kv_cache_listen": None, "kv_cache_peers": tuple(f"127.0.0.1:{port}" for port in ports)} if ports else settings


def check(truth: Computed, shares: Sequence[HeadShare], size: int, settings: dict[str, Any], *, converts: bool) -> None:
    """Executors with these shares find the bytes that a whole cache has of their heads."""
    for share in shares:
        rank = Rank(truth, share, size, **settings)
        found, wanted = rank.fetch(), rank.wanted()
        counts = rank.counts
        rank.close()
        assert found == wanted and len(wanted) > len(PROMPT) // size, share
        assert counts["converted"] == (len(wanted) if converts else 0) and counts["fetched"] == len(wanted)
        assert not counts["bad"] and not counts["failures"] and not counts["refused"]


@pytest.mark.parametrize("tier", ["file", "redis", "peer"])
@pytest.mark.parametrize(
    ("runner", "writers", "readers", "sizes"),
    [
        ("numpy", 1, 2, (16, 16)), ("numpy", 2, 1, (16, 32)), ("numpy", 4, 2, (48, 16)), ("f32", 2, 4, (32, 16)), ("bf16", 1, 4, (16, 48)),
        ("bf16", 4, 1, (16, 16)), ("bf16", 2, 2, (16, 32)), ("int8", 2, 1, (32, 48)), ("int8", 1, 8, (64, 16)), ("int8", 8, 2, (16, 16)),
        ("int8", 2, 8, (16, 32)), ("f32", 1, 1, (16, 32)),
    ],
)  # fmt: skip
def test_ranks_find_what_others_have(
    tier: str, runner: str, writers: int, readers: int, sizes: tuple[int, int], truths: dict[str, Computed],
    redis_server: RedisProcess, tmp_path: Path,
) -> None:  # fmt: skip
    with ExitStack() as stack:
        settings = keep(stack, truths[runner], ranks_of(writers, HEADS), sizes[0], settings_of(tier, tmp_path, redis_server))
        check(truths[runner], ranks_of(readers, HEADS), sizes[1], settings, converts=writers != readers)


@pytest.mark.parametrize("tier", ["file", "redis"])
def test_shares_of_no_equal_size_are_cut_out_of_others(
    tier: str, truths: dict[str, Computed], redis_server: RedisProcess, tmp_path: Path
) -> None:  # fmt: skip
    """Three heads of eight begin in one half and end in the other; what three executors have so is found by their likes alone."""
    truth, thirds = truths["bf16"], [HeadShare(0, 3, HEADS), HeadShare(3, 3, HEADS), HeadShare(6, 2, HEADS)]
    settings = settings_of(tier, tmp_path, redis_server)
    with ExitStack() as stack:
        keep(stack, truth, thirds, 16, settings)
        check(truth, thirds, 32, settings, converts=False)
        whole = Rank(truth, HeadShare(0, HEADS, HEADS), 16, **settings)
        assert not whole.fetch() and not whole.counts["bad"]
        whole.close()
        if tier == "file":
            told = next(str(each.reason) for each in whole.decisions if each.name == "kv_cache_other_files")
            assert all(f", KV heads {heads} of 8" in told for heads in ("0 to 2", "3 to 5", "6 to 7")) and "units of 16 tokens):" in told
    for number in (1, 2, 4):
        folder = tmp_path / str(number)
        folder.mkdir()
        with ExitStack() as stack:
            settings = settings_of(tier, folder, redis_server)
            keep(stack, truth, ranks_of(number, HEADS), 16, settings)
            check(truth, thirds[:2], 32, settings, converts=True)


@pytest.mark.parametrize("tier", ["file", "redis", "peer"])
@pytest.mark.parametrize(("writer", "reader"), [("bf16", "int8"), ("numpy", "bf16"), ("int8", "numpy")])
def test_types_and_heads_are_converted_together(
    tier: str, writer: str, reader: str, truths: dict[str, Computed], redis_server: RedisProcess, tmp_path: Path
) -> None:  # fmt: skip
    here, there = truths[f"any {reader}"], truths[f"any {writer}"]
    settings = settings_of(tier, tmp_path, redis_server) | {"kv_cache_numerics": "any"}
    with ExitStack() as stack:
        settings = keep(stack, there, ranks_of(4, HEADS), 32, settings)
        for share in (*ranks_of(1, HEADS), *ranks_of(2, HEADS), HeadShare(5, 1, HEADS)):
            rank = Rank(here, share, 16, **settings)
            type = RUNNERS[writer]["kv_dtype"]
            wanted = {key: here.blocks.converted(there.content(share, 16, *key), type) for key in rank.wanted()}
            found, counts = rank.fetch(), rank.counts
            rank.close()
            assert found == wanted and counts["converted"] == len(wanted) and not counts["bad"]


def test_a_conversation_that_goes_on_with_other_ranks(truths: dict[str, Computed], redis_server: RedisProcess, tmp_path: Path) -> None:
    """Its first blocks are whole, the next ones are those of two ranks, the last ones of four."""
    truth, settings, size = truths["int8"], settings_of("redis", tmp_path, redis_server), 16
    with ExitStack() as stack:
        for number, (first, end) in zip((1, 2, 4), ((0, 4), (4, 9), (9, 12)), strict=True):
            for share in ranks_of(number, HEADS):
                rank = Rank(truth, share, size, **settings)
                rank.keep(range(first, end))
                rank.close()
        for share in (*ranks_of(1, HEADS), *ranks_of(2, HEADS), *ranks_of(4, HEADS)):
            rank = Rank(truth, share, size, **settings)
            stack.callback(rank.close)
            found = rank.fetch()
            full = {(block, group) for block, group in found if not rank.shape.groups[group].window}
            assert {block for block, _ in full} == set(range(12)) and all(found[key] == rank.wanted()[key] for key in full)


def test_an_engine_uses_what_ranks_have(path: Path, truths: dict[str, Computed], tmp_path: Path) -> None:
    settings = {"kv_cache_dir": str(tmp_path / "kv"), "kv_cache_dir_bytes": 16 << 20}
    with ExitStack() as stack:
        keep(stack, truths["bf16"], ranks_of(2, HEADS), 16, settings)
    with engine(path, "bf16") as llm:
        ids, _ = answer(llm)
    with engine(path, "bf16", block_size=32, **settings) as llm:
        assert "kv_cache_other_files" not in {each.name for each in llm.decisions}
        assert answer(llm) == (ids, (len(PROMPT) - 1) // 32 * 32)
        (counts,) = llm._engine._engine.store.counts.values()  # type: ignore[union-attr,attr-defined]
        assert counts["converted"] == counts["fetched"] > 0 and not counts["bad"]


def test_what_is_another_ranks_is_a_bad_value(truths: dict[str, Computed], redis_server: RedisProcess, tmp_path: Path) -> None:
    """Values of the same content under each other's names: as long as they should be, or those of all heads."""
    client, truth = redis.Redis.from_url(redis_server.url, password=PASSWORD), truths["bf16"]
    settings = settings_of("redis", tmp_path, redis_server)
    for share in (*ranks_of(1, HEADS), *ranks_of(2, HEADS)):
        rank = Rank(truth, share, 16, **settings)
        rank.keep()
        rank.close()
    secret = read_tier_secret(EngineConfig(model="m", **settings))
    assert secret is not None
    wholes, halves, *_ = Rank(truth, HeadShare(0, HEADS, HEADS), 16, **settings).values(secret)
    values = {name: client.get(PREFIX + name) for names in (*wholes, *halves) for name in names}
    assert {len(values[name]) for name in sum(halves, ())} < {*map(len, values.values())} and all(values.values())
    for first, second in ((1, 0), (0, 0), (1, 1), (0, 2), (2, 1), (2, 2), (0, 1)):  # 2: the value of all heads
        placed = {}
        for (whole,), half in zip(wholes, halves, strict=True):
            placed |= {PREFIX + name: values[(*half, whole)[which]] for name, which in zip(half, (first, second), strict=True)}
        for share, is_right in zip(
            (*ranks_of(1, HEADS), *ranks_of(2, HEADS)), ((first, second) == (0, 1), first == 0, second == 1), strict=True
        ):
            client.unlink(*(PREFIX + name for (name,) in wholes))
            client.mset(placed)
            rank = Rank(truth, share, 16, **settings)
            found, counts = rank.fetch(), rank.counts
            rank.close()
            assert found == (rank.wanted() if is_right else {}) and bool(counts["bad"]) != is_right, (first, second, share)


@pytest.mark.parametrize("number", [1, 4])
def test_poisoned_shares_are_misses(number: int, truths: dict[str, Computed], redis_server: RedisProcess, tmp_path: Path) -> None:
    client, truth, rng = redis.Redis.from_url(redis_server.url, password=PASSWORD), truths["int8"], random.Random(number)
    settings, told = settings_of("redis", tmp_path, redis_server), 0
    client.flushall()
    with ExitStack() as stack:
        keep(stack, truth, ranks_of(number, HEADS), 16, settings)
    values = {key: client.get(key) for key in client.keys(PREFIX + b"*")}
    for _ in range(6):
        poisoned = dict(values)
        poison(rng, poisoned)
        client.mset(poisoned)
        rank = Rank(truth, HeadShare(2, 4, HEADS), 32, **settings)
        assert not rank.fetch() and not rank.counts["converted"]
        told += rank.counts["bad"] > 0
        rank.close()
    assert told == 6


class Listening(MemoryTier):
    """A tier that remembers how many names it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def has(self, names: Sequence[bytes]) -> list[bool]:
        self.asked.append(len(names))
        return super().has(names)


def test_what_nobody_has_costs_one_more_question(truths: dict[str, Computed], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of one name for each layout, where the engine's own are not enough; none where they are."""
    truth, tier, settings = truths["f32"], Listening(), {"kv_cache_redis": "unix:///none", "kv_cache_secret_file": str(tmp_path / "secret")}
    monkeypatch.setattr("ridgeline.engine.tiers.opening.RedisTier", lambda *_: tier)
    for is_there in (False, True):
        rank = Rank(truth, HeadShare(0, HEADS, HEADS), 16, **settings)
        rank.fetch()
        everything = 12 * len(rank.shape.groups)
        assert tier.asked == ([everything] if is_there else [everything, 3])
        rank.keep()
        rank.close()
        tier.asked = []


def test_shares_that_are_looked_for() -> None:
    """All heads, halves, quarters …, as far as their number can be halved; a part of each that the executor has."""

    def found(first: int, count: int, total: int, runs: int = 48) -> list[list[tuple[int, int]]]:
        shape = KVShape((KVGroup("full", (0,)),), 16, 9, b"f", block_bytes=16 * count, heads=HeadShare(first, count, total))
        return [[(seal.heads.first, seal.heads.count) for seal in layout] for layout in layouts_of(SECRET, shape, runs)]

    assert found(0, 1, 1) == [[(0, 1)]]
    assert found(0, 4, 4) == [[(0, 4)], [(0, 2), (2, 2)], [(0, 1), (1, 1), (2, 1), (3, 1)]]
    assert found(4, 4, 8) == [[(4, 4)], [(0, 8)], [(4, 2), (6, 2)], [(4, 1), (5, 1), (6, 1), (7, 1)]]
    assert found(2, 2, 6) == [[(2, 2)], [(0, 6)], [(0, 3), (3, 3)]]
    assert found(1, 1, 5) == [[(1, 1)], [(0, 5)]] and found(1, 1, 2, runs=0) == [[(1, 1)]]


@given(st.data())
def test_any_shares_are_cut_and_joined(data: st.DataObject) -> None:
    """Against slices of an array [parts, heads, tokens, bytes]."""
    planes, total, units, width = (data.draw(st.integers(1, most)) for most in (3, 6, 3, 5))
    first = data.draw(st.integers(0, total - 1))
    share = HeadShare(first, data.draw(st.integers(1, total - first)), total)
    cuts = {0, total, *data.draw(st.sets(st.integers(1, total)))}
    parts = [HeadShare(low, high - low, total) for low, high in pairwise(sorted(cuts)) if high > first and low < first + share.count]
    truth = np.random.default_rng(total).integers(0, 256, (planes, total, 16 * units, width), np.uint8)

    def seal(heads: HeadShare, tokens: int) -> tuple[Seal, bytes]:
        own = np.ascontiguousarray(truth[:, heads.first : heads.first + heads.count]).tobytes()
        size = planes * heads.count * tokens * width
        shape = KVShape((KVGroup("full", (0,)),), tokens, 9, b"f", block_bytes=size, heads=heads)
        return Seal(SECRET, shape, runs=planes * heads.count), own

    values = [writer.cut(content) for writer, content in (seal(heads, 16 * units) for heads in parts)]
    reader, wanted = seal(share, 16 * units)
    assert all(len(each) == units for each in values)
    assert reader.join([seal(heads, 16)[0] for heads in parts], [value for unit in zip(*values, strict=True) for value in unit]) == wanted
