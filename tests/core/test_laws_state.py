"""The checks of `core/laws.py` fail on broken states, each with the number of its law."""

from array import array
from collections.abc import Callable
from dataclasses import replace

import pytest

from ridgeline.core import laws
from ridgeline.core.sequence import State
from ridgeline.errors import LawViolation


def state(run, name: str, value: object) -> None:
    setattr(run.sequence("a"), name, value)


BROKEN: dict[str, tuple[int, Callable[..., object]]] = {
    "queued in one state, being in another": (1, lambda run: state(run, "state", State.ENDED)),
    "a block lost": (2, lambda run: run.scheduler.cache.pool.free.pop()),
    "a holder miscounted": (2, lambda run: run.scheduler.cache.pool.holders.__setitem__(1, 2)),
    "a table without its last block": (2, lambda run: run.sequence("a").tables[0].pop()),
    "a block free twice": (2, lambda run: run.scheduler.cache.pool.free.append(run.scheduler.cache.pool.free[0])),
    "a published block that will be written": (3, lambda run: [state(run, name, 2) for name in ("computed", "scheduled")]),
    "a block whose ids are not its contents": (3, lambda run: run.sequence("a").known.__setitem__(0, 499)),
    "a block shared before it was published": (3, lambda run: _share_unpublished(run)),
    "a window block let go too early": (3, lambda run: run.sequence("a").tables[1].__setitem__(1, 0)),
    "an index that leads nowhere": (3, lambda run: run.scheduler.cache.index.blocks.popitem()),
    "computed beyond scheduled": (4, lambda run: state(run, "computed", 99)),
    "more promised than can be": (4, lambda run: state(run, "target", 99)),
    "a promise with nothing in flight": (4, lambda run: state(run, "target", len(run.sequence("a").known) + 1)),
    "more rows than there are": (5, lambda run: run.scheduler.lifecycle.rows.append(3)),
    "a ready one overtaken": (6, lambda run: setattr(run.scheduler.lifecycle.waiting[0], "overtaken", 1)),
    "a block shared across tenants": (9, lambda run: state(run, "identity", b"another")),
}


def _share_unpublished(run) -> None:
    one, two = run.sequence("a"), run.sequence("b")
    block_id = one.tables[0][-1]
    run.scheduler.cache.pool.drop(two.tables[0][-1])
    two.tables[0][-1] = block_id
    run.scheduler.cache.pool.hold(block_id)


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_law_is_named(loop, broken: str) -> None:
    run = loop(rows=2, windows=(0, 8))
    run.turn(run.request("a", 11, max_tokens=30), run.request("b", 7, max_tokens=30), run.request("c", 5))
    run.turn()
    law, breaks = BROKEN[broken]
    breaks(run)
    with pytest.raises(LawViolation) as caught:
        laws.check_full(run.scheduler)
    assert caught.value.law == law


IDLE: dict[str, Callable[..., object]] = {
    "a step that still holds a block": lambda run: run.scheduler.cache.pool.held_by_steps.update({3: []}),
    "a row that is not back": lambda run: run.scheduler.lifecycle.rows.pop(),
    "a block still expected": lambda run: run.scheduler.cache.index.computing.update({b"": None}),
}


@pytest.mark.parametrize("broken", IDLE)
def test_idle_means_that_all_blocks_and_rows_are_free(loop, broken: str) -> None:
    run = loop()
    run.finish(run.request("a", 11))
    IDLE[broken](run)
    with pytest.raises(LawViolation) as caught:
        laws.check_full(run.scheduler)
    assert caught.value.law == 14


@pytest.mark.parametrize(
    "columns",
    [
        {"count": array("i", [17])},
        {"row": array("i", [9])},
        {"tokens": array("i", [1])},
        {"sample": bytearray(b"\x0c")},
        {"score": ((0, 3, 9),)},
        {"count": array("i")},
        {"blocks": ((0, 0, 0, (999,)),)},
    ],
)
def test_a_plan_beyond_its_bounds_is_law_5(loop, columns: dict[str, object]) -> None:
    run = loop(token_budget=16)
    run.apply(run.request("a", 11))
    plan = run.plan()
    laws.check_plan(plan, run.scheduler.limits, run.executor.info.kv)
    with pytest.raises(LawViolation, match="law 5"):
        laws.check_plan(replace(plan, **columns), run.scheduler.limits, run.executor.info.kv)
