"""What a server does now, its verdict, and the bill: from steps that can be counted by hand."""

import random
from array import array
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ridgeline.config.groups import EngineConfig
from ridgeline.core import events
from ridgeline.core.events import Event, Finish, Usage
from ridgeline.core.plan import KVGroup, KVShape, Timings
from ridgeline.core.step_time import StepSeconds
from ridgeline.engine.executor import ExecutorInfo
from ridgeline.facts.hardware.energy import EnergyMeter, gpu_energy
from ridgeline.facts.headers.config_json import read_config
from ridgeline.models.table import KNOWN
from ridgeline.observe.cost import Spending
from ridgeline.observe.knee import PRIOR_ROWS, fit_line, steps_of
from ridgeline.observe.live import Live, Second
from ridgeline.observe.metrics import Metrics
from ridgeline.observe.prometheus import exposition
from ridgeline.observe.prometheus_live import LiveCollector
from ridgeline.observe.steps import LEAST_SEEN, StepLog
from ridgeline.observe.verdict import BOTTLENECKS, Served, Verdict, judge
from ridgeline.planning.arguments import PlanOptions, deployment_of
from ridgeline.planning.deployment import Deployment
from ridgeline.planning.speed import knee
from ridgeline.planning.step import RowGroup, pass_seconds, step_work

KV = KVShape((KVGroup("full", (0,)),), 16, 1000, b"")


def live_of(price: float | None = None, meter: EnergyMeter | None = None, now: float = 0.0) -> Live:
    metrics = Metrics()
    return Live(metrics, Spending(metrics.tenants, price, now, meter))


def step(number: int, begin: float, end: float, counts: dict[int, int], waiting: int = 0, free: int = 900) -> list[Event]:
    return [
        events.Scheduled(number, begin, tuple(counts), array("i", counts.values()), waiting, free, 0),
        events.Computed(number, end, tuple(counts), array("i", [1] * len(counts))),
        events.StepTimed(number, Timings(run=0.8 * (end - begin))),
    ]


def admit(live: Live, name: str, sequence: int, tenant: str, time: float, prompt: int = 30) -> None:
    live.apply(events.Admitted(name, time, prompt, 1, time, tenant))
    live.apply(events.Started(name, 0, sequence, time, resumed=False))


def close(live: Live, name: str, time: float, out: int = 10) -> None:
    live.apply(events.Closed(name, 0, Finish.LENGTH, Usage(30, out), time))


def test_steps_are_summed_by_second() -> None:
    live = live_of()
    for event in [*step(0, 10.0, 10.5, {1: 20, 2: 1}, waiting=4), *step(1, 10.2, 11.25, {1: 1, 2: 1}, free=800)]:
        live.apply(event)
    first, second = live.history(12.0, 2)
    assert (first.steps, first.tokens, first.decode, first.sampled, first.waiting, first.unheld) == (1, 21, 1, 2, 4, 900)
    assert first.busy == pytest.approx(0.5) and first.run == pytest.approx(0.4)
    assert second.busy == pytest.approx(0.75), "a step that was planned while another ran is in flight from that one's end"
    window = live.window(12.0, 10)
    assert (window.at, window.steps, window.rows, window.tokens) == (2, 2, 4, 23)
    assert [each.steps for each in live.history(12.0, 4)] == [0, 0, 1, 1]
    live.engine_lost()
    live.apply(events.Computed(7, 12.0, (1,), array("i", [1])))
    assert live.window(13.0, 10).steps == 2, "a step that nobody planned"


def test_rows_that_verify_drafts_decode() -> None:
    live = live_of()
    live.step_cost = StepSeconds(0.0, 0.001, 0.001)
    for name in ("one", "two", "three"):
        admit(live, name, ("one", "two", "three").index(name), name, 9.0)
    planned = events.Scheduled(0, 10.0, (0, 1, 2), array("i", [6, 1, 20]), 0, 900, 0)
    for event in (planned, events.Computed(0, 10.5, (0, 1, 2), array("i", [3, 1, 0]), drafted=5, accepted=2)):
        live.apply(event)
    (second,) = live.history(11.0, 1)
    assert (second.rows, second.decode, second.tokens, second.sampled) == (3, 2, 22, 4), "20 are of a prompt; 5 were drafted"
    live.engine_lost()
    spent = {name: each.seconds for name, each in live.spending.by_tenant.items()}
    assert spent["one"] == pytest.approx(spent["two"]) and spent["three"] > 10 * spent["one"]


def test_percentiles_are_of_the_last_minute() -> None:
    live = live_of()
    assert live.latencies() == {"ttft": None, "itl": None}
    for number in range(200):
        live._metrics.inter_token.observe(0.5 if number < 100 else 0.02)
        for event in step(number, float(number), number + 0.1, {1: 1}):
            live.apply(event)
    p50, p90, p99 = live.latencies()["itl"] or (0, 0, 0)
    assert 0.015 <= p50 <= p90 <= p99 <= 0.02


# ── cost ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_shares_and_idle_are_the_bill(tmp_path: Path) -> None:
    zone = tmp_path / "sys/class/powercap/intel-rapl:0"
    zone.mkdir(parents=True)
    (zone / "max_energy_range_uj").write_text("1000000000")
    (zone / "energy_uj").write_text("999000000")
    rng, meter = random.Random(3), EnergyMeter(tmp_path)
    live, now, microjoules = live_of(price=3.6, meter=meter, now=50.0), 50.0, 999_000_000
    spending, begun = live.spending, 0
    open_: dict[int, int] = {}
    live.step_cost = StepSeconds(0.004, 0.001, 0.0002)
    for number in range(2000):
        if rng.random() < 0.3 and len(open_) < 6:
            admit(live, f"r{begun}", begun, f"t{begun % 3}", now)
            open_[begun], begun = rng.randint(1, 400), begun + 1
        if rng.random() < 0.2:
            now += rng.random() * 0.05
        running = [each for each in open_ if rng.random() < 0.9]
        if not running:
            continue
        counts = {each: open_[each] if open_[each] > 1 else 1 for each in running}
        seconds = live.step_cost.of(list(counts.values()).count(1), sum(each for each in counts.values() if each > 1))
        planned, computed, timed = step(number, now, now + seconds, counts)
        now += seconds
        live.apply(planned)
        for each in running:
            open_[each] = 1
            if rng.random() < 0.1:
                close(live, f"r{each}", now)
                del open_[each]
        live.apply(computed)
        live.apply(timed)
        microjoules += round(seconds * 40e6)
        (zone / "energy_uj").write_text(str(microjoules % 1_000_000_000))
        spending.sample(now)
    for each in open_:
        close(live, f"r{each}", now)
    live.engine_lost()
    owned = sum(each.seconds for each in spending.by_tenant.values())
    assert len(spending.by_tenant) == 3 and owned > 5
    assert owned == pytest.approx(spending.allocated, rel=0.01)
    assert spending.allocated + spending.idle(now) == pytest.approx(now - 50.0)
    assert spending.dollars(now - 50.0) == pytest.approx(3.6 * (now - 50.0) / 3600)
    assert spending.joules is not None
    used = (microjoules - 999_000_000) / 1e6
    assert sum(spending.joules.values()) == pytest.approx(used, rel=0.01)
    tenants = sum(spending.tenant_joules(label) or 0 for label in spending.by_tenant)
    assert tenants == pytest.approx(spending.joules["allocated"], rel=0.01)


def test_who_computes_more_pays_more() -> None:
    live = live_of()
    live.step_cost = StepSeconds(0.0, 1.0, 1.0)
    for name, sequence in (("long", 1), ("short", 2), ("waits", 3)):
        admit(live, name, sequence, name, 0.0)
    for event in [*step(0, 0.0, 1.0, {1: 90, 2: 10}), *step(1, 1.0, 2.0, {1: 1, 2: 1})]:
        live.apply(event)
    for name in ("long", "short", "waits"):
        close(live, name, 2.0)
    live.engine_lost()
    cost = {each.request_id: each for each in live.spending.recent}
    seconds = {name: cost[name].seconds for name in cost}
    assert seconds == {"long": pytest.approx(1.4), "short": pytest.approx(0.6), "waits": pytest.approx(0.0)}
    assert cost["long"].kv_token_seconds == pytest.approx(35 * 2.0)
    assert live.spending.tenant_joules("long") is None and live.spending.dollars(1.0) is None


def test_a_meter_that_nobody_may_read_is_none(tmp_path: Path) -> None:
    (tmp_path / "sys/class/powercap/intel-rapl:0").mkdir(parents=True)
    assert not EnergyMeter(tmp_path).is_available
    assert live_of(meter=EnergyMeter(tmp_path)).spending.joules is None


class FakeNvml:
    """The functions of NVML that a meter calls, over one GPU whose counter the test sets."""

    def __init__(self, error: int = 0) -> None:
        self.millijoules, self.error, self.asked = 7_000_000, error, []

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, device: Any) -> int:
        self.asked.append(index.value)
        device._obj.value = 0xBEEF
        return 0

    def nvmlDeviceGetHandleByUUID(self, name: Any, device: Any) -> int:
        self.asked.append(name.value)
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, device: Any, used: Any) -> int:
        used._obj.value = self.millijoules
        return self.error


def test_joules_of_a_gpu_are_those_of_nvml(tmp_path: Path) -> None:
    library = FakeNvml()
    gpu = gpu_energy("2", lambda name: library)
    meter = EnergyMeter(tmp_path, gpu)
    assert meter.is_available and meter.joules() == 0 and library.asked == [2]
    library.millijoules += 1_500
    assert meter.joules() == 1.5
    library.error = 15  # the GPU is lost
    assert meter.joules() == 1.5
    library.error, library.millijoules = 0, 400  # its driver was loaded anew
    assert meter.joules() == 1.5
    library.millijoules += 250
    assert meter.joules() == 1.75
    gpu_energy("GPU-8932f937", lambda name: library)
    assert library.asked[-1] == b"GPU-8932f937"

    def absent(name: str) -> Any:
        raise OSError(name)

    assert gpu_energy("0", absent) is None and gpu_energy("0", lambda name: FakeNvml(error=3)) is None, "counted by no GPU before Volta"


# ── verdict ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def planned() -> Deployment:
    """8 B parameters in 16 bits on a GPU of the table."""
    facts = read_config(KNOWN / "llama-3-8b.json", "llama-3-8b").facts
    return deployment_of(facts, PlanOptions("h100-sxm", kv_dtype="bf16", users=32))


def served(planned: Deployment | None, rows: int = 64) -> Served:
    info = ExecutorInfo(KV, 1000, 4096, rows, "test", 1, 1, tokens=512)
    return Served(info, EngineConfig("m"), planned, 200.0, 100.0)


def window(planned: Deployment, rows: int, prefill: int = 0, host: float = 0.05, **changes: int) -> Second:
    """A second of steps that take what the planner says, on blocks of which a tenth is held."""
    groups = [RowGroup(20, 1, rows)] + ([RowGroup(0, prefill)] if prefill else [])
    run = pass_seconds(planned, step_work(planned, groups))
    steps = int(0.95 / (run / (1 - host)))
    found = Second(1, steps, run * steps, run / (1 - host) * steps, (rows + bool(prefill)) * steps, rows * steps, (rows + prefill) * steps)
    for name, value in {"unheld": 900, **changes}.items():
        setattr(found, name, value * steps)
    return found


def test_the_verdict_names_what_binds(planned: Deployment) -> None:
    few = judge(window(planned, 4), served(planned))
    assert (
        few.bottleneck == "memory"
        and few.memory == pytest.approx(0.75, abs=0.03)
        and few.knee == knee(replace(planned, workload=replace(planned.workload, prompt=200, output=100), chunk=512), 512)
    )
    assert "decode, bandwidth-bound" in few.text
    assert [each.name for each in few.levers] == ["weights in 4 bits (another file)", "--speculative ngram"]
    prefill = judge(window(planned, 1, prefill=500), served(planned))
    assert prefill.bottleneck == "compute" and prefill.compute == pytest.approx(0.5, abs=0.05)
    queue = judge(window(planned, 64, waiting=40, lack_rows=40), served(planned))
    assert (queue.bottleneck, queue.levers[0].name) == ("rows", "--max-num-seqs 128")
    assert judge(window(planned, 64, waiting=40), served(planned)).bottleneck == "memory", "they wait for something else"
    full = judge(window(planned, 20, waiting=9, lack_blocks=9), served(planned))
    assert full.bottleneck == "kv_cache" and {each.name for each in full.levers} == {"--kv-dtype int8", "--kv-cache-memory-bytes × 2"}
    assert judge(window(planned, 4, host=0.5), served(planned)).bottleneck == "host"
    assert judge(Second(10), served(planned)).text == "idle"
    alone = judge(window(planned, 4), served(None))
    assert (alone.bottleneck, alone.compute, alone.knee, alone.levers) == ("device", None, None, ())


def test_the_verdict_turns_at_the_ridge(planned: Deployment) -> None:
    """Of a model of this machine the batch at which compute takes over is known: 20 % around it the verdict has turned."""
    ridge = next(rows for rows in range(1, 2000) if judge(window(planned, rows), served(planned, 4000)).bottleneck == "compute")
    assert judge(window(planned, int(ridge * 0.8)), served(planned, 4000)).bottleneck == "memory"
    assert judge(window(planned, int(ridge * 1.2)), served(planned, 4000)).bottleneck == "compute"


def test_a_lever_s_gain_is_the_planner_s(planned: Deployment) -> None:
    found = judge(window(planned, 64, waiting=64, lack_rows=64), served(planned))
    lever = found.levers[0]
    before, after = (rows / pass_seconds(planned, step_work(planned, [RowGroup(250, 1, rows)])) for rows in (64, 128))
    assert lever.figure == "throughput" and 1.0 < lever.gain <= after / before * 1.01


STAIRS = {1: 0.010, 2: 0.011, 3: 0.0135, 4: 0.0145, 6: 0.025, 8: 0.032, 16: 0.066}
"""Rows of a processor's steps and their seconds: those of a tile cost little more than one."""


@pytest.mark.parametrize("token", [0.0, 0.001, 0.004])
@pytest.mark.parametrize("seen", [{}, STAIRS, {1: 0.02, 2: 0.022}])
def test_the_verdict_turns_at_the_knee_of_its_steps(planned: Deployment, token: float, seen: dict[int, float]) -> None:
    """What binds, and the knee that is told, say the same load."""
    cpu = replace(planned, device=replace(planned.device, is_gpu=False))
    asked = served(cpu, 64)
    asked = replace(asked, info=replace(asked.info, seconds=StepSeconds(0.007, 0.003, token)), output=asked.prompt, seen=seen)
    found = {}
    for rows in range(1, 32):
        law = steps_of(asked.info.seconds or StepSeconds(0, 0, 0), seen, 0.0, Second(1, 1)).line
        run = 100 * (law.fixed + (law.row + token) * rows)
        found[rows] = judge(Second(1, 100, run, run, rows * 100, rows * 100, 2 * rows * 100, unheld=90_000), asked)
    turns = next(rows for rows in found if found[rows].bottleneck == "compute")
    knee = found[turns].knee
    assert knee is not None and turns - 1 <= knee <= turns
    assert all(found[rows].bottleneck == "compute" for rows in range(turns, 32))
    assert all(found[rows].bottleneck == "memory" for rows in range(1, turns))


def test_the_line_of_steps_is_of_those_that_were_seen() -> None:
    start, nothing = StepSeconds(0.010, 0.001, 0.0005), Second(10, 100, 1.1, 1.1, 100, 100, 100)
    alone = steps_of(start, {}, 0.0, nothing).line
    assert (alone.fixed, alone.row, alone.token) == pytest.approx((0.010, 0.001, 0.0005)), "as the start measured"
    slower = steps_of(start, {1: 0.022}, 0.0, nothing).line
    assert (slower.fixed, slower.row, slower.token) == pytest.approx((0.020, 0.002, 0.001)), "all is as much slower as what was seen"
    other = steps_of(start, {rows: 0.006 + 0.003 * rows for rows in (1, 2, 3, 4, 6, 8, 16, 32)}, 0.0, nothing).line
    assert (other.fixed, other.row) == pytest.approx((0.006, 0.003)), "the start's line counts nowhere"
    window = Second(10, 100, 100 * 0.013 + 0.2, 100 * 0.018 + 0.2, 200, 200, 300)
    whole = steps_of(start, {rows: 0.011 + 0.001 * rows for rows in PRIOR_ROWS}, 0.002, window)
    assert (whole.line.fixed, whole.line.row, whole.line.token) == pytest.approx((0.011, 0.001, 0.002)), "what prompts cost"
    assert whole.host == pytest.approx(0.005)
    assert whole.knee(0.0, 512) == pytest.approx(16) and whole.knee(1.0, 512) == pytest.approx(16 / 3) and whole.knee(0.0, 9) == 9
    assert fit_line({1: 0.01, 2: 0.02, 4: 0.05}) == (0.0, pytest.approx(0.0101, rel=0.01)) and fit_line({3: 0.02}) == (0.02, 0.0)


def test_a_prompts_token_costs_what_its_step_took_beyond_decoding() -> None:
    log = StepLog()
    for number in range(2 * LEAST_SEEN):
        rows = {1: 1} if number % 8 else {1: 1, 2: 40}
        log.planned(events.Scheduled(number, float(number), tuple(rows), array("i", rows.values()), 0, 900, 0))
        log.committed(events.Computed(number, number + 0.5, tuple(rows), array("i", [1] * len(rows))), number + 0.5)
        log.timed(events.StepTimed(number, Timings(run=0.1 if number % 8 else 0.3)))
        assert (log.prompt_token() > 0) == (number >= 56), "the first one came before decoding was known, and six tell nothing"
    assert log.prompt_token() == pytest.approx(0.2 / 40)
    log.forget_floors()
    assert log.prompt_token() == 0


def test_a_few_steps_of_a_size_tell_nothing() -> None:
    log = StepLog()
    for number in range(LEAST_SEEN + 9):
        rows = {1: 1, 2: 1} if number < 9 else {1: 1}
        log.planned(events.Scheduled(number, float(number), tuple(rows), array("i", rows.values()), 0, 900, 0))
        log.committed(events.Computed(number, number + 0.5, tuple(rows), array("i", [1] * len(rows))), number + 0.5)
        log.timed(events.StepTimed(number, Timings(run=0.3 if number == 9 else 0.1)))
    assert log.floors() == {1: pytest.approx(0.1, rel=0.1)} and log.floor(2) == pytest.approx(0.1), "charges take what there is"
    log.forget_floors()
    assert not log.floors() and log.floor(1) is None


def test_steps_grow_as_seen_where_both_numbers_of_rows_were() -> None:
    found = steps_of(StepSeconds(0.0, 0.004, 0.001), STAIRS, 0.0, Second(1, 10, 0.1, 0.15, 10, 10, 10))
    token = 0.001 * 0.5 * median(STAIRS[each] / (0.004 * each) for each in STAIRS)
    few, many = min(STAIRS), max(STAIRS)
    assert found.growth(few, many, 0.5) == pytest.approx((0.005 + STAIRS[many] + token * many) / (0.005 + STAIRS[few] + token * few))
    beyond = found.growth(many, many + 5, 0.0)
    assert beyond == pytest.approx((0.005 + found.line.of(many + 5, 0)) / (0.005 + found.line.of(many, 0))), (
        "not beside what was seen of one"
    )


def test_gains_and_knee_on_a_cpu_are_of_steps_as_they_were_measured(planned: Deployment) -> None:
    cpu = replace(planned, device=replace(planned.device, is_gpu=False))
    asked = replace(served(cpu, 8), info=replace(served(cpu, 8).info, seconds=StepSeconds(0.004, 0.001, 0.0005)))
    found = judge(window(cpu, 8, host=0.0, waiting=40, lack_rows=40), asked)
    assert found.knee == 4, "0.004 of each step, 0.001 of each sequence: of their prompts the prefix cache has all"
    assert (found.levers[0].name, found.levers[0].gain) == ("--max-num-seqs 16", pytest.approx(16 / 0.020 * 0.012 / 8))
    beside = judge(window(cpu, 8, prefill=16, host=0.0), asked)
    assert beside.knee == pytest.approx(2), "0.001 + 2 · 0.0005 of each sequence, with each of whose tokens two of a prompt come"
    assert beside.bottleneck == "compute" and judge(window(cpu, 3, prefill=0, host=0.0), asked).bottleneck == "memory"


def test_exposition() -> None:
    live = live_of(price=1.0)
    admit(live, "a", 1, "alice", 0.0)
    for event in step(0, 0.0, 0.5, {1: 30}):
        live.apply(event)
    close(live, "a", 0.5)
    live.engine_lost()
    verdict = Verdict("memory", "", 0.5, 0.1, None, 0.7, 0.1, 1.0, None, ())
    body = exposition(live._metrics, "m", KV, more=[LiveCollector(live, verdict, "m", ["alice"], {"packing weights": 1.5})]).decode()
    own = ("bottleneck", "phase", "resource", "tenant")
    samples = {
        (each.name, next((each.labels[name] for name in own if name in each.labels), "")): each.value
        for family in text_string_to_metric_families(body) for each in family.samples
    }  # fmt: skip
    assert [samples["ridgeline_bottleneck", name] for name in BOTTLENECKS] == [name == "memory" for name in BOTTLENECKS]
    assert samples["ridgeline_ceiling_ratio", "memory"] == 0.7 and ("ridgeline_ceiling_ratio", "compute") not in samples
    assert samples["ridgeline_busy_seconds_total", ""] == 0.5 and samples["ridgeline_tenant_busy_seconds_total", "alice"] == 0.5
    assert samples["ridgeline_tenant_dollars_total", "alice"] == pytest.approx(0.5 / 3600)
    assert ("ridgeline_tenant_joules_total", "alice") not in samples
    assert samples["ridgeline_start_seconds", "packing weights"] == 1.5
