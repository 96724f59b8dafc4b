"""Clients who leave, and work in the background: what is counted, what is freed, and whom a priority serves."""

from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.cli.scenarios import make_scenario, parse_changes
from ridgeline.core.params import Limits
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.planning.objectives import Objective
from ridgeline.sim.fleet.durations import ConstantDurations
from ridgeline.sim.fleet.fleet import Failures, FleetConfig
from ridgeline.sim.fleet.measures import SimulationReport
from ridgeline.sim.fleet.replica import ReplicaConfig
from ridgeline.sim.fleet.service import Service
from ridgeline.sim.fleet.traffic import ClosedLoop, Traffic, constant, poisson, read_trace, uniform

SERVER = ReplicaConfig(
    Limits(rows=4, token_budget=64, max_model_len=512, max_waiting=10_000, prefix_caching=False),
    KVShape((KVGroup("full", (0,)),), 16, 400, b"clients"),
    ConstantDurations(0.01),
)
LOAD = Traffic(poisson(30.0), constant(20), uniform(20), 500)
"""A third more than the server can answer."""


@pytest.mark.parametrize("fleet", [FleetConfig(SERVER), FleetConfig(SERVER, 2, failures=Failures(3.0, repair=1.0))])
@pytest.mark.parametrize("skips_steps", [True, False])
def test_everybody_is_answered_or_leaves(fleet: FleetConfig, skips_steps: bool) -> None:
    setting = replace(fleet, replica=replace(SERVER, skips_steps=skips_steps), patience=0.5)
    service = Service(setting, 1)
    kept = service.pools[0].replicas
    found = service.run(LOAD.arrivals(1, 400)).report(Objective())
    assert found.requests + found.aborted == 400 and found.aborted > 20
    assert found.e2e.p99 <= 0.5 + 0.01 and found.met == pytest.approx(found.requests / 400)
    if fleet.failures is None:
        assert all(replica.scheduler.cache.pool.held == 0 and not replica.scheduler.lifecycle.open for replica in kept)
    patient = Service(replace(setting, patience=None), 1).run(LOAD.arrivals(1, 400)).report(Objective())
    assert patient.aborted == 0 and patient.e2e.p99 > 1.0


def test_jumps_change_nothing_for_those_who_leave() -> None:
    def ends(skips_steps: bool) -> list[float]:
        config = FleetConfig(replace(SERVER, skips_steps=skips_steps), patience=0.7)
        return list(Service(config, 1).run(LOAD.arrivals(3, 300)).requests.ended)

    assert ends(skips_steps=True) == ends(skips_steps=False)


def test_users_who_left_ask_again() -> None:
    loop = ClosedLoop(12, 0.0, constant(20), constant(30), 500)
    tally = Service(FleetConfig(SERVER, patience=0.4), 1).run_closed(loop, 1, 200)
    assert len(tally.requests) + tally.aborted == 200 and 0 < tally.aborted < 200


def served(policy: str, background: float) -> SimulationReport:
    """A load that a server can just answer, some of it in the background."""
    load = replace(LOAD, process=poisson(21.0), background=background)
    setting = FleetConfig(replace(SERVER, policy=policy), ttft_ms=200)
    return Service(setting, 2).run(load.arrivals(2, 800)).report(Objective(ttft=0.2))


@pytest.mark.parametrize("policy", ["priority", "slo"])
def test_the_foreground_is_served_first(policy: str) -> None:
    fair, urgent = served("fcfs", 0.5), served(policy, 0.5)
    assert urgent.ttft.p90 < 0.5 * fair.ttft.p90 and urgent.met > fair.met
    assert urgent.ttft.p99 < 0.5 * fair.ttft.p99 or policy == "slo", "who is late lets others be in time"
    assert urgent.background.mean > fair.background.mean > 0
    assert urgent.requests == fair.requests == 800
    assert urgent.output_tokens_per_second == pytest.approx(fair.output_tokens_per_second, rel=0.05)
    assert served("fcfs", 0.0).background.mean == 0


def test_levels_come_from_settings_and_traces(tmp_path: Path) -> None:
    load = make_scenario("llama-3-8b", parse_changes(["background=0.25", "patience=9"]), None).load
    assert isinstance(load, Traffic)
    levels = [arrival.level for arrival in load.arrivals(1, 2000)]
    assert sum(levels) == pytest.approx(500, rel=0.1)
    path = tmp_path / "own.jsonl"
    path.write_text('{"time": 2, "prompt": 3, "output": 4, "level": 1}\n{"time": 5, "prompt": 3, "output": 4}\n')
    assert [(each.time, each.level) for each in read_trace(path)] == [(0.0, 1), (3.0, 0)]
