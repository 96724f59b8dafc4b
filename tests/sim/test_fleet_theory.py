"""One server, one request at a time, is a textbook queue: waits follow Lindley's recursion exactly and the closed forms on average."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from ridgeline.core.params import Limits
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.sim.fleet.durations import ConstantDurations
from ridgeline.sim.fleet.experiment import compute_interval
from ridgeline.sim.fleet.fleet import FleetConfig
from ridgeline.sim.fleet.replica import ReplicaConfig
from ridgeline.sim.fleet.service import Service
from ridgeline.sim.fleet.traffic import Arrival, LengthDistribution, Traffic, constant, exponential, poisson

STEP = 0.001
SERVER = ReplicaConfig(
    Limits(rows=1, token_budget=64, max_model_len=1 << 20, max_waiting=1 << 20, prefix_caching=False),
    KVShape((KVGroup("full", (0,)),), 4096, 64, b"queue"),
    ConstantDurations(STEP),
)


def waits(arrivals: Iterator[Arrival]) -> list[float]:
    requests = Service(FleetConfig(SERVER), 0).run(arrivals).requests
    return [start - came for start, came in zip(requests.started, requests.arrived, strict=True)]


def test_what_the_front_end_takes_comes_behind_the_steps() -> None:
    """A client sees its tokens that much later; the engine starts nobody later for it."""
    asked = [Arrival(0.02 * number, 1, 30) for number in range(50)]
    bare, behind = (
        Service(FleetConfig(replace(SERVER, front_end_seconds=seconds)), 0).run(iter(asked)).requests for seconds in (0.0, 0.01)
    )
    assert list(behind.started) == list(bare.started)
    assert list(behind.first) == pytest.approx([time + 0.01 for time in bare.first])
    assert list(behind.ended) == pytest.approx([time + 0.01 for time in bare.ended])


def mean_wait(draw: LengthDistribution, load: float, count: int, seed: int, tokens: int) -> float:
    """Mean wait in units of the mean service time."""
    rate = load / (tokens * STEP)
    found = waits(Traffic(poisson(rate), constant(1), draw).arrivals(seed, count))
    return sum(found) / len(found) / (tokens * STEP)


def test_every_wait_is_lindleys() -> None:
    """Wait of the next = max(0, wait + service − gap). A request that comes while nothing runs starts at once."""
    rng = Random(5)
    asked, now = [], 0.0
    for _ in range(2000):
        now += rng.expovariate(1 / 0.06)
        asked.append(Arrival(now, 1, rng.randint(1, 90)))
    expected, wait = [], 0.0
    for before, after in zip([None, *asked], asked, strict=False):
        wait = 0.0 if before is None else max(0.0, wait + before.output * STEP - (after.time - before.time))
        expected.append(wait)
    assert waits(iter(asked)) == pytest.approx(expected, abs=1e-6)
    assert max(expected) > 0.1


def whole(mean: float) -> LengthDistribution:
    """Exponential lengths rounded up to whole tokens, of this mean; their squared coefficient of variation is 1 − 1 / mean."""
    return exponential(mean - 0.5)


TOKENS, LOAD = 20, 0.5
FORMS = [("M/M/1", whole(TOKENS), 1 - 1 / TOKENS), ("M/D/1", constant(TOKENS), 0.0)]
"""Queue, lengths, and their squared coefficient of variation."""


def closed_form(variation: float) -> float:
    """Pollaczek and Khinchine: ρ (1 + cv²) / (2 (1 − ρ)), in units of the mean service time."""
    return LOAD * (1 + variation) / (2 * (1 - LOAD))


@pytest.mark.parametrize(("name", "draw", "variation"), FORMS[:1])
def test_mean_waits_are_near_the_closed_form(name: str, draw: LengthDistribution, variation: float) -> None:
    assert mean_wait(draw, LOAD, 12_000, 3, TOKENS) == pytest.approx(closed_form(variation), rel=0.08), name


@pytest.mark.night
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("name", "draw", "variation"), FORMS)
def test_mean_waits_are_within_two_percent(name: str, draw: LengthDistribution, variation: float) -> None:
    """600,000 requests. Chance alone moves the mean wait of so many by 0.7 % (M/M/1, Daley 1968), so 2 % are three deviations."""
    found = compute_interval([mean_wait(draw, LOAD, 60_000, seed, TOKENS) for seed in range(10)])
    expected = closed_form(variation)
    print(f"{name}: {found.mean:.4f} ± {found.half:.4f} against {expected:.4f}, {found.mean / expected - 1:+.2%}")
    assert found.mean == pytest.approx(expected, rel=0.02), name
