"""The page pool: free, cached or held, handed out only without a holder, taken back least recently used first."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ridgeline.core.blocks import Pages
from ridgeline.errors import LawViolation


def pool(count: int = 4) -> tuple[Pages, list[int]]:
    evicted: list[int] = []
    return Pages(count, evicted.append), evicted


def test_pages_are_numbered_from_one_and_come_lowest_first() -> None:
    pages, _ = pool()
    assert pages.take(2) == [1, 2]
    assert pages.take(2) == [3, 4]
    assert pages.available == 0 and pages.held == 4


def test_a_published_page_stays_cached_and_is_evicted_in_lru_order() -> None:
    pages, evicted = pool()
    for page in pages.take(3):
        pages.published[page] = 1
    for page in (2, 1, 3):
        pages.drop(page)
    pages.hold(2)
    pages.drop(2)
    assert list(pages.cached) == [1, 3, 2]
    assert pages.take(2) == [1, 4] or evicted == [1]
    assert pages.take(1) == [3]
    assert evicted == [1, 3]
    assert not pages.published[1] and pages.published[2]


def test_a_page_has_as_many_holders_as_hold_it() -> None:
    pages, _ = pool()
    (page,) = pages.take(1)
    pages.hold(page)
    pages.drop(page)
    assert pages.holders[page] == 1 and page not in pages.free
    pages.drop(page)
    assert page in pages.free
    with pytest.raises(LawViolation, match="law 2"):
        pages.drop(page)


def test_a_held_page_is_never_handed_out() -> None:
    pages, _ = pool()
    (page,) = pages.take(1)
    pages.free.append(page)
    with pytest.raises(LawViolation, match="law 3"):
        pages.take(1)


def test_handed_over_pages_are_coming_once_no_sequence_holds_them() -> None:
    pages, _ = pool()
    one, two = pages.take(2)
    pages.hold(two)
    pages.hand_over([one, two], step=7)
    assert pages.coming() == 1
    pages.drop(two)
    assert pages.coming() == 2


class PoolMachine(RuleBasedStateMachine):
    """Any order of taking, sharing, publishing, dropping and handing over, against a plain model: a count of holders by name."""

    def __init__(self) -> None:
        super().__init__()
        self.evicted: list[int] = []
        self.pages = Pages(6, self.evicted.append)
        self.holds: Counter[int] = Counter()
        self.steps: dict[int, list[int]] = {}
        self.published: set[int] = set()

    @precondition(lambda self: self.pages.available)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, self.pages.available))
        before = set(self.holds) | {p for held in self.steps.values() for p in held}
        taken = self.pages.take(count)
        assert len(set(taken)) == count and not set(taken) & before
        self.published -= set(taken)
        self.holds.update(taken)

    @precondition(lambda self: self.holds or self.published)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(set(self.holds) | self.published)))
        self.pages.hold(page)
        self.holds[page] += 1

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.holds)))
        self.pages.published[page] = 1
        self.published.add(page)

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        page = self._one_hold_less(data)
        self.pages.drop(page)

    @precondition(lambda self: self.holds)
    @rule(data=st.data(), step=st.integers(0, 3))
    def hand_over(self, data: st.DataObject, step: int) -> None:
        page = self._one_hold_less(data)
        self.pages.hand_over([page], step)
        self.steps.setdefault(step, []).append(page)

    @precondition(lambda self: self.steps)
    @rule()
    def commit(self) -> None:
        step = min(self.steps)
        for page in self.pages.handed_over.pop(step):
            self.pages.drop(page)
        del self.steps[step]

    @precondition(lambda self: self.published)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.published)))
        self.pages.withdraw(page)
        self.published.discard(page)

    def _one_hold_less(self, data: st.DataObject) -> int:
        page = data.draw(st.sampled_from(sorted(self.holds)))
        self.holds[page] -= 1
        self.holds += Counter()
        return page

    @invariant()
    def every_page_is_in_one_place(self) -> None:
        holders = self.holds + Counter(p for held in self.steps.values() for p in held)
        free, cached = set(self.pages.free), set(self.pages.cached)
        assert [self.pages.holders[p] for p in range(1, 7)] == [holders[p] for p in range(1, 7)]
        assert not free & cached and not (free | cached) & set(holders)
        assert len(self.pages.free) + len(cached) + self.pages.held == 6
        assert cached == self.published - set(holders)
        only = {p for held in self.steps.values() for p in held if holders[p] == 1}
        assert self.pages.coming() == len(only)


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase
