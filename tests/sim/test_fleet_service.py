"""Fleets: routing, prefixes, scaling, failures, separate pools, closed loops. What must hold is known before the run."""

from array import array
from dataclasses import replace
from statistics import median

import pytest

from ridgeline.cli.scenarios import make_scenario
from ridgeline.core.params import Limits
from ridgeline.core.plan import KVGroup, KVShape, Plan
from ridgeline.core.routing import ROUTING, ReplicaLoad, RoutedRequest
from ridgeline.core.step_time import StepSeconds
from ridgeline.planning.objectives import Objective
from ridgeline.planning.step import RowGroup, pass_seconds, step_work
from ridgeline.sim.fleet.durations import (
    ConstantDurations,
    DurationsWithSpread,
    ObservedStep,
    RooflineDurations,
    fit_constant,
    prompt_factors,
)
from ridgeline.sim.fleet.fleet import Failures, FleetConfig, Outage, Scaling
from ridgeline.sim.fleet.measures import SimulationReport
from ridgeline.sim.fleet.replica import ReplicaConfig
from ridgeline.sim.fleet.service import DecodePoolDurations, KVTransfer, Service
from ridgeline.sim.fleet.traffic import Arrival, ClosedLoop, Traffic, bursty, constant, diurnal, lognormal, poisson

SERVER = ReplicaConfig(
    Limits(rows=16, token_budget=512, max_model_len=4096, max_waiting=1 << 20),
    KVShape((KVGroup("full", (0,)),), 16, 1200, b"fleet"),
    ConstantDurations(0.01, 0.0001),
)
LOAD = Traffic(poisson(8.0), lognormal(200), lognormal(40), max_tokens=4095)


def figures(setting: FleetConfig, traffic: Traffic = LOAD, count: int = 300, seed: int = 1) -> SimulationReport:
    return Service(setting, seed).run(traffic.arrivals(seed, count)).report(Objective(1.0, 0.05))


def test_the_same_seed_gives_the_same_report() -> None:
    assert figures(FleetConfig(SERVER, 3, "two-choices")) == figures(FleetConfig(SERVER, 3, "two-choices"))
    assert figures(FleetConfig(SERVER, 3)) != figures(FleetConfig(SERVER, 3), seed=2)


@pytest.mark.parametrize("routing", ROUTING)
def test_every_request_is_answered_once(routing: str) -> None:
    found = figures(FleetConfig(SERVER, 3, routing))
    assert found.requests == 300 and found.rejected == found.aborted == 0


def test_a_policy_that_looks_is_better_than_chance() -> None:
    busy = replace(LOAD, process=poisson(14.0))
    by_chance, looking = (figures(FleetConfig(SERVER, 4, name), busy, 600).e2e.p99 for name in ("random", "least-requests"))
    assert looking < by_chance


def test_routing_by_prefix_finds_more_in_the_caches() -> None:
    small = replace(SERVER, kv=replace(SERVER.kv, blocks=400))
    talk = Traffic(poisson(4.0), constant(600), constant(10), prefixes=12, shared=512)
    compute_percentiles, together = (figures(FleetConfig(small, 4, name), talk).cached_share for name in ("round-robin", "prefix"))
    assert together > compute_percentiles + 0.1


def test_a_crowded_home_is_passed_over() -> None:
    loads = [ReplicaLoad(number) for number in range(4)]
    home = ROUTING["prefix"](loads, RoutedRequest(0, 10, b"x"), 0.5)
    home.requests = 9
    other = ROUTING["prefix"](loads, RoutedRequest(0, 10, b"x"), 0.5)
    assert other is not home


def test_replicas_come_after_their_cold_start_and_go() -> None:
    rush = replace(LOAD, process=bursty(6.0, burst=4.0, cycle=200.0))
    one = figures(FleetConfig(SERVER, 1), rush, 1500)
    scaled = figures(FleetConfig(SERVER, 1, scaling=Scaling(1, 6, up=4, down=4, period=2.0, cold_start=5.0)), rush, 1500)
    late = figures(FleetConfig(SERVER, 1, scaling=Scaling(1, 6, up=4, down=4, period=2.0, cold_start=60.0)), rush, 1500)
    assert scaled.e2e.p99 < late.e2e.p99 and scaled.e2e.p99 < one.e2e.p99
    assert scaled.replica_seconds < 6 * scaled.seconds
    assert scaled.requests == one.requests == 1500


def test_failures_cost_time_but_no_request() -> None:
    calm = figures(FleetConfig(SERVER, 3), count=500)
    failing = figures(FleetConfig(SERVER, 3, failures=Failures(between=15.0, repair=5.0)), count=500)
    assert failing.requests == 500 and failing.e2e.p99 > calm.e2e.p99


def test_a_zone_that_fails_loses_no_request() -> None:
    """What it computed is computed again elsewhere; without a replica left, requests wait until the first is back."""
    calm = figures(FleetConfig(SERVER, 3), count=500)
    short = figures(FleetConfig(SERVER, 3, outage=Outage(20.0, 5.0, 1 / 3)), count=500)
    whole = figures(FleetConfig(SERVER, 3, outage=Outage(20.0, 30.0, 1.0)), count=500)
    assert calm.requests == short.requests == whole.requests == 500
    assert calm.e2e.mean < short.e2e.mean < whole.e2e.mean and whole.e2e.p99 > 20
    assert short.replica_seconds == pytest.approx(3 * short.seconds - 5.0, abs=1.0)


def test_the_only_replica_may_fail() -> None:
    assert figures(FleetConfig(SERVER, 1, failures=Failures(between=5.0, repair=3.0)), count=100).requests == 100


def test_separate_pools_keep_prompts_out_of_answers() -> None:
    """One long prompt beside streams: in one pool its chunks slow every gap, in two they do not."""
    mixed = Traffic(poisson(3.0), constant(3000), constant(100))
    together = figures(FleetConfig(SERVER, 2), mixed, 120)
    limits = replace(SERVER.limits, token_budget=8192)
    pool = FleetConfig(replace(SERVER, limits=limits, durations=DecodePoolDurations(SERVER.durations)), 1)
    handover = KVTransfer(pool, latency=0.001, token=1e-6)
    apart = Service(FleetConfig(SERVER, 1), 1, handover).run(mixed.arrivals(1, 120)).report(Objective())
    assert apart.requests == together.requests == 120
    assert apart.itl.p99 < together.itl.p99 / 2
    assert apart.output_tokens_per_second * apart.seconds == pytest.approx(120 * 100)


def test_the_transfer_is_waited_for() -> None:
    pool = FleetConfig(replace(SERVER, durations=DecodePoolDurations(SERVER.durations)), 1)
    quick, slow = (
        Service(FleetConfig(SERVER, 1), 1, KVTransfer(pool, latency, 0.0)).run([Arrival(0.0, 100, 20)]).report(Objective()).e2e.mean
        for latency in (0.0, 0.5)
    )
    assert slow == pytest.approx(quick + 0.5)


def test_a_closed_loop_never_has_more_open_than_users() -> None:
    found = Service(FleetConfig(SERVER, 1), 1).run_closed(ClosedLoop(5, 0.1, constant(50), constant(20)), 1, 200).report(Objective())
    assert found.requests == 200 and found.running <= 5 and found.queue.p99 < 0.02


def test_a_closed_loop_obeys_littles_law() -> None:
    """Users = rate · (response + think)."""
    found = Service(FleetConfig(SERVER, 1), 1).run_closed(ClosedLoop(12, 1.0, constant(50), constant(40)), 1, 2000).report(Objective())
    assert found.requests_per_second * (found.e2e.mean + 1.0) == pytest.approx(12, rel=0.03)


@pytest.mark.parametrize(("process", "mean"), [(poisson(5.0), 5.0), (bursty(5.0), 5.0), (diurnal(5.0, 1.8, 600.0), 5.0)])
def test_arrivals_have_their_mean_rate(process, mean) -> None:  # type: ignore[no-untyped-def]
    times = [arrival.time for arrival in Traffic(process, constant(1), constant(1)).arrivals(7, 30_000)]
    assert len(times) / times[-1] == pytest.approx(mean, rel=0.03)
    assert times == sorted(times)


def test_a_step_log_gives_its_constants_back() -> None:
    true = ConstantDurations(0.012, 3e-5, 2e-7)
    log = [ObservedStep(t, c, true.step + true.token * t + true.cached * c) for t in (1, 8, 64, 300) for c in (10, 900, 40_000)]
    found = fit_constant(log)
    assert (found.step, found.token, found.cached) == pytest.approx((0.012, 3e-5, 2e-7), rel=1e-6)
    assert fit_constant([replace(each, cached=0) for each in log]).cached == 0.0
    downhill = fit_constant([ObservedStep(t, 0, 1.0 - 0.001 * t) for t in range(1, 50)])
    assert downhill.token == 0.0 and downhill.step > 0


def test_a_log_of_one_size_of_steps_leaves_other_sizes_to_the_start() -> None:
    """Scaled by how fast the machine was in the log; what the log does tell of counts for more."""
    start = StepSeconds(0.010, 0.0005, 0.0002)
    same = [ObservedStep(4, 400, 2 * (0.010 + 4 * 0.0005) + jitter, 4) for jitter in (-1e-4, 0.0, 1e-4) for _ in range(100)]
    found = fit_constant(same, start)
    prompt = found.step + found.row + 512 * found.token
    assert prompt == pytest.approx(2 * (0.010 + 0.0003 + 512 * 0.0002), rel=0.05)
    assert fit_constant(same).token == 0.0
    varied = [ObservedStep(t, 0, 0.02 + 0.0006 * t + 0.001 * r, r) for t in (8, 64, 300) for r in (1, 4, 8) for _ in range(50)]
    told = fit_constant(varied, start)
    assert (told.step, told.token, told.row) == pytest.approx((0.02, 0.0006, 0.001), rel=0.1)


@pytest.mark.parametrize("model", ["llama-3-8b", "deepseek-v3", "gemma-3-4b", "jamba-v0.1"])
def test_a_mixed_step_takes_what_its_rows_take_one_by_one(model: str) -> None:
    """Full attention, MLA with experts, windows, states: rows of one token are summed up, those of a prompt are not."""
    deployment = make_scenario(model, {"device": "h200", "tensor_parallel_size": "16" if model == "deepseek-v3" else "1"}, None).deployment
    start, count, sample = array("i", [17, 900, 33, 0, 4000, 64]), array("i", [1, 1, 1, 70, 200, 1]), bytearray([1, 1, 1, 1, 0, 0])
    plan = Plan(0, array("i", range(6)), start, count, array("i", [0] * sum(count)), sample)
    rows = [RowGroup(*each) for each in zip(start, count, [1.0] * 6, sample, strict=True)]
    expected = 0.5 + pass_seconds(deployment, step_work(deployment, rows))
    assert RooflineDurations(deployment, 0.5).seconds(plan) == pytest.approx(expected, rel=1e-12)


def test_steps_with_prompts_vary_around_what_they_take_and_the_same_plan_does_not() -> None:
    usual, seen, factors, others = ConstantDurations(0.05), (0.8, 0.9, 1.0, 1.2, 3.0), list[float](), list[float]()
    for step in range(1_000):
        plan = Plan(step, array("i", [0]), array("i", [0]), array("i", [70]), array("i", [0] * 70), bytearray([1]))
        factors.append(DurationsWithSpread(usual, seen).seconds(plan) / 0.05)
        assert factors[-1] * 0.05 == DurationsWithSpread(usual, seen).seconds(plan)
        others.append(DurationsWithSpread(usual, seen, seed=1).seconds(plan) / 0.05)
    for drawn in (factors, others):
        assert (min(drawn), median(drawn), max(drawn)) == pytest.approx((0.8, 1.0, 3.0), abs=0.01)
        assert sum(each > 1.5 for each in drawn) == pytest.approx(1_000 * 4 / 15, abs=20)
    assert factors != others
    assert DurationsWithSpread(usual, (1.5,)).seconds(plan) == pytest.approx(0.075)
    decode = Plan(1, array("i", [0]), array("i", [9]), array("i", [1]), array("i", [0]), bytearray([1]))
    assert DurationsWithSpread(usual, seen).seconds(decode) == DurationsWithSpread(usual, seen).decode([9], 0) == 0.05


def test_steps_of_a_log_tell_how_much_prompts_vary() -> None:
    """Decode steps do not, and a few prompts tell nothing."""
    prompts = [ObservedStep(70, 70, 0.05 * each, 1) for each in (1.0, 1.0, 1.0, 0.8, 1.0, 1.2, 0.9, 4.1, 0.0)]
    decodes = [ObservedStep(2, 40, 0.5, 2)] * 9
    assert prompt_factors([*decodes, *prompts], ConstantDurations(0.05)) == pytest.approx((0.8, 0.9, 1.0, 1.0, 1.0, 1.0, 1.2, 4.1))
    assert prompt_factors([*decodes, *prompts[2:]], ConstantDurations(0.05)) == ()
    many = prompt_factors([ObservedStep(70, 70, 0.05 + number, 1) for number in range(1_000)], ConstantDurations(1.0))
    assert len(many) == 64 and many == tuple(sorted(many)) and median(many) == pytest.approx(500.0, rel=0.01)


def test_right_drafts_bring_answers_sooner_and_wrong_ones_change_nothing() -> None:
    """Steps that cost the same whatever they verify: with drafts that are always right an answer takes a fifth of the steps."""

    def run(drafts: int, acceptance: float) -> SimulationReport:
        setting = replace(SERVER, drafts=drafts, acceptance=acceptance, durations=ConstantDurations(0.01))
        setting = replace(setting, limits=replace(SERVER.limits, samples=64))
        arrivals = [Arrival(10.0 * number, 20, 101) for number in range(4)]
        return Service(FleetConfig(setting), 1).run(iter(arrivals)).report(Objective())

    plain, right, none = run(0, 0.0), run(4, 1.0), run(4, 0.0)
    assert plain.e2e.mean == pytest.approx(101 * 0.01) and right.e2e.mean == pytest.approx(21 * 0.01)
    assert none.e2e.mean == plain.e2e.mean and none.itl == plain.itl
    assert right.itl.mean == pytest.approx(0.002)
