"""Slots of adapters: who gets one, who waits, and that prefixes are never shared between adapters."""

from dataclasses import replace

import pytest

from ridgeline.core.adapters import AdapterSlots
from ridgeline.core.commands import AdapterReady, Admit, PinAdapter
from ridgeline.core.events import Closed, Finish, Preempted, PrefixHit, Ready, Rejected, Scheduled, Started, Wait, Waiting
from ridgeline.core.params import Adapter, Admitted, Limits
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.core.policy import POLICIES
from ridgeline.core.scheduler import Scheduler
from ridgeline.engine.engine import Engine
from ridgeline.engine.executor import ExecutorInfo
from ridgeline.sim.clock import VirtualClock
from ridgeline.sim.laws.executor import SimExecutor
from ridgeline.sim.laws.model import FakeModel

PROMPT = tuple(range(40, 73))
ONE, TWO, THREE = (Adapter(name, name.encode() * 8, "") for name in ("one", "two", "three"))


def engine_of(slots: int, rows: int = 4, policy: str = "fcfs") -> Engine:
    kv = KVShape((KVGroup("full", (0,), 0),), 4, 400, b"test")
    limits = Limits(rows=rows, token_budget=64, depth=2, max_model_len=256, adapter_slots=slots)
    info = ExecutorInfo(kv, 512, 256, rows, "sim", 0, 0)
    clock = VirtualClock()
    return Engine(Scheduler(limits, kv, POLICIES[policy]), SimExecutor(info, FakeModel(), clock), clock, 2)


def request(name: str, adapter: Adapter | None, max_tokens: int = 4, priority: int = 0) -> Admitted:
    return Admitted(name, PROMPT, max_tokens, seed=1, adapter=adapter, priority=priority)


def run(engine: Engine, *commands: object) -> list[object]:
    """Events until nothing is left to do."""
    events = list(engine.turn(list(commands)).events)  # type: ignore[arg-type]
    for _ in range(2000):
        turn = engine.turn()
        events += turn.events
        if not turn.progressed:
            break
    return events


def of(kind: type, events: list[object]) -> list[str]:
    return [event.request_id for event in events if isinstance(event, kind)]  # type: ignore[attr-defined]


def test_waits_until_its_weights_are_in() -> None:
    engine = engine_of(2)
    events = run(engine, Admit(request("a", ONE)), Admit(request("b", None)))
    assert [(each.request_id, each.reason) for each in events if isinstance(each, Waiting)] == [("a", Wait.ADAPTER)]
    assert of(Started, events) == of(Closed, events) == ["b"]
    events = run(engine, AdapterReady(ONE.digest))
    assert of(Ready, events) == of(Started, events) == of(Closed, events) == ["a"]


def test_an_adapter_that_cannot_be_read_ends_its_requests() -> None:
    engine = engine_of(2)
    run(engine, Admit(request("a", ONE)), Admit(request("b", TWO)))
    events = run(engine, AdapterReady(ONE.digest, "no such file"), AdapterReady(TWO.digest))
    closed = {each.request_id: (each.reason, each.message) for each in events if isinstance(each, Closed)}
    assert closed["a"] == (Finish.ERROR, "no such file") and closed["b"][0] is Finish.LENGTH
    assert engine.idle and not engine.scheduler.lifecycle.adapters.open


def test_without_slots_it_is_rejected() -> None:
    events = run(engine_of(0), Admit(request("a", ONE)))
    assert of(Rejected, events) == ["a"]


def test_prefixes_are_not_shared_between_adapters() -> None:
    engine = engine_of(4)
    for adapter in (ONE, TWO, None, replace(ONE, digest=b"other content")):
        ready = () if adapter is None else (AdapterReady(adapter.digest),)
        name = f"{adapter and adapter.digest!r}"
        assert of(PrefixHit, run(engine, Admit(request(name, adapter)), *ready)) == []
        assert of(PrefixHit, run(engine, Admit(request(f"{name} again", adapter)), *ready)) == [f"{name} again"]


def test_others_start_while_one_waits_for_a_slot_and_not_for_ever() -> None:
    engine = engine_of(1, rows=2)
    ready = [AdapterReady(each.digest) for each in (ONE, TWO)]
    commands = [Admit(request("first", ONE, 40)), Admit(request("second", TWO)), *[Admit(request(f"r{i}", ONE, 40)) for i in range(9)]]
    events = run(engine, *commands, *ready)
    started = of(Started, events)
    assert started[0] == "first" and 1 < started.index("second") <= 4
    assert next(each.request_id for each in events if isinstance(each, Waiting) and each.reason is Wait.SLOT) == "second"
    assert len(of(Closed, events)) == 11 and engine.idle


@pytest.mark.parametrize("pins", [False, True])
def test_the_least_recently_used_makes_room_unless_it_is_pinned(pins: bool) -> None:
    slots = AdapterSlots(2)
    slots.pin(ONE.digest, pins)
    for adapter in (ONE, TWO):
        slots.take(adapter)
        slots.release(adapter)
    assert slots.take(THREE) == (1 if pins else 0)
    assert [fill.digest for fill in slots.fills] == [ONE.digest, TWO.digest, THREE.digest]


def test_pins_end_and_begin_while_an_adapter_lies_in_its_slot() -> None:
    engine = engine_of(2)
    slots = engine.scheduler.lifecycle.adapters
    number = iter(range(100))

    def use(*adapters: Adapter) -> set[bytes]:
        for adapter in adapters:
            run(engine, Admit(request(f"r{next(number)}", adapter)), AdapterReady(adapter.digest))
        return set(slots.slots)

    run(engine, PinAdapter(ONE.digest, True), PinAdapter(TWO.digest, True))
    assert use(ONE, TWO, THREE) == {ONE.digest, THREE.digest}, "one fewer than there are slots are pinned"
    run(engine, PinAdapter(ONE.digest, False))
    assert use(TWO) == {THREE.digest, TWO.digest}, "a slot is free for all again"
    assert use(THREE, ONE) == {TWO.digest, ONE.digest}, "the next pin holds"
    run(engine, PinAdapter(TWO.digest, False), PinAdapter(ONE.digest, True))
    assert use(THREE, TWO) == {ONE.digest, TWO.digest}, "pinned where it lay"


def test_a_higher_class_takes_a_slot() -> None:
    """From rows of a lower class, the last first, and from none where the slots are another's of its own class."""
    engine = engine_of(2, policy="priority", rows=8)
    ready = [AdapterReady(each.digest) for each in (ONE, TWO, THREE)]
    low = [Admit(request(name, adapter, 60, priority=1)) for name, adapter in (("a", ONE), ("b", TWO), ("c", ONE), ("d", None))]
    events = [event for commands in ([*low, *ready], [], [], []) for event in engine.turn(commands).events]
    events += engine.turn([Admit(request("high", THREE)), AdapterReady(THREE.digest)]).events
    events += run(engine)
    assert of(Preempted, events) == ["d", "c", "b"]
    assert of(Closed, events)[0] == "high" and len(of(Closed, events)) == 5 and engine.idle

    engine = engine_of(1, policy="priority", rows=2)
    events = run(engine, *[Admit(request(f"r{number}", ONE, 40)) for number in range(3)], Admit(request("two", TWO)), *ready)
    assert not of(Preempted, events) and len(of(Closed, events)) == 4


def test_what_waits_behind_a_slot_is_told_so() -> None:
    engine = engine_of(1, rows=2)
    ready = [AdapterReady(each.digest) for each in (ONE, TWO)]
    commands = [Admit(request("first", ONE, 90)), Admit(request("second", TWO)), *[Admit(request(f"r{i}", ONE, 20)) for i in range(5)]]
    events = run(engine, *commands, *ready)
    assert "adapter slot" in {event.lack for event in events if isinstance(event, Scheduled)}
