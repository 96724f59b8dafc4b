"""What tells of steps alone waits for company; whatever tells of a request is applied at once, behind what waited."""

from array import array

import pytest

from ridgeline.core import events
from ridgeline.core.plan import Timings
from ridgeline.observe.cost import Spending
from ridgeline.observe.intake import MAX_FRAMES, MAX_SECONDS, Intake
from ridgeline.observe.ledger import Ledger
from ridgeline.observe.live import Live
from ridgeline.observe.metrics import Metrics


class Watched:
    """An intake with its metrics and ledger."""

    def __init__(self) -> None:
        self.ledger, self.metrics = Ledger(lambda: 99.0), Metrics()
        self.intake = Intake(self.ledger, self.metrics, Live(self.metrics, Spending(self.metrics.tenants, None, 0.0)))
        self.intake.add(0.0, [events.Admitted("a", 0.0, 4, 1, 0.0), events.Started("a", 0, 7, 0.0, False)])

    def step(self, number: int, seen: float) -> bool:
        ones = array("i", [1])
        return self.intake.add(seen, [
            events.Scheduled(number, seen - 0.01, (7,), ones, 0, 5, 5), events.Computed(number, seen - 0.001, (7,), ones),
            events.StepTimed(number, Timings(run=0.009)),
        ])  # fmt: skip


def test_an_end_is_known_at_once_with_the_steps_before_it() -> None:
    watched = Watched()
    assert not any(watched.step(number, 0.01 * (number + 1)) for number in range(3)) and watched.metrics.generation_tokens == 0
    assert watched.intake.add(0.04, [events.Closed("a", 0, events.Finish.LENGTH, events.Usage(4, 3), 0.039)])
    assert watched.metrics.generation_tokens == 3 and watched.metrics.finished[events.Finish.LENGTH] == 1
    assert [watched.ledger.steps[number].seen for number in range(3)] == pytest.approx([0.01, 0.02, 0.03])


def test_so_many_frames_wait_and_no_more() -> None:
    watched = Watched()
    assert [watched.step(number, 0.001 * (number + 1)) for number in range(MAX_FRAMES)] == [False] * (MAX_FRAMES - 1) + [True]
    assert watched.metrics.steps == MAX_FRAMES


def test_slow_steps_do_not_wait_for_each_other() -> None:
    watched = Watched()
    assert watched.step(0, 2 * MAX_SECONDS) and watched.metrics.steps == 1
    assert not watched.step(1, 2.5 * MAX_SECONDS) and not watched.step(2, 3.4 * MAX_SECONDS) and watched.step(3, 3.6 * MAX_SECONDS)
    assert watched.metrics.steps == 4


def test_whoever_reads_can_have_all_applied() -> None:
    watched = Watched()
    watched.step(0, 0.01)
    watched.intake.catch_up()
    watched.intake.catch_up()
    assert watched.metrics.steps == 1
