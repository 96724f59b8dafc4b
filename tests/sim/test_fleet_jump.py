"""Jumping over steps in which nothing is decided changes no decision, no time and no state."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from ridgeline.core import fast_forward
from ridgeline.core.events import Computed, Scheduled, StepLate, StepTimed
from ridgeline.core.params import Limits
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.core.scheduler import Scheduler
from ridgeline.core.step_time import StepSeconds
from ridgeline.engine.engine import Turn
from ridgeline.errors import LawViolation
from ridgeline.sim.fleet import replica
from ridgeline.sim.fleet.durations import ConstantDurations
from ridgeline.sim.fleet.fleet import Failures, FleetConfig, Scaling
from ridgeline.sim.fleet.replica import ReplicaConfig
from ridgeline.sim.fleet.service import KVTransfer, Service
from ridgeline.sim.fleet.traffic import ClosedLoop, Traffic, exponential, poisson, uniform

FULL, WINDOW = KVGroup("full", (0,)), KVGroup("window", (1,), 24)
POLICIES = ("fcfs", "static", "one")


def world(seed: int) -> tuple[ReplicaConfig, Traffic]:
    """A small server and its load: blocks short or plenty, windows or none, prefixes shared or not."""
    rng = Random(seed)
    groups = ((FULL,), (FULL, WINDOW), (WINDOW,))[seed % 3]
    size = rng.choice((1, 4, 16))
    limits = Limits(
        rows=rng.choice((1, 3, 16)),
        token_budget=rng.choice((4, 32, 256)),
        max_model_len=256,
        max_waiting=10_000,
        prefix_caching=rng.random() < 0.8,
    )
    blocks = len(groups) * (256 // size + 3) * rng.choice((1, 2, 8))
    kv = KVShape(groups, size, blocks, b"jump")
    setting = ReplicaConfig(limits, kv, ConstantDurations(0.01, 0.0003, 1e-6), rng.choice(POLICIES), step_ms=rng.choice((12, 15, 60)))
    if rng.random() < 0.6:
        setting = replace(setting, seconds=StepSeconds(0.01, 0.0, 0.001))  # the last two are wrong, and learned
    traffic = Traffic(
        poisson(rng.choice((0.2, 1.0, 10.0))), uniform(40), exponential(rng.choice((5, 60))), 255, prefixes=rng.choice((0, 2)), shared=30
    )
    return setting, traffic


def state(scheduler: Scheduler) -> dict[str, Any]:
    """Everything that later decisions depend on."""
    pool, index = scheduler.cache.pool, scheduler.cache.index
    return {
        "step": scheduler.step,
        "free": list(pool.free),
        "cached": list(pool.cached),
        "holders": list(pool.holders),
        "published": bytes(pool.published),
        "blocks": {key: (block.ids, tuple(block.block_ids)) for key, block in index.blocks.items()},
        "rows": list(scheduler.lifecycle.rows),
        "limits": scheduler.limits,
        "pace": scheduler.pace and (scheduler.pace.seconds, list(scheduler.pace._measured)),
        "running": [
            (s.number, list(s.known), s.computed, s.scheduled, s.target, s.capacity, s.fast_path_limit, s.tables, s.published, s.last_step)
            for s in scheduler.lifecycle.running
        ],
    }


def decisions(setting: ReplicaConfig, traffic: Traffic, seed: int) -> tuple[list[str], dict[int, str], list[tuple[str, Any]], int]:
    """What was decided, each step's columns, states at the end of turns by step, and the turns taken."""
    said: list[str] = []
    steps: dict[int, str] = {}
    turns = 0

    def watch(turn: Turn) -> None:
        nonlocal turns
        turns += 1
        for event in turn.events:
            if isinstance(event, Scheduled):
                steps[event.step] = repr(event)
            elif not isinstance(event, (Computed, StepTimed, StepLate)):
                said.append(repr(event))

    service = Service(FleetConfig(setting), seed, on_turn=watch)
    (kept,) = service.pools[0].replicas
    tally = service.run(traffic.arrivals(seed, 25))
    columns = [(name, list(getattr(tally.requests, name))) for name in ("arrived", "started", "first", "ended", "cached")]
    return said, steps, [*columns, ("state", state(kept.scheduler)), ("gaps", tally.gaps._counts)], turns


@pytest.mark.parametrize(
    "seeds", [range(30), *[pytest.param(each, marks=pytest.mark.night) for each in (range(30, 60), range(60, 200))]], ids=repr
)
def test_decisions_are_those_of_single_steps(seeds: range) -> None:
    assert compare(seeds) > 20 * len(seeds)


def compare(seeds: range) -> int:
    """Runs each seed with and without jumps; returns the turns that jumps saved."""
    jumped = 0
    for seed in seeds:
        setting, traffic = world(seed)
        slow_said, slow_steps, slow_end, slow_turns = decisions(replace(setting, skips_steps=False), traffic, seed)
        said, steps, end, turns = decisions(setting, traffic, seed)
        # A block evicted within a jump is told at the jump's end: per kind the order is the same.
        assert sorted(said) == sorted(slow_said)
        assert [each for each in said if "Evicted" not in each] == [each for each in slow_said if "Evicted" not in each]
        assert all(slow_steps[step] == columns for step, columns in steps.items())
        assert end == slow_end
        jumped += slow_turns - turns
    return jumped


FLEETS = {
    "routed": {"replicas": 4, "routing": "least-tokens"},
    "failing": {"replicas": 3, "failures": Failures(4.0, repair=1.0)},
    "scaled": {"scaling": Scaling(1, 4, up=1.0, down=1.0, period=0.5, cold_start=0.7)},
}


@pytest.mark.parametrize("kind", [*FLEETS, "closed", "apart"])
def test_a_fleet_is_that_of_single_steps(kind: str) -> None:
    """Whatever a router, a failure, a look at the load or an answer makes of the moment, jumps give every request the same times."""

    def columns(skips_steps: bool) -> tuple[list[list[float]], dict[int, int]]:
        setting, traffic = world(7)
        setting = replace(setting, skips_steps=skips_steps, policy="fcfs", limits=replace(setting.limits, rows=16))
        fleet = FleetConfig(setting, **FLEETS.get(kind, {"replicas": 2}))  # type: ignore[arg-type]
        service = Service(fleet, 3, KVTransfer(fleet, 0.01, 1e-4) if kind == "apart" else None)
        if kind == "closed":
            tally = service.run_closed(ClosedLoop(6, 0.05, uniform(40), exponential(60), 255), 3, 120)
        else:
            tally = service.run(replace(traffic, process=poisson(20.0)).arrivals(3, 120))
        done = tally.requests
        return [list(each) for each in (done.arrived, done.started, done.first, done.ended)], tally.gaps._counts

    found = columns(skips_steps=True)
    assert found == columns(skips_steps=False)
    assert len(found[0][0]) == 120


@pytest.mark.parametrize("broken", ["no publishing", "one step more", "order", "not timed"])
def test_a_wrong_jump_shows(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    right = fast_forward.skip_steps

    def wrong(scheduler: Scheduler, steps: int, token: int, seconds: list[float]) -> None:
        if broken == "no publishing":
            monkeypatch.setattr(scheduler.cache, "publish", lambda sequence: scheduler.cache._mark_published(sequence, 0))
        if broken == "order":
            scheduler.cache.pool.free.sort()
        right(scheduler, steps + (broken == "one step more"), token, [] if broken == "not timed" else seconds)

    monkeypatch.setattr(replica, "skip_steps", wrong)
    with pytest.raises((AssertionError, LawViolation)):
        compare(range(20))
