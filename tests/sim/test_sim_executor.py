"""The KV oracle: right plans pass, each kind of wrong block is caught in its step."""

from array import array

import pytest

from ridgeline.core.params import RowParams, Sampling
from ridgeline.core.plan import LAST, NewRow, Plan
from ridgeline.errors import LawViolation
from ridgeline.sim.laws.executor import SimExecutor, fake_executor
from ridgeline.sim.laws.model import FakeModel, chain_stamps

PARAMS = RowParams(seed=5, choice=0, prompt_tokens=6)
PROMPT = (3, 1, 4, 1, 5, 9)


def plan(step: int, rows: list[tuple[int, int, list[int], int]], **delta: object) -> Plan:
    """`rows`: (row, start, tokens, sample)."""
    tokens: list[int] = []
    for _, _, ids, _ in rows:
        tokens += ids
    return Plan(
        step=step,
        row=array("i", [r[0] for r in rows]),
        start=array("i", [r[1] for r in rows]),
        count=array("i", [len(r[2]) for r in rows]),
        tokens=array("i", tokens),
        sample=bytearray(r[3] for r in rows),
        **delta,  # type: ignore[arg-type]
    )


def new(row: int, tables: tuple[tuple[int, ...], ...], ids: tuple[int, ...] = PROMPT, params: RowParams = PARAMS) -> NewRow:
    return NewRow(row, row, params, ids, tables)


def run(executor: SimExecutor, *plans: Plan) -> list[tuple[tuple[int, ...], ...]]:
    return [executor.collect(executor.submit(each)).sampled for each in plans]


def expected(count: int, params: RowParams = PARAMS, model: FakeModel | None = None) -> list[int]:
    model = model or FakeModel()
    ids = list(PROMPT)
    for _ in range(count):
        ids.append(model.sample(chain_stamps(model.origin(params), ids)[-1], params, len(ids)))
    return ids[len(PROMPT) :]


def tiny(windows: tuple[int, ...] = (0, 3)) -> SimExecutor:
    return fake_executor(rows=4, blocks=16, block_tokens=2, windows=windows)


def start() -> Plan:
    return plan(0, [(0, 0, list(PROMPT[:4]), 0)], new_rows=(new(0, ((1, 2, 3), (4, 5, 6))),))


def test_chunked_then_one_by_one_equals_the_sequential_oracle() -> None:
    second = plan(1, [(0, 4, list(PROMPT[4:]), 1)])
    third = plan(2, [(0, 6, [LAST], 1)], blocks=((0, 0, 3, (7,)), (0, 1, 3, (4,))))
    sampled = run(tiny(), start(), second, third)
    assert [ids[0] for ids in sampled] == [(), *((i,) for i in expected(2))]


def test_seeds_and_choices_differ_and_greedy_does_not() -> None:
    import dataclasses

    other = dataclasses.replace(PARAMS, choice=1)
    assert expected(8) != expected(8, other)
    cold = dataclasses.replace(PARAMS, sampling=Sampling(temperature=0.0))
    assert expected(8, cold) == expected(8, dataclasses.replace(cold, seed=9, choice=3))


def test_several_steps_are_in_flight() -> None:
    executor = tiny((0,))
    first = plan(0, [(0, 0, list(PROMPT), 1)], new_rows=(new(0, ((1, 2, 3, 4),)),))
    tickets = [executor.submit(first)] + [executor.submit(plan(step, [(0, 5 + step, [LAST], 1)])) for step in (1, 2)]
    assert executor.peak_in_flight == 3
    assert [executor.collect(ticket).sampled[0][0] for ticket in tickets] == expected(3)
    with pytest.raises(RuntimeError, match="not the oldest"):
        executor.collect(tickets[0])


WRONG = {
    "a block that was never written": plan(1, [(1, 4, list(PROMPT[4:]), 1)], new_rows=(new(1, ((7, 8, 9), (0, 5, 10))),)),
    "a block of the other group": plan(1, [(1, 4, list(PROMPT[4:]), 1)], new_rows=(new(1, ((1, 5, 9), (0, 5, 10))),)),
    "the right blocks in the wrong order": plan(1, [(1, 4, list(PROMPT[4:]), 1)], new_rows=(new(1, ((2, 1, 9), (0, 5, 10))),)),
    "a block behind the window freed too early": plan(1, [(1, 4, list(PROMPT[4:]), 1)], new_rows=(new(1, ((1, 2, 9), (0, 0, 10))),)),
    "another prompt": plan(1, [(1, 4, [5, 9], 1)], new_rows=(new(1, ((1, 2, 9), (0, 5, 10)), (3, 1, 4, 2, 5, 9)),)),
    "a write into a shared block": plan(1, [(1, 2, [7, 7], 1), (0, 4, [5, 9], 1)], new_rows=(new(1, ((1, 2), (4, 5)), (3, 1, 7, 7)),)),
    "wrong ids": plan(1, [(0, 4, [5, 8], 1)]),
    "a start off by one": plan(1, [(0, 5, [9], 1)]),
    "an id not sampled yet": plan(1, [(0, 4, [LAST], 0)]),
    "a sample in the middle of what is known": plan(1, [(0, 4, [5], 1)]),
    "a row that is not resident": plan(1, [(2, 0, [5], 1)]),
    "a block short": plan(1, [(0, 4, [5, 9, LAST], 1)]),
    "an empty plan": plan(1, []),
    "a table with a hole": plan(1, [(0, 4, [5, 9], 1)], blocks=((0, 0, 4, (7,)),)),
    "a block that does not exist": plan(1, [(0, 4, [5, 9], 1)], blocks=((0, 0, 3, (17,)),)),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_plans_are_caught_in_their_step(wrong: str) -> None:
    executor = tiny()
    run(executor, start())
    with pytest.raises(LawViolation):
        run(executor, WRONG[wrong])


def test_a_correct_prefix_hit_passes() -> None:
    executor = tiny()
    hit = plan(1, [(1, 4, list(PROMPT[4:]), 1)], new_rows=(new(1, ((1, 2, 9), (0, 5, 10))),))
    assert run(executor, start(), hit)[1][0] == tuple(expected(1))


def test_a_page_of_a_step_in_flight_is_not_handed_out() -> None:
    executor = tiny()
    executor.submit(start())
    with pytest.raises(LawViolation, match="in flight"):
        executor.submit(plan(1, [(1, 0, [5], 1)], new_rows=(new(1, ((3,), (9,)), (5,)),)))


def test_a_hit_across_identities_is_law_9() -> None:
    import dataclasses

    executor = fake_executor(rows=4, blocks=16, block_tokens=2, windows=(0, 3), model=FakeModel(identities=2))
    other = dataclasses.replace(PARAMS, seed=6)
    run(executor, start())
    with pytest.raises(LawViolation, match="law 9"):
        run(executor, plan(1, [(1, 4, [5, 9], 1)], new_rows=(new(1, ((1, 2, 9), (0, 5, 10)), params=other),)))


def test_nan_is_reported_in_a_chunk_that_does_not_sample_and_poisons_what_follows() -> None:
    model = FakeModel(nan_permille=1000, nan_positions=1)
    executor = fake_executor(rows=4, blocks=16, block_tokens=2, windows=(0,), model=model)
    first = plan(0, [(0, 0, list(PROMPT[:4]), 0)], new_rows=(new(0, ((1, 2, 3),)),))
    assert executor.collect(executor.submit(first)).finite == b"\0"
    with pytest.raises(LawViolation):
        run(executor, plan(1, [(1, 4, [5, 9], 1)], new_rows=(new(1, ((1, 2, 9),)),)))


def test_modelled_time_passes() -> None:
    executor = fake_executor(step_seconds=0.01, token_seconds=0.001)
    result = executor.collect(executor.submit(plan(0, [(0, 0, list(PROMPT), 1)], new_rows=(new(0, ((1,),)),))))
    assert result.timings.run == pytest.approx(0.016)
