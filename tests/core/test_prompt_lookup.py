"""Prompt lookup: the index against a plain search, the choice of depths, and equal answers with and without drafts."""

from collections.abc import Sequence
from random import Random

import pytest

from ridgeline.core.drafts.depth import BARRIER_SECONDS, BARRIER_SECONDS_PER_ROW, StepCost, choose_depths
from ridgeline.core.drafts.ngram import COMPARISON_DECAY, MAX_CANDIDATES, MAX_IDS_PER_UPDATE, MAX_MATCH_LENGTH, NgramPredictor
from ridgeline.core.drafts.prompt_lookup import PromptLookupDrafter
from ridgeline.core.events import Computed, Drafting
from ridgeline.core.params import RowParams
from ridgeline.sim.laws.model import FakeModel

TABLE = tuple((tokens, tokens, 0.010 + 0.001 * tokens) for tokens in (1, 2, 4, 8, 16, 32))


def by_hand(ids: list[int]) -> tuple[int, int]:
    """Returns (match, match_length) of the newest occurrences of the last pair by a plain search."""
    best = -1, 0
    seen = 0
    for at in range(len(ids) - 2, 0, -1):
        if ids[at - 1 : at + 1] != ids[-2:]:
            continue
        match_length = 2
        while match_length < MAX_MATCH_LENGTH and match_length <= at and ids[at - match_length] == ids[len(ids) - 1 - match_length]:
            match_length += 1
        if match_length > best[1]:
            best = at, match_length
        seen += 1
        if match_length == MAX_MATCH_LENGTH or seen == MAX_CANDIDATES:
            break
    return best


@pytest.mark.parametrize("alphabet", [1, 2, 3, 8, 60])
def test_the_index_finds_what_a_search_finds(alphabet: int) -> None:
    rng = Random(alphabet)
    ids = [rng.randrange(alphabet) for _ in range(rng.randint(0, 30))]
    index = NgramPredictor(ids)
    for _ in range(300):
        ids += [rng.randrange(alphabet) for _ in range(rng.choice((1, 1, 1, 2, 5)))]
        followed = index.match >= 0
        assert index.update()
        match, match_length = by_hand(ids)
        if followed and index.match >= 0:  # who has match_length all along goes on; another may agree as long
            assert index.match_length >= min(match_length, 3) or index.match_length >= 2
            assert ids[index.match - 1 : index.match + 1] == ids[-2:]
        else:
            assert (index.match, index.match_length) == (match, match_length)


def recorded(index: NgramPredictor) -> tuple[float, float]:
    """(right, compared) with the predictions of the last run."""
    right, compared = index.right, index.compared
    for _ in range(index.run):
        right, compared = COMPARISON_DECAY * right + 1, COMPARISON_DECAY * compared + 1
    return right, compared


def test_the_record_is_that_of_single_comparisons() -> None:
    """Predictions that came true together count as if they had come one by one, the first wrong one and none behind it among them."""
    rng, ids = Random(3), [7, 8, 9, 1, 2, 3, 4, 5, 6] * 3
    index = NgramPredictor(ids)
    right, compared, wrong = 0.0, 0.0, 0
    for _ in range(200):
        predicted = index.propose(24)
        came = predicted[: rng.choice((1, 2, 5, 20))] + ((77,) if rng.random() < 0.2 else ())
        for place, token in enumerate(came if predicted else ()):
            compared, right = COMPARISON_DECAY * compared + 1, COMPARISON_DECAY * right + (token == predicted[place])
            if token != predicted[place]:
                wrong += 1
                break
        ids += came or (7, 8, 9)
        assert index.update() and recorded(index) == pytest.approx((right, compared))
    assert wrong > 3 and compared > 10


def test_a_long_prompt_is_indexed_in_parts() -> None:
    index = NgramPredictor(list(range(3 * MAX_IDS_PER_UPDATE)))
    assert [index.update() for _ in range(3)] == [False, False, True]
    assert index.propose(4) == ()


def test_a_continuation_that_reaches_the_end_is_repeated() -> None:
    index = NgramPredictor([9, 1, 2, 3, 1, 2, 3, 1, 2])
    assert index.update() and index.propose(7) == (3, 1, 2, 3, 1, 2, 3)


def measure(cost: StepCost, tokens: int, seconds: float) -> None:
    cost.measured.append((tokens, seconds))
    if len(cost.measured) >= cost.wanted:
        cost.update()


def test_costs_are_interpolated_and_follow_measurements() -> None:
    cost = StepCost(TABLE)
    assert [round(1e3 * cost.seconds(tokens), 3) for tokens in (1, 3, 6, 32, 64)] == [11, 13, 16, 42, 74]
    for _ in range(200):
        measure(cost, 1, 0.022)
    assert cost.seconds(1) == pytest.approx(0.022, rel=0.01) and cost.seconds(4) > 0.018  # all takes longer now
    for _ in range(200):
        measure(cost, 1, 0.022)
        measure(cost, 3, 0.066)
    assert cost.seconds(3) / cost.seconds(1) == pytest.approx(3.0, rel=0.05)


def test_a_size_that_was_measured_beside_other_work_costs_no_more_than_a_larger_one() -> None:
    cost = StepCost(TABLE)
    for _ in range(64):
        measure(cost, 3, 0.039)
    for _ in range(64):
        measure(cost, 6, 0.016)
    assert cost.seconds(3) == cost.seconds(6) == pytest.approx(0.016, rel=0.05) and cost.seconds(2) < cost.seconds(6)


def test_an_estimate_comes_nearer_to_what_is_measured_and_does_not_pass_it() -> None:
    cost, found = StepCost(TABLE), []
    for _ in range(4):
        for _ in range(16):
            measure(cost, 4, 0.028)
        found.append(cost.seconds(4))
    assert found == sorted(found) and found[0] > 0.020 and 0.0275 < found[-1] <= 0.028


def test_without_a_table_all_steps_cost_the_same_until_measured() -> None:
    cost = StepCost(())
    assert choose_depths(cost, 1, [(0.9, 0.9, 2)], 0, 4, barrier=False) == [2]
    measure(cost, 1, 0.01)
    assert cost.seconds(1) == cost.seconds(5) == pytest.approx(0.01)
    for _ in range(100):
        measure(cost, 3, 0.08)
        measure(cost, 1, 0.01)
    assert choose_depths(cost, 1, [(0.9, 0.9, 2)], 0, 4, barrier=True) != [2]


def rate(chances: Sequence[float], depth: int, seconds: float) -> float:
    return (1 + sum(chances[:depth])) / seconds


@pytest.mark.parametrize("right", [0.02, 0.3, 0.6, 0.95])
def test_one_row_drafts_to_the_depth_of_the_highest_rate(right: float) -> None:
    cost, chances = StepCost(TABLE), [right**place for place in range(1, 9)]
    waits = BARRIER_SECONDS + BARRIER_SECONDS_PER_ROW
    rates = [rate(chances, depth, cost.seconds(1 + depth) + (waits if depth else 0)) for depth in range(9)]
    best = max(range(9), key=lambda depth: rates[depth])
    assert choose_depths(cost, 1, [(right, right, 8)], 0, 64, barrier=True) == [best if rates[best] > 1.04 * rates[0] else 0]


def drafting_steps(cost: StepCost, steps: int, plain: float, verifying: float) -> list[bool]:
    """Which of so many steps of four rows verified a draft each, where steps take these seconds."""
    found = []
    for _ in range(steps):
        drafts = sum(choose_depths(cost, 4, [(0.8, 0.8, 1)] * 4, 0, 64, barrier=True))
        found.append(drafts > 0)
        measure(cost, 4 + drafts, verifying if drafts else plain)
    return found


DEAR = (1, 1, 0.040), (4, 4, 0.051), (8, 8, 0.091)
"""A start at which eight tokens were held up: a draft for each of four rows, of which 80 % are right, does not pay."""


def test_what_looked_dear_at_the_start_is_tried() -> None:
    steps = drafting_steps(StepCost(DEAR), 200, 0.051, 0.075)
    assert not steps[0] and all(steps[64:])


def test_trials_of_what_is_dear_are_few() -> None:
    steps = drafting_steps(StepCost(DEAR), 4_000, 0.051, 0.091)
    assert 8 <= sum(steps[:200]) <= 48 and sum(steps[200:]) <= 80


def test_drafts_slow_no_other_row_down() -> None:
    cost = StepCost(TABLE)
    assert choose_depths(cost, 8, [(0.99, 1.0, 4)] * 2, 6, 64, barrier=True) == [0, 0]
    assert sum(choose_depths(cost, 8, [(0.99, 1.0, 4)] * 8, 0, 64, barrier=True)) > 0
    flat = StepCost(tuple((tokens, tokens, 0.1 + 1e-5 * tokens) for tokens in (1, 32)))
    assert choose_depths(flat, 8, [(0.99, 1.0, 4)] * 2, 6, 64, barrier=True) == [4, 4]
    assert sum(choose_depths(flat, 8, [(0.99, 1.0, 4)] * 2, 6, 3, barrier=True)) == 3


def test_a_row_that_errs_more_often_keeps_no_other_from_drafting() -> None:
    stairs = StepCost(((4, 4, 0.030), (8, 8, 0.039), (9, 9, 0.055), (12, 12, 0.057), (36, 36, 0.150)))
    offers = [(each, each, 8) for each in (0.9, 0.52, 0.89, 0.91)]
    assert choose_depths(stairs, 4, offers, 0, 64, barrier=True) == [1, 1, 1, 1]
    assert choose_depths(stairs, 4, [*offers[:3], (0.2, 0.2, 8)], 0, 64, barrier=True) == [0, 0, 0, 0], "it would be slower with drafts"


class Periodic(FakeModel):
    """Repeats a sequence of ids; `noise`: one id in so many is another."""

    noise = 0

    def sample(self, stamp: int, params: RowParams, position: int, past: Sequence[int] | None = None) -> int:
        strange = self.noise and hash((stamp, position)) % self.noise == 0
        return 200 if strange else self.alphabet[position % 11]


class Noisy(Periodic):
    noise = 7


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("model", [Periodic(), Noisy(), FakeModel()], ids=lambda model: type(model).__name__)
def test_answers_are_those_without_drafts(loop, model: FakeModel, depth: int) -> None:
    run = loop(model=model, depth=depth, drafter=PromptLookupDrafter(4, TABLE, barrier=depth > 1), rows=3, samples=20, token_budget=64)
    run.finish(*[run.request(f"r{index}", 5 + index, max_tokens=90) for index in range(3)])
    run.check_ended()
    drafted = sum(event.drafted for event in run.events_of(Computed))
    accepted = sum(event.accepted for event in run.events_of(Computed))
    if type(model) is Periodic:
        assert accepted > 100 and accepted == drafted
        assert len(run.plans) < 60
    elif type(model) is FakeModel:
        assert drafted < 10 and len(run.plans) >= 90
        told = run.events_of(Drafting)
        assert told[-1].step == 64 and told[-1].rows == 3 and 0 <= told[-1].depth < 1


def test_waits_back_off_after_one_without_drafts() -> None:
    drafter = PromptLookupDrafter(4, TABLE, barrier=True)
    waits = []
    for _ in range(40):
        drafter._has_waited = not drafter._backoff_left  # as if it had waited whenever it may
        drafter.propose([], 1, 4)
        waits.append(drafter._backoff_left)
        drafter.on_commit([], *empty())
    assert waits[:2] == [1, 3] and max(waits) >= 15


def empty():
    from array import array

    from ridgeline.core.plan import Plan, Result

    nothing = array("i")
    return Plan(0, nothing, nothing, nothing, nothing, bytearray()), Result(0, (), bytearray())
