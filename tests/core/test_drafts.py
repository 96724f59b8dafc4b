"""Speculative drafts: the plan of a step with drafts, the ids that are accepted, and the limits of drafts."""

from dataclasses import replace

import pytest

from ridgeline.core import laws
from ridgeline.core.commands import Abort, Close, SetKnob
from ridgeline.core.drafts.depth import StepCost, choose_depths
from ridgeline.core.events import Closed, Computed, Finish, Preempted
from ridgeline.core.params import Sampling
from ridgeline.core.plan import LAST, DraftSpan, Plan, Result, TokenLogprobs
from ridgeline.core.sequence import Sequence
from ridgeline.errors import LawViolation
from ridgeline.sim.laws.model import FakeModel


class Given:
    """Drafts the given ids for each request, or those that a function returns for its number of outputs."""

    def __init__(self, waits: bool = True, **drafts: object) -> None:
        self.waiting = waits
        self.drafts = drafts
        self.results: list[Plan] = []

    def should_wait(self, running: list[Sequence]) -> bool:
        return self.waiting

    def outlook(self, running: list[Sequence]) -> None:
        """Weighs nothing."""

    def spans(self, rows: list[Sequence], tokens: int) -> tuple[DraftSpan, ...]:
        return ()

    def runs_ahead(self, sequences: list[Sequence]) -> bool:
        return False

    def propose(self, rows: list[tuple[Sequence, int]], tokens: int, most: int) -> list[tuple[int, ...]]:
        return [tuple(self.of(sequence)) for sequence, _ in rows]

    def of(self, sequence: Sequence) -> object:
        drafts = self.drafts.get(sequence.request.request_id, ())
        return drafts(sequence.outputs) if callable(drafts) else drafts

    def on_commit(self, sequences: list[Sequence], plan: Plan, result: Result) -> None:
        self.results.append(plan)


def right(loop, name: str, count: int, **fields: object) -> Given:
    """Returns a drafter whose `count` ids are always right for a request that is made the same way."""
    probe = loop(**fields)
    probe.request(name, max_tokens=40)
    answer = probe.expected(name)
    return Given(**{name: lambda outputs: answer[outputs : outputs + count]})


def test_accepted_drafts_yield_several_ids_per_step(loop) -> None:
    run = loop(drafter=right(loop, "a", 3))
    run.finish(run.request("a", max_tokens=9))
    assert [(list(plan.count), list(plan.sample)) for plan in run.plans] == [([6], [1]), ([4], [4]), ([4], [4])]
    assert [len(output.ids) for output in run.outputs] == [1, 4, 4]
    assert [plan.start[0] for plan in run.plans] == [0, 6, 10]
    run.check_ended()
    assert [(e.drafted, e.accepted) for e in run.events_of(Computed)] == [(0, 0), (3, 3), (3, 3)]


def test_rejected_drafts_change_no_answer(loop) -> None:
    run = loop(drafter=Given(a=(1, 2, 3)))
    run.finish(run.request("a", max_tokens=4))
    assert [(plan.start[0], list(plan.count)) for plan in run.plans] == [(0, [6]), (6, [3]), (7, [2]), (8, [1])]
    assert [len(output.ids) for output in run.outputs] == [1, 1, 1, 1]
    run.check_ended()


def test_ids_behind_the_first_rejected_draft_are_dropped(loop) -> None:
    probe = loop()
    probe.request("a", max_tokens=40)
    answer = probe.expected("a")
    run = loop(drafter=Given(a=lambda outputs: (*answer[outputs : outputs + 2], 1, answer[outputs + 3])))
    run.finish(run.request("a", max_tokens=12))
    assert [len(output.ids) for output in run.outputs][:3] == [1, 3, 3]
    run.check_ended()


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_a_step_that_drafts_is_a_barrier(loop, depth: int) -> None:
    run = loop(drafter=right(loop, "a", 2), depth=depth)
    run.apply(run.request("a", max_tokens=20), run.request("b", 9, max_tokens=20))
    run.plan()
    assert run.plan() is None  # what comes next needs to know what is sampled
    run.commit()
    assert run.plan().drafts and run.plan() is None
    laws.check_full(run.scheduler)
    run.commit()
    run.finish()
    run.check_ended()


def test_a_drafter_that_does_not_wait_gets_no_rows_while_steps_are_in_flight(loop) -> None:
    drafter = right(loop, "a", 2)
    drafter.waiting = False
    run = loop(drafter=drafter, depth=2)
    run.finish(run.request("a", max_tokens=9))
    assert LAST in run.plans[1].tokens and not any(plan.drafts for plan in run.plans[:-1])
    run.check_ended()


def test_drafts_do_not_delay_a_waiting_sequence_that_can_start(loop) -> None:
    run = loop(drafter=right(loop, "a", 2), depth=2, token_budget=8)
    run.apply(run.request("a", max_tokens=20))
    run.plan()
    run.apply(run.request("b", 9, max_tokens=3))
    plan = run.plan()
    assert plan is not None and plan.new_rows
    run.finish()
    run.check_ended()


@pytest.mark.parametrize(
    ("limits", "drafts"),
    [
        ({"samples": 20}, [3, 3]),
        ({"samples": 6}, [3, 1]),
        ({"token_budget": 14, "samples": 20}, [3, 3]),
        ({"token_budget": 14, "samples": 20, "mixed_tokens": 4}, [2, 0]),
        ({"blocks": 7, "samples": 20}, [3, 1]),
        ({"blocks": 6, "samples": 20}, [1, 1]),
    ],
)
def test_drafts_take_what_the_step_has_left(loop, limits: dict[str, int], drafts: list[int]) -> None:
    run = loop(drafter=Given(a=(1, 2, 3), b=(1, 2, 3)), rows=2, **limits)
    run.turn(run.request("a", 6, max_tokens=9), run.request("b", 6, max_tokens=9))
    run.turn()
    assert [samples - 1 for samples in run.plans[1].sample] == drafts
    assert not run.events_of(Preempted)


def test_drafts_stay_below_the_limit_of_the_sequence(loop) -> None:
    run = loop(drafter=right(loop, "a", 8))
    run.finish(run.request("a", max_tokens=4))
    assert [list(plan.sample) for plan in run.plans] == [[1], [3]]
    run.check_ended()


def test_ids_behind_a_stop_id_are_dropped(loop) -> None:
    model = FakeModel(stop_ids=(1,), stop_permille=100)
    probe = loop(model=model)
    probe.request("a", max_tokens=40, seed=1)
    answer = probe.expected("a")
    stop = answer.index(1)
    assert stop > 2
    run = loop(model=model, drafter=Given(a=lambda outputs: answer[outputs : outputs + 6]))
    run.finish(run.request("a", max_tokens=40, seed=1, stop_ids=frozenset({1})))
    assert run.ids("a") == answer[: stop + 1] and run.events_of(Closed)[0].reason is Finish.STOP
    assert len(run.outputs[-1].ids) < run.plans[-1].sample[0]
    run.check_ended()


def test_a_close_may_fall_inside_a_steps_ids(loop) -> None:
    run = loop(drafter=right(loop, "a", 4))
    run.turn(run.request("a", max_tokens=30, two_phase=True))
    run.turn()
    run.turn(Close("a", 0, 3, Finish.STOP))
    run.finish()
    assert run.events_of(Closed)[0].usage.completion_tokens == 3
    run.check_ended()


def test_an_abort_while_drafts_are_in_flight(loop) -> None:
    run = loop(drafter=right(loop, "a", 3), depth=2)
    run.turn(run.request("a", max_tokens=30), run.request("b", 7, max_tokens=9))
    assert run.plan().drafts
    run.apply(Abort("a"))
    run.finish()
    run.check_ended()


def test_log_probabilities_are_those_of_the_ids(loop) -> None:
    plain, run = loop(), loop(drafter=right(loop, "a", 3))
    for each in (plain, run):
        each.finish(each.request("a", max_tokens=9, sampling=Sampling(logprobs=2)))
    assert sum([o.logprobs for o in run.outputs], ()) == sum([o.logprobs for o in plain.outputs], ())
    run.check_ended()


def test_ids_before_nan_are_sent_and_nan_at_a_rejected_position_is_ignored(loop) -> None:
    model = FakeModel(nan_permille=1000, nan_positions=20)
    seed = next(s for s in range(200) if model.nan_position(loop().request("a", seed=s).request.row_params(0)) == 8)
    probe = loop(model=model)
    probe.request("a", max_tokens=40, seed=seed)
    answer = probe.expected("a")
    run = loop(model=model, drafter=Given(a=lambda outputs: answer[outputs : outputs + 4]))
    run.finish(run.request("a", max_tokens=20, seed=seed))
    assert run.ids("a") == answer[:3] and [o.end for o in run.outputs] == [None, None, Finish.ERROR]
    wrong = loop(model=model, drafter=Given(a=(1, 2, 3)))
    wrong.finish(wrong.request("a", max_tokens=2, seed=seed))
    assert wrong.ids("a") == answer[:2] and wrong.events_of(Closed)[0].reason is Finish.LENGTH


WALKS = {
    "more than it may": (5, 5, 5, 5, 5),
    "none": (),
    "a draft that is wrong and more": (1, 2),
    "an end before the first difference": (7,),
}


@pytest.mark.parametrize("walk", WALKS)
def test_sampled_ids_must_match_the_drafts(loop, walk: str) -> None:
    run = loop(drafter=Given(a=(7, 8)))
    run.turn(run.request("a", max_tokens=9))
    plan = run.plan()
    with pytest.raises(LawViolation, match="law 4"):
        run.scheduler.commit(plan, Result(plan.step, (WALKS[walk],), bytearray(b"\1")), 0.0)


def test_ids_before_nan_must_match_the_drafts(loop) -> None:
    run = loop(drafter=Given(a=(7, 8)))
    run.turn(run.request("a", max_tokens=9))
    plan = run.plan()
    with pytest.raises(LawViolation, match="law 4"):
        run.scheduler.commit(plan, Result(plan.step, ((9,),), bytearray(b"\0")), 0.0)


def test_laws_check_drafted_positions(loop) -> None:
    run = loop(drafter=Given(a=(7, 8)))
    run.turn(run.request("a", max_tokens=9))
    plan = run.plan()
    laws.check_plan(plan, run.scheduler.limits, run.executor.info.kv)
    for wrong in (replace(plan, sample=bytearray(b"\4")), replace(plan, tokens=plan.tokens[:1] * 0 + type(plan.tokens)("i", [LAST, 7, 8]))):
        with pytest.raises(LawViolation):
            laws.check_plan(wrong, run.scheduler.limits, run.executor.info.kv)
    run.sequence("a").drafted = 99
    with pytest.raises(LawViolation, match="law 4"):
        laws.check(run.scheduler)


def test_scores_of_the_prompt_and_drafts_share_a_step(loop) -> None:
    run = loop(drafter=right(loop, "a", 3), token_budget=16)
    run.turn(run.request("a", max_tokens=30))
    run.turn(run.request("b", 12, max_tokens=3, prompt_logprobs=1))
    run.turn()
    assert any(plan.score and plan.drafts for plan in run.plans)
    run.finish()
    assert sum([len(o.prompt_logprobs) for o in run.outputs if o.prompt_logprobs]) == 11
    assert all(isinstance(each, TokenLogprobs) for o in run.outputs for each in o.prompt_logprobs or ())
    run.check_ended()


def test_without_measured_costs_drafts_are_free_until_steps_are_measured() -> None:
    """As on the numpy runner, which measures no steps."""
    cost = StepCost(())
    assert choose_depths(cost, 2, [(0.9, 0.9, 2)], 1, 8, barrier=True) == [2]
    for step in ((2, 0.1), (4, 0.4)) * 200:
        cost.measured.append(step)
        if len(cost.measured) >= cost.wanted:
            cost.update()
    assert choose_depths(cost, 2, [(0.9, 0.9, 2)], 1, 8, barrier=True) == [0]


def test_drafts_end_shrink_and_come_back(loop) -> None:
    run = loop(drafter=right(loop, "a", 3), depth=2)
    run.turn(run.request("a", max_tokens=40))
    while not (run.tickets and run.tickets[-1].plan.count[0] == 4):
        if run.tickets:
            run.commit()
        run.plan()
    run.apply(SetKnob("num_speculative_tokens", 0))
    assert run.plan() is None, "a step with drafts in flight is a barrier, whatever drafts there will be"
    run.commit()
    before = len(run.plans)
    for _ in range(5):
        run.turn()
    assert {plan.count[0] for plan in run.plans[before:]} == {1}
    before = len(run.plans)
    run.finish(SetKnob("num_speculative_tokens", 1))
    assert max(plan.count[0] for plan in run.plans[before:]) == 2
    run.check_ended()
