"""Recent outputs as an automaton: the longest suffix is found among interleaved texts, the commonest continuation follows it."""

from random import Random

import pytest

from ridgeline.core.drafts import suffix
from ridgeline.core.drafts.acceptance import Acceptance
from ridgeline.core.drafts.suffix import OutputStore, RecentOutputs, SuffixAutomaton, SuffixPredictor


def substrings(texts: list[list[int]]) -> set[tuple[int, ...]]:
    return {tuple(text[i:j]) for text in texts for i in range(len(text)) for j in range(i + 1, len(text) + 1)}


@pytest.mark.parametrize("seed", range(30))
def test_a_walk_finds_the_longest_suffix_of_texts_that_grow_in_turn(seed: int) -> None:
    draw = Random(seed)
    automaton, texts, lasts = SuffixAutomaton(), [[] for _ in range(3)], [0, 0, 0]
    ids, state, length = [], 0, 0
    for _ in range(60):
        which, token = draw.randrange(3), draw.randrange(3)
        lasts[which] = automaton.add(lasts[which], token)
        texts[which].append(token)
        ids.append(draw.randrange(3))
        state, length = automaton.walk(state, length, ids[-1])
        known = substrings(texts)
        ends = [count for count in range(len(ids), 0, -1) if tuple(ids[-count:]) in known]
        # a suffix that came to be known behind its place is found with the next id that does not fit
        assert length <= (ends or [0])[0]
        assert not length or tuple(ids[-length:]) in known
    for text in known:
        state, length = 0, 0
        for token in text:
            state, length = automaton.walk(state, length, token)
        assert length == len(text)
    assert automaton.ids == 60


def test_the_commonest_continuation_is_predicted() -> None:
    automaton = SuffixAutomaton()
    for text in ([1, 2, 3, 9], [1, 2, 3, 4, 5], [7, 2, 3, 4, 6], [1, 2, 3, 4, 5]):
        last = 0
        for token in text:
            last = automaton.add(last, token)
    state, length = 0, 0
    for token in (8, 2, 3):
        state, length = automaton.walk(state, length, token)
    assert length == 2 and automaton.predict(state, 4) == (4, 5)


def test_a_sequence_learns_from_others_and_not_from_prompts() -> None:
    outputs, answer = RecentOutputs(), [11, 12, 13, 14, 15, 16]
    first = SuffixPredictor([1, 2, 3, *answer], 3, outputs)
    first.update()
    ids = [5, 6, 11, 12]
    second = SuffixPredictor(ids, 2, outputs)
    second.update()
    assert second.propose(3) == (13, 14, 15) and second.acceptance > 0.2
    before = second.acceptance
    ids += [13, 14]
    second.update()
    assert second.acceptance > before and second.propose(2) == (15, 16)
    ids += [99]
    second.update()
    assert second.acceptance == 0 and not second.propose(2)
    third = SuffixPredictor([1, 2, 3, 1, 2], 3, outputs)
    third.update()
    assert not third.propose(2), "a prompt is nobody's output"


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix, "MAX_IDS", 50)
    outputs, draw = RecentOutputs(), Random(1)
    for _ in range(20):
        ids = [draw.randrange(40) for _ in range(30)]
        SuffixPredictor(ids, 0, outputs).update()
        assert outputs.new.ids + outputs.old.ids <= 2 * 50 + 2 * 30
    assert outputs.generation > 4


def test_tenants_learn_nothing_of_each_other() -> None:
    store = OutputStore()
    SuffixPredictor([1, 2, 3, 4, 5], 0, store.of(b"a")).update()
    other = SuffixPredictor([1, 2, 3], 0, store.of(b"b"))
    other.update()
    assert not other.propose(2)
    for number in range(suffix.MAX_TENANTS + 5):
        store.of(bytes([number]))
    assert len(store._tenants) == suffix.MAX_TENANTS


def test_what_is_compared_counts() -> None:
    record = Acceptance()
    record.record(3, 1)
    assert (record.right, record.compared) == pytest.approx((0.93, 1.93))
