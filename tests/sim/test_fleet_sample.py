"""A sample of a day in windows says what the whole day says, within its error; looking at a fleet changes nothing of it."""

import json
import subprocess
import sys
from dataclasses import replace
from random import Random

import pytest

from ridgeline.cli.scenarios import make_scenario, parse_changes
from ridgeline.core.params import Limits
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.errors import ConfigError
from ridgeline.planning.objectives import Objective
from ridgeline.sim.fleet.durations import ConstantDurations
from ridgeline.sim.fleet.experiment import compute_interval
from ridgeline.sim.fleet.fleet import FleetConfig
from ridgeline.sim.fleet.measures import SLICES, SimulationReport, Tally
from ridgeline.sim.fleet.replica import ReplicaConfig
from ridgeline.sim.fleet.service import DaySample, Service, simulate_sample
from ridgeline.sim.fleet.traffic import Arrival, Traffic, constant, diurnal, uniform

SERVER = ReplicaConfig(
    Limits(rows=2, token_budget=256, max_model_len=512, max_waiting=10_000, prefix_caching=False),
    KVShape((KVGroup("full", (0,)),), 16, 200, b"sample"),
    ConstantDurations(0.01),
)
FLEET = FleetConfig(SERVER, replicas=3)
PERIOD, RATE = 240.0, 10.0
TRAFFIC = Traffic(diurnal(RATE, 1.8, PERIOD), constant(20), uniform(25), 500)


def whole(seed: int) -> SimulationReport:
    """A whole cycle."""
    arrivals = TRAFFIC.arrivals_within(seed, 0.0, PERIOD)
    return Service(FLEET, seed).run(arrivals).report(Objective(ttft=0.1), measured=PERIOD)


def thin(seed: int, sample: DaySample) -> SimulationReport:
    """A sample of it."""
    tally = simulate_sample(lambda: Service(FLEET, seed), TRAFFIC, sample, seed, lambda ended: None)
    return tally.report(Objective(ttft=0.1), measured=sample.seconds)


def test_a_sample_is_near_the_whole() -> None:
    full = [whole(seed) for seed in range(3)]
    part = [thin(seed, DaySample(0.2, PERIOD, settle=2.0)) for seed in range(5)]
    assert sum(each.requests for each in part) < 0.4 * sum(each.requests for each in full)
    for name in ("output_tokens_per_second", "running", "utilisation", "met"):
        found = compute_interval([getattr(each, name) for each in part])
        expected = compute_interval([getattr(each, name) for each in full])
        assert found.half is not None and expected.half is not None
        assert abs(found.mean - expected.mean) < found.half + expected.half, name
        assert found.half < 0.15 * found.mean, name


def test_windows_lie_in_their_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[float] = []
    arrivals_within = Traffic.arrivals_within

    def noted(self: Traffic, seed: int, start: float, seconds: float):  # type: ignore[no-untyped-def]
        begun.append(start)
        assert seconds == pytest.approx(0.1 * 60 + 2 * 4)
        return arrivals_within(self, seed, start, seconds)

    monkeypatch.setattr(Traffic, "arrivals_within", noted)
    found = thin(1, DaySample(0.1, PERIOD, parts=4, settle=4.0))
    assert [int((start + 4.0) // 60) for start in begun] == [0, 1, 2, 3]
    assert found.seconds == pytest.approx(24) and found.replica_seconds == pytest.approx(72)
    assert found.requests == pytest.approx(RATE * 24, rel=0.25)


def test_a_day_is_told_over_time() -> None:
    """Slices have as many requests each, and times are those of the day; of a whole run and of a sample they say the same."""
    full, part = whole(1).over_time, thin(1, DaySample(0.3, PERIOD, parts=24, settle=2.0)).over_time
    for found in (full, part):
        assert {len(values) for values in found.values()} == {SLICES}
        assert found["time"] == tuple(sorted(found["time"])) and found["time"][0] < PERIOD / 4 and found["time"][-1] > PERIOD * 3 / 4
        middle = slice(SLICES // 3, SLICES * 2 // 3)
        assert min(found["met"][middle]) < 0.9 < found["met"][0] and max(found["ttft"][middle]) > 1.5 * found["ttft"][0]
    assert not thin(1, DaySample(1e-4, PERIOD, parts=2, settle=1.0)).over_time["time"]


@pytest.mark.parametrize("skips_steps", [False, True])
def test_means_over_time_obey_little(skips_steps: bool) -> None:
    """Mean rows = answers a second · seconds in a row (Little 1961), at a load at which servers idle half of the time."""
    fleet = replace(FLEET, replica=replace(SERVER, skips_steps=skips_steps))
    found = Service(fleet, 1).run(TRAFFIC.arrivals_within(1, 0.0, 60.0)).report(Objective())
    served = found.requests * (found.e2e.mean - found.queue.mean)
    assert found.running * found.replica_seconds == pytest.approx(served, rel=1e-6)


def test_looking_changes_nothing() -> None:
    rng = Random(2)
    asked = sorted(rng.uniform(0, 30) for _ in range(150))

    def run(moments: list[float]) -> tuple[Tally, list[Tally]]:
        service = Service(FLEET, 4)
        marks = [service.tally_at(moment) for moment in moments]
        return service.run(Arrival(time, 20, 30) for time in asked), marks

    plain, _ = run([])
    seen, marks = run([rng.uniform(0, 40) for _ in range(60)])
    assert list(seen.requests.ended) == list(plain.requests.ended) and seen.gaps._counts == plain.gaps._counts
    assert all(mark.gap_count <= plain.gap_count for mark in marks) and len({mark.gap_count for mark in marks}) > 20


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (["sample=0.1"], "arrivals=diurnal"),
        (["sample=0.1", "arrivals=diurnal", "requests=5"], "leave requests"),
        (["sample=0.1", "arrivals=diurnal", "autoscale=1:2"], "leave autoscale"),
        (["sample=0", "arrivals=diurnal"], "0.0001 … 1"),
        (["sample=0.1", "arrivals=diurnal", "windows=0"], "1 … 1440"),
    ],
)
def test_a_sample_that_cannot_be(changes: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        make_scenario("llama-3-8b", parse_changes(changes), None)


def test_the_command_tells_what_the_sample_stands_for() -> None:
    settings = ["--set", "step_time=constant:0.05", "--rate", "0.05", "--prompt", "20", "--output", "4", "--sample", "0.01", "--seeds", "2"]
    settings += ["--set", "windows=24"]
    command = [sys.executable, "-c", "from ridgeline.cli.main import main; main()", "sim", "llama-3-8b", *settings]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "of days of 4,300" in said.replace("\n", " ") and "24 windows per day; 95 %" in said.replace("\n", " ")
    found = json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60, check=True).stdout)
    assert found["runs"][0]["seconds"]["mean"] == pytest.approx(864)


def test_a_sample_of_nothing_is_nothing() -> None:
    empty = replace(TRAFFIC, process=diurnal(1e-6, 1.8, PERIOD))
    tally = simulate_sample(lambda: Service(FLEET, 1), empty, DaySample(0.1, PERIOD, parts=2, settle=1.0), 1, lambda ended: None)
    assert len(tally.requests) == 0 and tally.replica_seconds == pytest.approx(72)
