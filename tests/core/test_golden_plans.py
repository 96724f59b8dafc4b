"""Golden traces: what the scheduler plans in small scenarios, as text to read.

A changed line is a changed decision: read it, and keep it only if it is meant.
`pytest tests/core/test_golden_plans.py --write-golden` writes all anew.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from ridgeline.core import events
from ridgeline.core.commands import Abort, Close
from ridgeline.core.events import Finish
from ridgeline.core.plan import LAST, Plan
from ridgeline.sim.laws.model import FakeModel

GOLDEN = Path(__file__).parent / "golden"
REPORTED = (
    events.Rejected,
    events.Waiting,
    events.Ready,
    events.Started,
    events.PrefixHit,
    events.Preempted,
    events.Evicted,
    events.EndedProvisionally,
    events.Closed,
)


def chunks_beside_decode(loop):
    run = loop(token_budget=8, rows=4)
    run.turn(run.request("a", 5, max_tokens=6))
    run.turn(run.request("b", 18, max_tokens=3))
    return run


def burst_shares_a_prefix(loop):
    run = loop(token_budget=32, rows=4)
    run.turn(*[run.request(f"r{i}", (*range(50, 66), i), max_tokens=2) for i in range(3)])
    return run


def preempted_and_resumed(loop):
    run = loop(blocks=6, rows=3, token_budget=16)
    run.turn(run.request("old", 6, max_tokens=12), run.request("young", 6, max_tokens=9))
    return run


def preempted_two_steps_deep(loop):
    run = loop(blocks=9, rows=2, block_tokens=2, depth=2)
    run.turn(run.request("old", 3, max_tokens=15), run.request("young", 4, max_tokens=11))
    return run


def four_steps_deep_with_a_late_stop(loop):
    run = loop(depth=4, model=FakeModel(stop_ids=(1,), stop_permille=250))
    run.turn(run.request("a", 3, max_tokens=20, stop_ids=frozenset({1}), min_tokens=2), run.request("b", 4, max_tokens=7))
    return run


def window_group_frees_blocks(loop):
    run = loop(windows=(0, 5), block_tokens=2, blocks=30, token_budget=6)
    run.turn(run.request("a", 9, max_tokens=6))
    return run


def choices_of_one_request(loop):
    run = loop(prefix_caching=False, token_budget=16)
    run.turn(run.request("a", 9, max_tokens=3, choices=3))
    return run


def higher_class_preempts(loop):
    run = loop(policy="priority", rows=2)
    run.turn(run.request("low0", 5, max_tokens=6, priority=5), run.request("low1", 5, max_tokens=6, priority=5))
    run.turn(run.request("high", 5, max_tokens=3, priority=0))
    return run


def closes_and_aborts(loop):
    run = loop(depth=2)
    run.turn(*[run.request(name, 4, max_tokens=4, two_phase=True) for name in ("early", "late", "gone")])
    run.turn(Close("early", 0, 1, Finish.STOP), Abort("gone"))
    for _ in range(3):
        run.turn()
    run.turn(Close("late", 0, 3, Finish.STOP), Abort("late"))
    return run


def a_scored_prompt_is_not_taken_from_the_cache(loop):
    run = loop(token_budget=6)
    run.finish(run.request("a", tuple(range(50, 59)), max_tokens=2))
    run.turn(run.request("b", tuple(range(50, 59)), max_tokens=2, prompt_logprobs=1), run.request("c", tuple(range(50, 59)), max_tokens=2))
    return run


SCENARIOS = (
    chunks_beside_decode,
    burst_shares_a_prefix,
    preempted_and_resumed,
    preempted_two_steps_deep,
    four_steps_deep_with_a_late_stop,
    window_group_frees_blocks,
    choices_of_one_request,
    higher_class_preempts,
    closes_and_aborts,
    a_scored_prompt_is_not_taken_from_the_cache,
)


def events_of(event: events.Event) -> str:
    match event:
        case events.Rejected():
            return f"{event.request_id} rejected: {event.message}"
        case events.Evicted():
            return f"block {event.block_id} evicted"
        case events.Waiting():
            return f"{event.request_id}/{event.choice} waits for {event.reason}" + (f" of {event.blocker}" if event.blocker else "")
        case events.Ready():
            return f"{event.request_id}/{event.choice} waits for {event.reason} no more"
        case events.Started():
            return f"{event.request_id}/{event.choice} {'resumes' if event.resumed else 'starts'} as sequence {event.sequence}"
        case events.PrefixHit():
            return f"{event.request_id}/{event.choice} takes {event.tokens} tokens from the prefix cache"
        case events.Preempted():
            return f"{event.request_id}/{event.choice} preempted by {event.by} for its {event.why}"
        case events.EndedProvisionally():
            return f"{event.request_id}/{event.choice} ends provisionally: {event.reason}"
        case events.Closed():
            usage = event.usage
            counts = f"{usage.prompt_tokens} + {usage.completion_tokens} tokens, {usage.cached_tokens} cached"
            return f"{event.request_id}/{event.choice} closed: {event.reason}, {counts}"
    raise AssertionError(event)


def planned(plan: Plan) -> list[str]:
    lines = [f"step {plan.step}" + (f"  frees rows {list(plan.freed_rows)}" if plan.freed_rows else "")]
    for new in plan.new_rows:
        lines.append(f"  row {new.row} is sequence {new.sequence}, {len(new.ids)} ids, tables {list(map(list, new.tables))}")
    lines += [f"  row {row} group {group} block {first}: blocks {list(blocks)}" for row, group, first, blocks in plan.blocks if blocks]
    at = 0
    for i, row in enumerate(plan.row):
        ids = plan.tokens[at : at + plan.count[i]]
        at += plan.count[i]
        last_id = " (its last sampled id)" if ids[-1] == LAST else ""
        samples = ", samples" if plan.sample[i] else ""
        scored = [(plan.start[i] + first, plan.start[i] + first + count - 1) for index, first, count in plan.score if index == i]
        scores = "".join([f", scores {first} … {last}" for first, last in scored])
        lines.append(f"  row {row} computes {plan.start[i]} … {plan.start[i] + plan.count[i] - 1}{last_id}{scores}{samples}")
    return lines


def trace(run) -> str:
    plans = {plan.step: plan for plan in run.plans}
    lines: list[str] = []
    for event in run.events:
        if isinstance(event, events.Scheduled):
            lines += planned(plans[event.step])
        elif isinstance(event, events.Computed):
            lines.append(f"step {event.step} committed")
        elif isinstance(event, REPORTED):
            lines.append(events_of(event))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.__name__)
def test_plans_are_those_of_the_golden_trace(loop, scenario: Callable, request: pytest.FixtureRequest) -> None:
    run = scenario(loop).finish()
    run.check_ended()
    path = GOLDEN / f"{scenario.__name__}.txt"
    if request.config.getoption("--write-golden"):
        path.write_text(trace(run))
    assert trace(run) == path.read_text()


def test_every_golden_trace_has_its_scenario() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == {scenario.__name__ for scenario in SCENARIOS}
