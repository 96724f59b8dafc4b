"""Eviction from a tier: what nobody asks for goes first, and of a prompt its end."""

from collections import OrderedDict
from pathlib import Path

import pytest
from conversations import conversations
from tiers import SECRET, file_tier, shape

from ridgeline.engine.tiers.seal import Seal
from ridgeline.engine.tiers.worth import POSITION_TOKENS, Place, Worth


def name(number: int) -> bytes:
    return number.to_bytes(32, "big")


def chain(first: int, count: int, before: int = 0) -> list[tuple[bytes, Place]]:
    """Values that hang on each other, and the first of them on `before`."""
    return [(name(first + at), Place(name(first + at - 1) if at else name(before) if before else b"", 16 * at)) for at in range(count)]


def test_a_prompt_loses_its_end_first() -> None:
    worth = Worth()
    for each in chain(1, 5):
        worth.enter(*each)
    assert [worth.evict() for _ in range(5)] == [name(number) for number in (5, 4, 3, 2, 1)]


def test_a_beginning_stays_while_something_hangs_on_it() -> None:
    """Its own uses are not seen where an engine has it in memory."""
    worth = Worth()
    for each in (*chain(1, 2), *chain(10, 3, before=2), *chain(20, 3, before=2), *chain(30, 2)):
        worth.enter(*each)
    for _ in range(4):
        for number in (10, 11, 12):
            worth.use(name(number))
    gone = [worth.evict() for _ in range(10)]
    assert set(gone[:5]) == {name(number) for number in (20, 21, 22, 30, 31)}
    assert gone[5:] == [name(number) for number in (12, 11, 10, 2, 1)]


def test_what_is_dear_to_compute_is_worth_more() -> None:
    worth = Worth()
    worth.enter(name(1), Place(b"", POSITION_TOKENS))
    worth.enter(name(2), Place(b"", 0))
    assert worth.use(name(1)) == 4.0 and worth.use(name(2)) == 2.0
    assert worth.evict() == name(2)
    worth.enter(name(3), Place(b"", 0))
    worth.use(name(3))
    assert worth.evict() == name(1), "the age has come near it"


def test_values_in_a_ring_can_be_evicted() -> None:
    worth = Worth()
    worth.load([(name(1), Place(name(2)), 1.0), (name(2), Place(name(1)), 2.0), (name(3), Place(name(3)), 3.0)], is_full=True)
    assert sorted(worth.evict() for _ in range(3)) == [name(1), name(2), name(3)]


def test_places_survive_a_restart(tmp_path: Path) -> None:
    value = Seal(SECRET, shape()).value_bytes
    most = 4_096 + 4 * (value + 76)
    tier = file_tier(tmp_path / "kv", most)
    for each, place in chain(1, 4):
        tier.put(each, bytes(value), place)
    tier.close()
    again = file_tier(tmp_path / "kv", most)
    for each, place in chain(50, 2):
        again.put(each, bytes(value), place)
    assert again.has([name(number) for number in (1, 2, 3, 4, 50, 51)]) == [True, True, False, False, True, True]
    again.close()


class Recent:
    """What was used last stays: the usual rule, for comparison."""

    def __init__(self) -> None:
        self.order: OrderedDict[bytes, None] = OrderedDict()

    def enter(self, key: bytes, place: Place) -> None:
        self.order[key] = None

    def use(self, key: bytes) -> None:
        self.order.move_to_end(key)

    def evict(self) -> bytes:
        return self.order.popitem(last=False)[0]


def hits(rule: Worth | Recent, capacity: int, memory: int) -> float:
    """Share of prompt blocks that a tier brings to an engine whose own memory holds the last `memory` blocks: those behind what the engine
    has, as far as there is no gap."""
    held: set[bytes] = set()
    own: OrderedDict[int, None] = OrderedDict()
    brought = asked = 0
    for arrival in conversations(3, 1_500, rate=6.0, pause=40.0):
        here = next((at for at, block in enumerate(arrival.blocks) if block not in own), len(arrival.blocks))
        there = next((at for at, block in enumerate(arrival.blocks[here:], here) if name(block) not in held), len(arrival.blocks))
        asked, brought = asked + len(arrival.blocks) - here, brought + there - here
        for block in arrival.blocks[here:there]:
            rule.use(name(block))
        for at, block in enumerate(arrival.blocks[there:], there):
            if name(block) not in held:
                if len(held) >= capacity:
                    held.remove(rule.evict())
                held.add(name(block))
                rule.enter(name(block), Place(name(arrival.blocks[at - 1]) if at else b"", 512 * at))
        for block in reversed(arrival.blocks):
            own[block] = None
            own.move_to_end(block)
        while len(own) > memory:
            own.popitem(last=False)
    return brought / asked


@pytest.mark.parametrize("capacity", [400, 1_000])
def test_worth_finds_more_than_what_was_used_last(capacity: int) -> None:
    by_worth, by_use = hits(Worth(), capacity, 200), hits(Recent(), capacity, 200)
    print(f"{capacity} blocks: {by_worth:.3f} of the prompts' blocks by worth, {by_use:.3f} by last use")
    assert by_worth >= by_use
