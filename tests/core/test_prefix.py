"""The prefix index: keys, and the longest hit that all KV groups have."""

import dataclasses
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.core.params import Admitted
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.core.prefix_cache import PrefixBlock, PrefixIndex
from ridgeline.core.sequence import Sequence

SIZE = 4


def shape(*windows: int, fingerprint: bytes = b"model") -> KVShape:
    return KVShape(tuple(KVGroup("window" if w else "full", (i,), w) for i, w in enumerate(windows)), SIZE, 64, fingerprint)


def sequence(ids: tuple[int, ...] = tuple(range(40)), groups: int = 1, **fields: object) -> Sequence:
    return Sequence(dataclasses.replace(Admitted("r", ids, 8, 1), **fields), 0, 0, groups)  # type: ignore[arg-type]


def indexed(windows: tuple[int, ...], present: list[list[bool]]) -> tuple[PrefixIndex, Sequence]:
    """Returns an index in which group g has block b if `present[g][b]`."""
    index, who = PrefixIndex(shape(*windows), shared=True), sequence(groups=len(windows))
    blocks = len(present[0])
    index.keys(who, blocks)
    who.tables = [[1 + g * blocks + b if there else 0 for b, there in enumerate(row)] for g, row in enumerate(present)]
    for block in range(blocks):
        index.publish(who, block)
    return index, who


def test_a_key_depends_on_all_ids_before_it_and_on_the_tenant() -> None:
    index = PrefixIndex(shape(0), shared=True)
    base = index.keys(sequence(), 3)
    changed = tuple(range(40))
    for other in (
        index.keys(sequence((99, *changed[1:])), 3),
        index.keys(sequence(domain=b"x"), 3),
        PrefixIndex(shape(0, fingerprint=b"other"), shared=True).keys(sequence(), 3),
        PrefixIndex(shape(0), shared=False).keys(sequence(), 3),
    ):
        assert not set(base) & set(other)
    assert base == index.keys(sequence(request_id="other"), 3)
    assert base[:2] == index.keys(sequence((*changed[:8], 77, *changed[9:])), 3)[:2]


def test_keys_survive_a_restart() -> None:
    assert PrefixIndex(shape(0), shared=True).keys(sequence(), 1)[0].hex().startswith("6fb3d965d127164b")


@pytest.mark.parametrize(("identity", "ids"), [(b"other", None), (None, (9, 9, 9, 9))])
def test_a_collision_is_a_miss_and_is_not_overwritten(identity: bytes | None, ids: tuple[int, ...] | None) -> None:
    index, who = indexed((0,), [[True]])
    found = index.lookup(who, 0)
    assert found is not None
    found.identity, found.ids = identity or found.identity, ids or found.ids
    assert index.lookup(who, 0) is None
    assert index.find_longest_hit(who, 0, 1) == 0
    assert index.publish(who, 0) == []


def test_the_first_published_block_is_kept() -> None:
    index, who = indexed((0,), [[True]])
    who.tables = [[7]]
    assert index.publish(who, 0) == []
    index.remove(1)
    assert not index.blocks and not index.by_block_id
    assert index.publish(who, 0) == [7]


def plain_hit(windows: tuple[int, ...], present: list[list[bool]], first: int) -> int:
    """Returns the longest hit by its definition."""
    blocks = len(present[0])
    for hit in range(blocks, first, -1):
        seen = [max(0, hit * SIZE - w + 1) if w else 0 for w in windows]
        needed = [(g, p // SIZE) for g in range(len(windows)) for p in range(seen[g], hit * SIZE)]
        if all(block < first or present[g][block] for g, block in needed):
            return hit
    return first


@pytest.mark.parametrize("windows", [(0,), (6,), (0, 6), (1, 0), (5, 9)])
def test_longest_hit_is_the_longest_that_all_groups_accept(windows: tuple[int, ...]) -> None:
    for bits in product([True, False], repeat=4 * len(windows)):
        present = [list(bits[g * 4 : g * 4 + 4]) for g in range(len(windows))]
        index, who = indexed(windows, present)
        for first in (0, 2):
            assert index.find_longest_hit(who, first, 4) == plain_hit(windows, present, first)


@settings(max_examples=150, deadline=None)
@given(windows=st.lists(st.sampled_from((0, 1, 3, 4, 5, 8, 13, 30)), min_size=1, max_size=3), data=st.data())
def test_longest_hit_on_long_prefixes(windows: list[int], data: st.DataObject) -> None:
    present = [data.draw(st.lists(st.sampled_from((True, True, True, False)), min_size=9, max_size=9)) for _ in windows]
    first = data.draw(st.integers(0, 9))
    index, who = indexed(tuple(windows), present)
    assert index.find_longest_hit(who, first, 9) == plain_hit(tuple(windows), present, first)


def test_blocks_that_cannot_be_shared_are_not_looked_up() -> None:
    index = PrefixIndex(shape(0), shared=False)
    alone, several = sequence(), sequence(choices=2)
    assert not index.is_shareable(alone) and index.is_shareable(several)
    index.mark_computing(alone, 0, 3)
    assert not index.computing and not alone.keys


def test_a_block_stays_indexed_while_any_group_has_it() -> None:
    index, _ = indexed((0, 6), [[True], [True]])
    index.remove(1)
    (block,) = index.blocks.values()
    assert isinstance(block, PrefixBlock) and block.block_ids == [0, 2]
    index.remove(2)
    assert not index.blocks


def test_a_block_is_waited_for_only_if_the_other_computes_it_first() -> None:
    index, owner, other = PrefixIndex(shape(0), shared=True), sequence(), sequence()
    owner.rank, other.rank = (1,), (2,)
    index.keys(other, 3)
    index.mark_computing(owner, 0, 3)
    assert index.blocker(other, 1) is owner
    assert index.blocker(owner, 1) is None
    owner.rank = (3,)
    assert index.blocker(other, 1) is None
    owner.scheduled = 2 * SIZE
    assert index.blocker(other, 1) is owner
    assert index.blocker(other, 2) is None
    index.unmark_computing(owner)
    assert index.blocker(other, 1) is None
