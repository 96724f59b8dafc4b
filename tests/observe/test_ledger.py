"""The latency ledger: every moment has one cause, and a planted fault is the cause that is named first."""

from array import array
from pathlib import Path
from random import Random

import pytest
from ledgers import APPLIED, FAULTS, Fault, apply_lever, background, plant, serve

from ridgeline.core import events
from ridgeline.core.plan import Timings
from ridgeline.observe.charges import CAUSES, charge, wall
from ridgeline.observe.investigate import ALERTS, LEVERS, PHASES, investigate
from ridgeline.observe.ledger import FrontEnd, Ledger
from ridgeline.observe.requests import ChoiceTimes
from ridgeline.observe.shares import distribution
from ridgeline.observe.steps import MAX_ROWS, MAX_STEPS, StepLog


def check_sums(requests: int, seed: int) -> None:
    rng = Random(seed)
    asks = background(rng, 20.0, requests / 20.0)
    for ask in asks:
        ask.front = {name: rng.random() * 0.02 for name in ("network", "render", "encode", "grammar", "other")}
        ask.tail, ask.paused = rng.random() * 0.02, rng.random() * 0.05
    ledger = serve(asks, blocks=400, host=lambda step: 0.001 * (step % 3))
    seen = set()
    for ask in asks:
        record = ledger.find(ask.name)
        assert record is not None
        found = charge(ledger, record, 0, named=False)
        assert found.seconds.keys() <= CAUSES.keys() and min(found.seconds.values()) > 0
        assert found.total == pytest.approx(ask.ended - ask.at, rel=1e-6), ask
        seconds, first = wall(record, 0)
        assert seconds == pytest.approx(ask.ended - ask.at, rel=1e-6) and first is not None
        assert charge(ledger, record, 0, to_first=True, named=False).total == pytest.approx(first, rel=1e-6)
        seen |= found.seconds.keys()
    front = {"network", "template", "tokenise", "grammar", "host", "detokenise", "slow_reader"}
    assert seen >= front | {"turn", "rows", "prefill", "others_prefill", "others_decode", "decode"}


def test_causes_sum_to_the_time_that_passed() -> None:
    check_sums(300, 1)


@pytest.mark.night
def test_causes_sum_to_the_time_that_passed_of_ten_thousand() -> None:
    check_sums(10_000, 2)


def first_cause(cause: str, seed: int) -> str | None:
    """The cause that an explanation of the request names first; an investigation of the alert that it would raise names the same."""
    fault = plant(cause, Random(seed))
    ledger = serve([fault.probe, *fault.others], **fault.world)
    record = ledger.find(fault.probe.name)
    assert record is not None
    first = charge(ledger, record, 0, to_first=fault.to_first).first
    alert = "FirstTokenLate" if fault.to_first else "TokensSlow"
    found = investigate(alert, distribution(ledger, [record], to_first=True), distribution(ledger, [record]))
    assert found is not None and found.cause == first and found.lever and found.evidence
    return first


@pytest.mark.parametrize("cause", FAULTS)
def test_a_planted_fault_is_the_first_cause(cause: str) -> None:
    assert first_cause(cause, 1) == cause


def waited(fault: Fault) -> float:
    """Seconds of the request with the fault, to its first token or its end."""
    ledger = serve([fault.probe, *fault.others], **fault.world)
    record = ledger.find(fault.probe.name)
    assert record is not None
    times = record.choices[0].times
    assert times is not None and times.first_token_at is not None
    return (times.first_token_at if fault.to_first else times.ended) - fault.probe.at


@pytest.mark.parametrize("cause", APPLIED)
def test_the_named_lever_helps(cause: str) -> None:
    for seed in range(3):
        fault = plant(cause, Random(seed))
        assert waited(apply_lever(fault)) < 0.9 * waited(fault), seed


@pytest.mark.night
def test_planted_faults_of_eighty_trials_each() -> None:
    right = {cause: sum(first_cause(cause, seed) == cause for seed in range(80)) for cause in FAULTS}
    print(right)
    assert sum(right.values()) >= 0.95 * 80 * len(FAULTS) and min(right.values()) >= 0.9 * 80


def test_an_id_that_clients_use_again_names_the_last_request_of_each() -> None:
    ledger = Ledger(lambda: 0.0, max_requests=3)

    def ask(name: str, owner: bytes) -> None:
        ledger.submitted(name, FrontEnd(0.0, 0.0, 0.0), owner)
        ledger.apply([events.Admitted(name, 0.0, 1, 1, 0.0)])
        ledger.answered([name], "retried", 0.0, (), None)
        ledger.choice_ended(events.Closed(name, 0, events.Finish.STOP, events.Usage(1, 1), 0.0), ChoiceTimes(0.0, 0.0, 0.0, 0.0, 0.0))

    def found(owner: bytes | None) -> str | None:
        record = ledger.find("retried", owner)
        return None if record is None else record.request_id

    ask("a1", b"a")
    ask("b1", b"b")
    ask("a2", b"a")
    assert (found(b"a"), found(b"b"), found(None), found(b"c")) == ("a2", "b1", "a2", None)
    ask("b2", b"b")  # a1 is forgotten
    assert (found(b"a"), found(b"b"), found(None)) == ("a2", "b2", "b2")
    for number in range(3):
        ledger.apply([events.Admitted(f"n{number}", 0.0, 1, 1, 0.0)])
    assert found(None) is None and not ledger._aliases


def test_every_cause_has_a_phase_and_a_lever_and_alerts_are_those_of_deploy() -> None:
    assert CAUSES.keys() == LEVERS.keys() == PHASES.keys()
    alerts = (Path(__file__).parents[2] / "deploy" / "alerts.yml").read_text()
    assert all(f"alert: {name}\n" in alerts for name in ALERTS)


def test_the_time_without_an_engine_is_the_restart_s() -> None:
    """The engine ends in the middle of an answer; the next one's first step is the first that has the choice again."""
    ledger, one = Ledger(lambda: 9.0), array("i", [1])
    ledger.submitted("r", FrontEnd(0.0, 0.0, 0.0))
    ledger.apply([
        events.Admitted("r", 0.0, 1, 8, 0.0), events.Started("r", 0, 1, 0.0, False),
        events.Scheduled(0, 0.0, (1,), one, 0, 9, 0), events.Computed(0, 0.1, (1,), one), events.StepTimed(0, Timings(run=0.1)),
        events.Scheduled(1, 0.1, (1,), one, 0, 9, 0),  # lost
        events.Admitted("r", 2.0, 1, 8, 0.0), events.Started("r", 0, 1, 2.0, True),
        events.Scheduled(0, 2.1, (1,), one, 0, 9, 0), events.Computed(0, 2.2, (1,), one), events.StepTimed(0, Timings(run=0.1)),
    ])  # fmt: skip
    record = ledger.find("r")
    assert record is not None
    found = charge(ledger, record, 0)
    assert found.first == "restart" and found.seconds["restart"] == pytest.approx(2.0, abs=0.01)
    assert found.total == pytest.approx(2.2)


@pytest.mark.parametrize("cause", ["grammar", "adapter", "kv fetch"])
def test_the_time_in_which_an_idle_engine_waits_is_what_it_waits_for(cause: str) -> None:
    """There is no step in it: the first one's own time is behind what was waited for."""
    ledger, one = Ledger(lambda: 9.0), array("i", [1])
    ledger.submitted("r", FrontEnd(0.0, 0.0, 0.0))
    ledger.apply([
        events.Admitted("r", 0.0, 1, 8, 0.0), events.Waiting("r", 0, events.Wait(cause), None), events.Ready("r", 0, events.Wait(cause)),
        events.Started("r", 0, 1, 0.5, False),
        events.Scheduled(0, 0.5, (1,), one, 0, 9, 0), events.Computed(0, 0.65, (1,), one), events.StepTimed(0, Timings(run=0.1)),
    ])  # fmt: skip
    record = ledger.find("r")
    assert record is not None
    found = charge(ledger, record, 0)
    assert found.first == cause and found.seconds[cause] == pytest.approx(0.5) and found.seconds["host"] == pytest.approx(0.05)
    assert found.total == pytest.approx(0.65)


def test_the_ring_of_steps_is_bounded_and_keeps_the_last() -> None:
    """A sixteenth of it, and twice as many steps as it has, whose rows change each time: the oldest give way, the last are whole."""
    log, rows = StepLog(max_steps=MAX_STEPS // 16, max_rows=MAX_ROWS // 16), tuple(range(24))
    counts = [array("i", [1 + each] * len(rows)) for each in range(2)]
    for step in range(MAX_STEPS // 8):
        log.planned(events.Scheduled(step, float(step), rows, counts[step % 2], 0, 9, 0))
        log.committed(events.Computed(step, step + 0.5, rows, counts[0]), step + 0.6)
    assert 16 * log.bytes <= 50_000_000 and log.end - log.first == MAX_STEPS // 16
    assert log[log.end - 1].ended == log.end - 0.5 and log.rows(log.end - 1)[1] == counts[1]
    assert not log.rows(log.first)[0], "there are fewer rows than steps times 24"
