"""Drafts of text that grammars force: what results say is proposed, compared, and given up where models split it otherwise."""

from types import SimpleNamespace
from typing import Any

import pytest

from ridgeline.core.drafts.forced import ForcedPredictor
from ridgeline.core.drafts.ngram import NgramPredictor
from ridgeline.core.drafts.prompt_lookup import PromptLookupDrafter
from ridgeline.core.sequence import State

FREE = ((1, 1, 0.01), (2, 2, 0.01), (4, 4, 0.01), (8, 8, 0.01))
"""A price of steps in which further tokens cost nothing."""


class Row(SimpleNamespace):
    """What drafters see of a sequence."""

    __hash__ = object.__hash__


def following(has_grammar: bool = True) -> Row:
    request = SimpleNamespace(sampling=SimpleNamespace(grammar="any" if has_grammar else None), domain=b"")
    known = [1, 2, 3]
    return Row(known=known, state=State.RUNNING, draft_state=None, request=request, limit=100, target=4, promised=0, prompt_tokens=3)


def commit(drafter: PromptLookupDrafter, row: Row, ids: tuple[int, ...], forced: tuple[int, ...] = ()) -> None:
    row.known += ids
    timings = SimpleNamespace(run=0.0, draft=0.0)
    result: Any = SimpleNamespace(sampled=(ids,), forced=((0, forced),) if forced else (), timings=timings)
    plan: Any = SimpleNamespace(tokens=[0], sample=b"\1")
    drafter.on_commit([row], plan, result)  # type: ignore[list-item]


def propose(drafter: PromptLookupDrafter, row: Row) -> tuple[int, ...]:
    return drafter.propose([(row, 50)], 1, 50)[0]  # type: ignore[list-item]


def test_what_is_forced_is_proposed_until_the_next_result() -> None:
    drafter, row = PromptLookupDrafter(4, FREE, True), following()
    commit(drafter, row, (4,), (10, 11, 12))
    assert propose(drafter, row) == (10, 11, 12)
    commit(drafter, row, (10, 11, 12, 13))
    assert propose(drafter, row) == ()
    commit(drafter, row, (14,), tuple(range(20, 29)))
    assert propose(drafter, row) == (20, 21, 22, 23), "as deep as rows may draft"


def test_a_step_waits_for_what_reaches_beyond_the_ids_in_flight() -> None:
    drafter, row = PromptLookupDrafter(4, FREE, True), following()
    row.promised = 1
    commit(drafter, row, (4,), (10,))
    assert not drafter.should_wait([row]), "the step in flight brings the only one"  # type: ignore[list-item]
    commit(drafter, row, (10,), (10, 11, 12))
    assert drafter.should_wait([row])  # type: ignore[list-item]


def test_text_that_a_model_splits_otherwise_is_given_up() -> None:
    ids = [1, 2, 3]
    predictor, chances = ForcedPredictor(ids, NgramPredictor(ids)), []
    for token in range(100, 112):
        predictor.force((7, 8, 9))
        chances.append(predictor.acceptance)
        ids.append(token)
        predictor.update()
    assert chances[0] == pytest.approx(0.9) and chances == sorted(chances, reverse=True) and chances[-1] < 0.35


def test_repetition_that_is_more_certain_is_preferred() -> None:
    ids = [5, 6, 7, 8, 9, 1, 2, 3] * 3
    predictor = ForcedPredictor(ids, NgramPredictor(ids))
    for _ in range(3):
        predictor.update()
        predictor.force((70, 71))
        ids += [5, 6, 7, 8, 9, 1, 2, 3]
    predictor.update()
    predictor.force((70, 71))
    assert predictor.propose(3) == (5, 6, 7) and predictor.acceptance > 0.9


def test_rows_without_a_grammar_have_no_such_predictor() -> None:
    drafter, row = PromptLookupDrafter(4, FREE, True), following(has_grammar=False)
    commit(drafter, row, (4,), (10, 11))
    assert propose(drafter, row) == ()
