"""A row samples a suffix: what it returns is what a loop over single positions would, whatever the drafts are worth, on every sampler.

The loop knows nothing of drafts: it samples a token, appends it, and builds the history anew from the ids.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ridgeline.compute.cpu import ext, sampling
from ridgeline.compute.decoding import sampler
from ridgeline.compute.decoding.edits import history_of
from ridgeline.compute.decoding.sampler import Sampled, accept
from ridgeline.core.params import RowParams, Sampling
from ridgeline.core.plan import TokenLogprobs

Floats = NDArray[np.float32]
Sample = Callable[..., Sampled]
VOCAB = 300


def samplers(vocab: int, threads: int = 1) -> list[Sample]:
    """The reference, and native code at each ISA level."""
    native = [sampling.Sampler(vocab, ext.native().Team(threads), level=level) for level in ext.isa_levels()]
    return [sampler.sample_rows, *(each.sample_rows for each in native)]


def alone(sample: Sample, logits: Floats, row: RowParams, ids: Sequence[int]) -> tuple[int, TokenLogprobs | None]:
    """One position of a row that knows `ids`."""
    found = sample(logits[None], [row], [()], [len(ids)], [history_of(row, ids)])
    scored = found.logprobs[0]
    return found.ids[0][0], None if scored is None else scored[0]


def one_at_a_time(
    sample: Sample, logits: Floats, row: RowParams, ids: Sequence[int], drafted: Sequence[int], finite: Sequence[bool]
) -> tuple[tuple[int, ...], tuple[TokenLogprobs, ...] | None]:
    """What must come of logits [1 + drafts, V]."""
    tokens: list[int] = []
    scores: list[TokenLogprobs] = []
    for number, numbers in enumerate(logits):
        if not finite[number]:
            break
        token, scored = alone(sample, numbers, row, [*ids, *tokens])
        tokens.append(token)
        scores += [] if scored is None else [scored]
        if number < len(drafted) and token != drafted[number]:
            break
    return tuple(tokens), None if row.sampling.logprobs is None else tuple(scores)


@st.composite
def rows(draw: st.DrawFn, vocab: int) -> tuple[RowParams, list[int]]:
    few = st.integers(0, min(vocab, 12) - 1)
    asked = Sampling(
        temperature=draw(st.sampled_from((0.0, 0.3, 1.0, 2.0))),
        top_k=draw(st.sampled_from((0, 1, 3, vocab + 5))),
        top_p=draw(st.sampled_from((1.0, 0.313, 0.877))),
        min_p=draw(st.sampled_from((0.0, 0.0137))),
        presence_penalty=draw(st.sampled_from((0.0, -2.0, 1.3))),
        frequency_penalty=draw(st.sampled_from((0.0, 2.0))),
        repetition_penalty=draw(st.sampled_from((1.0, 1.7))),
        logit_bias=tuple(draw(st.dictionaries(few, st.sampled_from((-100.0, 2.5)), max_size=2)).items()),
        allowed_ids=draw(st.none() | st.sets(few, min_size=1, max_size=9).map(lambda found: tuple(sorted(found)))),
        bad_words=draw(st.lists(st.lists(few, min_size=1, max_size=3).map(tuple), max_size=4).map(tuple)),
        logprobs=draw(st.sampled_from((None, 0, 3))),
    )
    ids = draw(st.lists(few, min_size=1, max_size=8))
    stops = tuple(sorted(draw(st.sets(few, max_size=3))))
    prompt = draw(st.integers(1, len(ids)))
    return RowParams(draw(st.integers(0, 2**63 - 1)), draw(st.integers(0, 3)), prompt, asked, draw(st.integers(0, 9)), stops), ids


def peaked(number: int, count: int, vocab: int) -> Floats:
    """Logits that favour few ids, so that words are completed and penalties decide."""
    rng = np.random.default_rng(number)
    logits = np.round(rng.normal(scale=rng.choice([0.3, 3.0]), size=(count, vocab)) * 2) / 2
    logits[:, :12] += rng.choice([0.0, 4.0])
    return logits.astype(np.float32)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_equals_one_position_at_a_time(data: st.DataObject) -> None:
    """Drafts that are right, wrong, and right for a while; positions that are not finite anywhere; rows without drafts between them."""
    vocab = data.draw(st.sampled_from((12, VOCAB)))
    made = data.draw(st.lists(rows(vocab), min_size=1, max_size=4))
    counts = [data.draw(st.integers(1, 5)) for _ in made]
    logits = peaked(data.draw(st.integers(0, 2**32 - 1)), sum(counts), vocab)
    finite = np.array([data.draw(st.integers(0, 9)) > 0 for _ in range(sum(counts))])
    firsts = np.cumsum([0, *counts])
    for sample in samplers(vocab):
        drafts: list[tuple[int, ...]] = []
        expected = []
        for number, ((row, ids), count) in enumerate(zip(made, counts, strict=True)):
            own = slice(firsts[number], firsts[number + 1])
            right, _ = one_at_a_time(sample, logits[own], row, ids, (), [True] * count)
            wrong = data.draw(st.integers(0, count - 1), label="wrong from")
            drafts.append(tuple(token if at < wrong else (token + 1) % vocab for at, token in enumerate(right[:-1])))
            expected.append(one_at_a_time(sample, logits[own], row, ids, drafts[-1], finite[own]))
        histories = [history_of(row, ids) for row, ids in made]
        found = sample(logits, [row for row, _ in made], drafts, [len(ids) for _, ids in made], histories, finite)
        assert list(zip(*found, strict=True)) == expected
        for history, (row, ids), tokens in zip(histories, made, found.ids, strict=True):
            again = history_of(row, [*ids, *tokens])
            assert (history is None) == (again is None)
            if history is not None and again is not None:
                assert (history.ids, history.seen, history.times) == (again.ids, again.seen, again.times)


GREEDY = RowParams(1, 0, 1, Sampling(temperature=0.0))


def walk(row: RowParams, logits: Any, drafted: tuple[int, ...], ids: Sequence[int] = (0,), finite: Any = None) -> tuple[int, ...]:
    """What all samplers return of one row."""
    numbers = np.array(logits, np.float32)
    found = [
        sample(numbers, [row], [drafted], [len(ids)], [history_of(row, ids)], None if finite is None else np.array(finite, np.bool_))
        for sample in samplers(numbers.shape[1])
    ]
    assert all(each == found[0] for each in found)
    return found[0].ids[0]


def test_min_tokens_is_of_a_position() -> None:
    """The stop id is banned from output 0 and 1, and is likeliest everywhere: it comes at output 2, in the middle of a step."""
    row = replace(GREEDY, min_tokens=2, banned_until=(3,))
    assert walk(row, [[0, 1, 2, 9]] * 4, (2, 2, 3)) == (2, 2, 3, 3)
    assert walk(row, [[0, 1, 2, 9]] * 4, (2, 3, 3)) == (2, 2)


def test_penalties_see_the_drafts_before_a_position() -> None:
    row = replace(GREEDY, sampling=Sampling(temperature=0.0, frequency_penalty=2.0))
    logits = [[0.0, 0.0, 5.0, 3.5]] * 4
    assert walk(row, logits, (2, 3, 2)) == (2, 3, 2, 3)
    assert walk(row, logits, (2, 2, 2)) == (2, 3)


def test_bad_words_are_completed_by_drafts() -> None:
    row = replace(GREEDY, sampling=Sampling(temperature=0.0, bad_words=((0, 2, 3), (2, 2))))
    assert walk(row, [[0, 1, 2, 0], [0, 1, 0, 2], [0, 0, 1, 2]], (2, 1)) == (2, 1, 3)
    assert walk(row, [[0, 1, 2, 0], [0, 1, 2, 2], [0, 0, 1, 2]], (2, 2)) == (2, 1)


@pytest.mark.parametrize("at", range(4))
def test_nothing_behind_a_position_that_is_not_finite(at: int) -> None:
    logits = np.tile(np.array([0, 1, 2, 3], np.float32), (4, 1))
    logits[at] = np.nan
    finite = [number != at for number in range(4)]
    assert walk(GREEDY, logits, (3, 3, 3), finite=finite) == (3,) * at
    assert walk(GREEDY, logits, (3, 0, 3), finite=finite) == (3,) * min(at, 2)


def test_ids_alone_are_walked_alike() -> None:
    """`accept` of the largest ids is what sampling greedy rows gives."""
    rng = np.random.default_rng(5)
    for _ in range(50):
        counts = rng.integers(1, 5, 6).tolist()
        logits = np.round(rng.normal(size=(sum(counts), 5))).astype(np.float32)
        drafts = [tuple(rng.choice(5, count - 1).tolist()) for count in counts]
        best, finite = logits.argmax(axis=1), rng.random(sum(counts)) > 0.1
        for flags in (None, finite):
            expected = sampler.sample_rows(logits, [GREEDY] * 6, drafts, [1] * 6, [None] * 6, flags)
            assert accept(best.tolist(), drafts, [None] * 6, flags) == expected.ids
