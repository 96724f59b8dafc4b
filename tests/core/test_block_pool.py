"""The block pool: free, cached or held blocks, allocated only without holders, evicted least recently used first."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ridgeline.core.block_pool import BlockPool
from ridgeline.errors import LawViolation


def pool(count: int = 4) -> tuple[BlockPool, list[int]]:
    evicted: list[int] = []
    return BlockPool(count, evicted.append), evicted


def test_blocks_are_numbered_from_one_and_allocated_lowest_first() -> None:
    blocks, _ = pool()
    assert blocks.allocate(2) == [1, 2]
    assert blocks.allocate(2) == [3, 4]
    assert blocks.available == 0 and blocks.held == 4


def test_a_published_block_stays_cached_and_is_evicted_in_lru_order() -> None:
    blocks, evicted = pool()
    for block_id in blocks.allocate(3):
        blocks.published[block_id] = 1
    for block_id in (2, 1, 3):
        blocks.drop(block_id)
    blocks.hold(2)
    blocks.drop(2)
    assert list(blocks.cached) == [1, 3, 2]
    assert blocks.allocate(2) == [1, 4] or evicted == [1]
    assert blocks.allocate(1) == [3]
    assert evicted == [1, 3]
    assert not blocks.published[1] and blocks.published[2]


def test_a_block_counts_its_holders() -> None:
    blocks, _ = pool()
    (block_id,) = blocks.allocate(1)
    blocks.hold(block_id)
    blocks.drop(block_id)
    assert blocks.holders[block_id] == 1 and block_id not in blocks.free
    blocks.drop(block_id)
    assert block_id in blocks.free
    with pytest.raises(LawViolation, match="law 2"):
        blocks.drop(block_id)


def test_a_held_block_is_never_allocated() -> None:
    blocks, _ = pool()
    (block_id,) = blocks.allocate(1)
    blocks.free.append(block_id)
    with pytest.raises(LawViolation, match="law 3"):
        blocks.allocate(1)


def test_blocks_that_only_a_step_holds_are_pending_free() -> None:
    blocks, _ = pool()
    one, two = blocks.allocate(2)
    blocks.hold(two)
    blocks.transfer_to_step([one, two], step=7)
    assert blocks.count_pending_free() == 1
    blocks.drop(two)
    assert blocks.count_pending_free() == 2


class PoolMachine(RuleBasedStateMachine):
    """Any order of allocating, holding, publishing, dropping and transferring to steps, against a model that counts holders."""

    def __init__(self) -> None:
        super().__init__()
        self.evicted: list[int] = []
        self.pool = BlockPool(6, self.evicted.append)
        self.holds: Counter[int] = Counter()
        self.steps: dict[int, list[int]] = {}
        self.published: set[int] = set()

    @precondition(lambda self: self.pool.available)
    @rule(data=st.data())
    def allocate(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, self.pool.available))
        before = set(self.holds) | {p for held in self.steps.values() for p in held}
        taken = self.pool.allocate(count)
        assert len(set(taken)) == count and not set(taken) & before
        self.published -= set(taken)
        self.holds.update(taken)

    @precondition(lambda self: self.holds or self.published)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(sorted(set(self.holds) | self.published)))
        self.pool.hold(block_id)
        self.holds[block_id] += 1

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(sorted(self.holds)))
        self.pool.published[block_id] = 1
        self.published.add(block_id)

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        block_id = self._one_hold_less(data)
        self.pool.drop(block_id)

    @precondition(lambda self: self.holds)
    @rule(data=st.data(), step=st.integers(0, 3))
    def transfer_to_step(self, data: st.DataObject, step: int) -> None:
        block_id = self._one_hold_less(data)
        self.pool.transfer_to_step([block_id], step)
        self.steps.setdefault(step, []).append(block_id)

    @precondition(lambda self: self.steps)
    @rule()
    def commit(self) -> None:
        step = min(self.steps)
        for block_id in self.pool.held_by_steps.pop(step):
            self.pool.drop(block_id)
        del self.steps[step]

    @precondition(lambda self: self.published)
    @rule(data=st.data())
    def unpublish(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(sorted(self.published)))
        self.pool.unpublish(block_id)
        self.published.discard(block_id)

    def _one_hold_less(self, data: st.DataObject) -> int:
        block_id = data.draw(st.sampled_from(sorted(self.holds)))
        self.holds[block_id] -= 1
        self.holds += Counter()
        return block_id

    @invariant()
    def every_page_is_in_one_place(self) -> None:
        holders = self.holds + Counter(p for held in self.steps.values() for p in held)
        free, cached = set(self.pool.free), set(self.pool.cached)
        assert [self.pool.holders[p] for p in range(1, 7)] == [holders[p] for p in range(1, 7)]
        assert not free & cached and not (free | cached) & set(holders)
        assert len(self.pool.free) + len(cached) + self.pool.held == 6
        assert cached == self.published - set(holders)
        only = {p for held in self.steps.values() for p in held if holders[p] == 1}
        assert self.pool.count_pending_free() == len(only)


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase
