"""Blocks that are told of: whoever hears it knows at any time which digests are held, and a server passes on what changed."""

from dataclasses import dataclass
from random import Random

import pytest

from ridgeline.core.commands import TellBlocks
from ridgeline.core.events import Evicted, Published
from ridgeline.core.prefix_cache import block_keys, root_key
from ridgeline.server import blocks
from ridgeline.server.blocks import HeldBlocks


@dataclass(eq=False)
class FakeClient:
    starts: int = 1
    is_ready: bool = True
    sent: int = 0

    def send(self, command: object) -> None:
        self.sent += 1


def digests(data: bytes) -> list[bytes]:
    return [data[at : at + 8] for at in range(0, len(data), 8)]


@pytest.mark.parametrize(("windows", "host_blocks"), [((0,), 0), ((0,), 7), ((0, 8), 0), ((8,), 0)])
def test_what_is_told_is_what_is_held(loop, monkeypatch: pytest.MonkeyPatch, windows: tuple[int, ...], host_blocks: int) -> None:
    monkeypatch.setattr(blocks, "MOST_CHANGES", 6)
    run, rng, client = loop(blocks=24, host_blocks=host_blocks, rows=2, windows=windows), Random(1), FakeClient()
    told, seldom, known, late, cursor, later = HeldBlocks(b"secret"), HeldBlocks(b"secret"), set(), set(), ("", 0), ("", 0)
    kv, group, heard = run.scheduler.cache.shape, 0, 0
    for number in range(60):
        prompt = tuple(rng.choice((1, 2)) for _ in range(rng.randint(4, 30)))
        run.finish(run.request(str(number), prompt, max_tokens=rng.randint(1, 9)))
        if number == 10:
            for each in (told, seldom):
                each.begin(client)
                each.begin(client)
            run.apply(TellBlocks())
        for each in (told, seldom):
            each.hear(client, run.events[heard:])
        heard = len(run.events)
        if number < 10:
            continue
        changes = told.since(*cursor, kv)
        known = set(digests(changes.added)) if changes.is_whole else (known | set(digests(changes.added))) - set(digests(changes.removed))
        cursor = changes.epoch, changes.upto
        held = {each.key[:8] for each in run.scheduler.cache.index.blocks.values() if each.block_ids[group]}
        assert known == held, number
        if number % 7 == 0:
            changes = seldom.since(*later, kv)
            late = set(digests(changes.added)) if changes.is_whole else (late | set(digests(changes.added))) - set(digests(changes.removed))
            later = changes.epoch, changes.upto
            assert late == held, number
    assert client.sent == 2 and run.events_of(Published) and run.events_of(Evicted)


def test_another_engine_begins_anew_and_nobody_else_is_heard() -> None:
    client, told = FakeClient(), HeldBlocks(b"secret")
    told.hear(client, [Published((1,), b"12345678")])
    told.begin(FakeClient(is_ready=False))
    kv = type("Shape", (), {"root": b"f", "block_tokens": 16})
    assert told.since("", 0, kv).added == b"" and told.since("", 0, kv).epoch == ""
    told.begin(client)
    told.hear(client, [Published((1, 2), b"12345678abcdefgh")])
    first = told.since("", 0, kv)
    assert (first.is_whole, first.added, first.upto) == (True, b"12345678abcdefgh", 2)
    assert not told.since(first.epoch, 2, kv).added and told.since(first.epoch, 3, kv).is_whole
    client.starts = 2
    told.hear(client, [Evicted(1)])
    told.begin(client)
    second = told.since(first.epoch, 2, kv)
    assert second.epoch != first.epoch and second.is_whole and second.added == b""
    assert second.family == first.family != HeldBlocks(b"another").since("", 0, kv).family


def test_keys_are_those_of_the_index(loop) -> None:
    run = loop(block_tokens=4)
    prompt = tuple(range(30, 50))
    run.finish(run.request("a", prompt, domain=b"tenant"))
    keys = list(block_keys(root_key(run.scheduler.cache.shape.fingerprint, b"tenant", None), prompt, 4))
    assert len(keys) == 5 and set(keys[:4]) <= set(run.scheduler.cache.index.blocks)
