"""The pace of steps is learned from what steps take: a wrong measurement at the start is forgotten, noise changes little."""

from random import Random

import pytest

from ridgeline.core.events import StepLate
from ridgeline.core.pace import LATE, Pace
from ridgeline.core.params import Limits
from ridgeline.core.step_time import StepSeconds

TRUE = StepSeconds(0.008, 0.0024, 0.0008)
TARGET = 0.1


def steps(pace: Pace, count: int, rng: Random, noise: float = 0.0, outliers: float = 0.0) -> Limits:
    """A server's steps, half of which have prefill tokens within the budget, some of them alone."""
    limits = pace.limited(Limits(token_budget=512))
    for _ in range(count):
        rows = rng.choice((0, 1, 4, 8))
        tokens = rng.choice((0, limits.prefill_budget(rows))) if rows else 512
        seconds = TRUE.of(rows, tokens) * (1 + noise * rng.random()) * (8.0 if rng.random() < outliers else 1.0)
        if pace.measure(rows, tokens, seconds):
            limits = pace.limited(limits)
    return limits


@pytest.mark.parametrize("factor", [0.2, 0.4, 1.0, 2.5, 8.0])
@pytest.mark.parametrize("where", ["token", "row", "all"])
def test_a_wrong_start_is_forgotten(factor: float, where: str) -> None:
    prior = StepSeconds(
        TRUE.fixed * (factor if where == "all" else 1), TRUE.row * (factor if where != "token" else 1),
        TRUE.token * (factor if where != "row" else 1),
    )  # fmt: skip
    limits = steps(Pace(prior, TARGET), 200, Random(1))
    for rows in (1, 4, 8):
        assert 0.9 * TARGET < TRUE.of(rows, limits.prefill_budget(rows)) < 1.1 * TARGET


def test_few_steps_are_enough_for_most_of_it() -> None:
    """A start that was wrong by two and a half: after the first steps of prompts nobody waits for twice the target."""
    pace = Pace(StepSeconds(TRUE.fixed, TRUE.row, TRUE.token / 2.5), TARGET)
    limits = pace.limited(Limits(token_budget=512))
    taken = []
    for _ in range(12):
        tokens = limits.prefill_budget(4)
        taken.append(TRUE.of(4, tokens))
        if pace.measure(4, tokens, taken[-1]):
            limits = pace.limited(limits)
    assert taken[0] > 2 * TARGET and max(taken[4:]) < 1.25 * TARGET


def test_noise_moves_it_little() -> None:
    """Steps that take up to 30 % longer, and one in fifty eight times as long: the target is kept at the steps' mean."""
    budgets = [steps(Pace(TRUE, TARGET), 400, Random(seed), noise=0.3, outliers=0.02).prefill_budget(4) for seed in range(5)]
    right = Pace(StepSeconds(TRUE.fixed * 1.15, TRUE.row * 1.15, TRUE.token * 1.15), TARGET).limited(Limits(token_budget=512))
    assert all(0.8 * right.prefill_budget(4) < budget < 1.2 * right.prefill_budget(4) for budget in budgets)


def test_decoding_alone_keeps_what_is_known_of_prompts() -> None:
    pace = Pace(StepSeconds(TRUE.fixed, TRUE.row, TRUE.token * 4), TARGET)
    before = steps(pace, 200, Random(1)).prefill_budget(4)
    for _ in range(5_000):
        pace.measure(4, 0, TRUE.of(4, 0))
    assert pace.limited(Limits(token_budget=512)).prefill_budget(4) == pytest.approx(before, rel=0.1)


def test_a_machine_that_slows_down_is_followed() -> None:
    pace = Pace(TRUE, TARGET)
    steps(pace, 300, Random(1))
    limits = pace.limited(Limits(token_budget=512))
    for _ in range(300):
        tokens = limits.prefill_budget(4)
        if pace.measure(4, tokens, 2 * TRUE.of(4, tokens)):
            limits = pace.limited(limits)
    assert 0.9 * TARGET < 2 * TRUE.of(4, limits.prefill_budget(4)) < 1.1 * TARGET


def test_a_busy_machine_does_not_make_prompts_look_free() -> None:
    """Decoding slows down by eight, and steps vary more than a few prefill tokens add: the budget stays that of a slow machine."""
    pace, rng = Pace(TRUE, TARGET), Random(7)
    steps(pace, 100, Random(1))
    most = 0
    limits = pace.limited(Limits(token_budget=512))
    for number in range(600):
        tokens = 0 if number % 40 < 25 else limits.prefill_budget(4)
        seconds = 8 * TRUE.of(4, tokens) * (0.7 + 0.6 * rng.random())
        if pace.measure(4, tokens, seconds):
            limits = pace.limited(limits)
        most = max(most, limits.prefill_budget(4)) if number > 40 else 0
    right = StepSeconds(8 * TRUE.fixed, 8 * TRUE.row, 8 * TRUE.token)
    assert most < 2 * Pace(right, TARGET).limited(limits).prefill_budget(4)


@pytest.mark.parametrize("seconds", [1e-12, 1e-4, 1e3])
def test_costs_stay_numbers(seconds: float) -> None:
    """Whatever is measured, and from nothing: costs are not negative, the budget is at least one token."""
    for prior in (StepSeconds(0.0, 0.0, 0.0), TRUE):
        pace, rng = Pace(prior, TARGET), Random(3)
        for _ in range(200):
            pace.measure(rng.choice((0, 1, 64)), rng.choice((0, 1, 512)), seconds * rng.random())
        found = pace.seconds
        assert min(found.fixed, found.row, found.token) >= 0 and found.of(8, 100) < 1e6
        assert pace.limited(Limits()).prefill_budget(4) >= 1


def test_the_same_times_give_the_same_pace() -> None:
    first, second = Pace(TRUE, TARGET), Pace(TRUE, TARGET)
    assert steps(first, 300, Random(5), noise=0.4) == steps(second, 300, Random(5), noise=0.4)
    assert first.seconds == second.seconds != TRUE


def test_the_scheduler_learns_and_tells_of_late_steps(loop) -> None:
    """The fake device takes 4 ms and 1 ms per token; the start said a quarter of it."""
    run = loop(token_budget=64, rows=4, pace=Pace(StepSeconds(0.001, 0.00025, 0.00025), 0.02), step_seconds=0.004, token_seconds=0.001)
    run.turn(run.request("a", 6, max_tokens=90))
    run.turn(run.request("long", 900, max_tokens=2))
    run.finish()
    chunks = [plan.count[1] for plan in run.plans if len(plan.count) == 2 and plan.count[1] > 1]
    assert chunks[0] > 30 and 12 <= min(chunks[8:-1]) <= max(chunks[8:-1]) <= 20
    late = run.events_of(StepLate)
    assert late[0].decode_rows == 1 and late[0].prefill_tokens == chunks[0] and late[0].seconds > LATE * 0.02
    assert len(late) < 12
    run.check_ended()
