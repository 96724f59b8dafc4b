"""Blocks that outlive their engine: found by content, trusted behind a checksum alone, never waited for longer than they are worth."""

import random
import resource
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tiers import BYTES, PROMPT, SECRET, MemoryTier, Run, content, file_tier, kept, poison, shape

from ridgeline.core.events import PrefixHit, TierUsed
from ridgeline.engine.tiers import store
from ridgeline.engine.tiers.seal import Seal
from ridgeline.errors import ConfigError
from ridgeline.sim.fleet.replay import replay


@pytest.fixture(scope="module")
def alone() -> tuple[int, ...]:
    run = Run([MemoryTier()])
    ids = run.answer("a")
    run.close()
    return ids


def test_the_file_tier_survives_its_engine(tmp_path: Path, alone: tuple[int, ...]) -> None:
    kept(file_tier(tmp_path / "kv"))
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "kv").iterdir()} == {0o600}
    assert (tmp_path / "kv").stat().st_mode & 0o777 == 0o700
    run = Run([file_tier(tmp_path / "kv")])
    assert run.answer("b") == alone and run.from_tier == 96
    hit = next(event for event in run.events if isinstance(event, PrefixHit))
    assert (hit.tier, hit.tokens) == ("file", 96)
    run.answer("c")
    assert run.from_tier == 96, "what is on the device is not fetched again"
    assert any(isinstance(event, TierUsed) and event.fetched for event in run.events)
    counts = run.close()
    assert counts["fetched"] == 6 + 2 and not counts.get("bad"), "of the window only what its next position sees"


def test_what_was_fetched_is_in_recordings(tmp_path: Path) -> None:
    kept(tier := MemoryTier())
    run = Run([tier], record=tmp_path / "recording")
    run.answer("b")
    run.close()
    compared, difference = replay(tmp_path / "recording")
    assert run.from_tier and compared and difference is None


@pytest.mark.parametrize("fields", [{"domain": b"another"}, {"prompt_logprobs": 1}])
def test_who_may_not_have_them_fetches_nothing(fields: dict[str, object]) -> None:
    kept(tier := MemoryTier())
    run = Run([tier])
    run.answer("b", **fields)
    assert not run.from_tier and not run.close().get("fetched")


def test_another_secret_finds_nothing(alone: tuple[int, ...]) -> None:
    kept(tier := MemoryTier())
    run = Run([tier], secret=bytes(32))
    assert run.answer("b") == alone and not run.from_tier
    run.close()


@pytest.mark.parametrize("rounds", [45, pytest.param(8_500, marks=[pytest.mark.night, pytest.mark.timeout(3_600)])])
def test_a_poisoned_tier_changes_no_token(rounds: int, alone: tuple[int, ...]) -> None:
    kept(tier := MemoryTier())
    rng, values, poisoned, told = random.Random(3), dict(tier.values), 0, 0
    for _ in range(rounds):
        tier.values = dict(values)
        poison(rng, tier.values)
        poisoned += len(tier.values)
        run = Run([tier])
        assert run.answer("b") == alone and not run.from_tier
        told += run.close()["bad"] > 0
    assert poisoned >= 12 * rounds
    assert told >= 0.9 * rounds, "one whose thread did not get its turn in time has looked at none"


def test_a_slow_tier_is_not_waited_for(alone: tuple[int, ...]) -> None:
    kept(tier := MemoryTier())
    tier.seconds = 1.5
    run, began = Run([tier]), time.monotonic()
    assert run.answer("b") == alone and time.monotonic() - began < 1.2
    run.close()


def test_sequences_that_have_yet_to_start_are_no_fault_of_a_tier() -> None:
    kept(tier := MemoryTier())
    run = Run([tier], most_staged_bytes=0)
    run.engine.executor.blocks.staged.update({-number: b"" for number in range(1, 60)})  # type: ignore[union-attr]
    run.answer("b")
    assert not run.from_tier and not run.close()["failures"], "nothing was brought, and the tier is not left alone"


def test_a_fetch_ends_before_the_engine_is_taken_to_hang() -> None:
    kept(tier := MemoryTier())
    tier.seconds = 1.0
    run, began = Run([tier], seconds=1.0, most_seconds=0.1), time.monotonic()
    run.answer("b")
    assert time.monotonic() - began < 0.8
    run.close()


def test_what_is_counted_is_there_from_the_start() -> None:
    """The loop reads the counts while threads add to them."""
    run = Run([MemoryTier()])
    names = {"fetched", "kept", "bad", "dropped", "failures", "converted", "refused"}
    assert set(run.store.counts["memory"]) == names and not run.store.used()
    run.close()


def test_a_tier_that_fails_is_left_alone(alone: tuple[int, ...]) -> None:
    run = Run([MemoryTier(fails=True)])
    assert run.answer("b") == alone and run.answer("c", (*PROMPT[:40], 3, 4)) and run.close()["failures"] <= 2


def test_a_tier_that_fails_again_is_left_alone_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PAUSE_SECONDS", 0.2)
    run = Run([tier := MemoryTier(fails=True)])
    until = [0.0]
    while len(until) < 4:
        run.answer(f"{len(run.events)}", (*PROMPT[:40], len(run.events)))
        if (now := run.store._paused["memory"]) != until[-1]:
            until.append(now)
    _, first, second, third = until
    assert second - first >= 0.4 and third - second >= 0.8
    tier.fails = False
    while not tier.values:
        run.answer(f"again {len(run.events)}", (*PROMPT[:40], len(run.events)))
    assert run.store._pauses == {"memory": 0.2}, "it has answered"
    run.close()


def test_a_full_disk_serves_on(tmp_path: Path, alone: tuple[int, ...]) -> None:
    tier = file_tier(tmp_path / "kv")
    size = (tmp_path / "kv" / "model.kv").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 500, before[1]))
    try:
        run = Run([tier])
        assert run.answer("b") == alone
        counts = run.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert counts["failures"] and counts["dropped"]


def test_the_least_used_makes_room(tmp_path: Path) -> None:
    value = Seal(SECRET, shape()).value_bytes
    tier = file_tier(tmp_path / "kv", 4_096 + 4 * (value + 76))
    names = [bytes([number]) * 32 for number in range(1, 8)]
    for name in names[:4]:
        tier.put(name, name * 4 + bytes(value - 128))
    tier.get(names[:1], 1.0, value)
    for name in names[4:]:
        tier.put(name, bytes(value))
    assert tier.has(names) == [True, *[False] * 3, *[True] * 3]
    tier.close()
    again = file_tier(tmp_path / "kv", 4_096 + 4 * (value + 76))
    assert again.has(names) == [True, *[False] * 3, *[True] * 3] and again.get(names[:1], 1.0, value) == [names[0] * 4 + bytes(value - 128)]
    assert (tmp_path / "kv" / "model.kv").stat().st_size <= 4_096 + 4 * (value + 76)
    again.close()


def test_many_reads_of_one_keep_the_others_replaceable(tmp_path: Path) -> None:
    """The order of worths is made anew while the second block is put."""
    value = Seal(SECRET, shape()).value_bytes
    tier = file_tier(tmp_path / "kv", 4_096 + 2 * (value + 76))
    names = [bytes([number]) * 32 for number in range(1, 4)]
    tier.put(names[0], bytes(value))
    tier.get(names[:1] * 71, 1.0, value)
    tier.put(names[1], bytes(value))
    tier.put(names[2], bytes(value))
    assert tier.has(names) == [True, False, True]
    tier.close()


def test_other_models_share_the_bound(tmp_path: Path) -> None:
    file_tier(tmp_path / "kv").close()
    other = tmp_path / "kv" / "other.kv"
    other.write_bytes(bytes(2 * BYTES))
    file_tier(tmp_path / "kv").close()
    assert not other.exists()


def test_a_folder_that_others_can_reach_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kv").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(tmp_path / "kv")
    for name in ("kv", "link"):
        with pytest.raises(ConfigError, match=r"chmod 700|no folder that can be used"):
            file_tier(tmp_path / name)


def test_links_and_open_files_are_left_alone(tmp_path: Path) -> None:
    first = file_tier(tmp_path / "kv")
    with pytest.raises(OSError, match="another engine"):
        file_tier(tmp_path / "kv")
    first.close()
    (tmp_path / "kv" / "model.kv").rename(tmp_path / "elsewhere")
    (tmp_path / "kv" / "model.kv").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"symbolic|symlink|links"):
        file_tier(tmp_path / "kv")


def test_blocks_of_another_version_are_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Seal(SECRET, shape())
    monkeypatch.setattr("ridgeline.engine.tiers.seal.VERSION", b"another")
    after, (held, data) = Seal(SECRET, shape()), content(3)
    assert after.name(held.key, 0) != before.name(held.key, 0) and after.open(held, before.close(held, data)) is None


def test_the_seal_covers_all_that_it_says() -> None:
    seal, (held, data) = Seal(SECRET, shape()), content(3)
    value = seal.close(held, data)
    assert seal.open(held, value) == data
    for other in (replace(held, key=bytes(32)), replace(held, group=1), replace(held, ids=(0,) * 16), replace(held, scope=b"x")):
        assert seal.open(other, value) is None
    assert (
        Seal(SECRET, replace(shape(), fingerprint=b"other")).open(held, value) is None
        and Seal(bytes(32), shape()).open(held, value) is None
    )
