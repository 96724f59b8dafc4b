"""Requests through the real engine over a device that only takes time, with the ledger beside it, and faults planted in both."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from ridgeline.core.commands import Admit
from ridgeline.core.params import Admitted, Limits
from ridgeline.core.plan import KVGroup, KVShape, Result
from ridgeline.core.policy import POLICIES
from ridgeline.core.scheduler import Scheduler
from ridgeline.engine.engine import Engine
from ridgeline.engine.executor import ExecutorInfo, Ticket
from ridgeline.observe.ledger import FrontEnd, Ledger
from ridgeline.observe.metrics import Metrics
from ridgeline.sim.clock import VirtualClock
from ridgeline.sim.fleet.durations import ConstantDurations
from ridgeline.sim.fleet.replica import SimulatedDevice

STEP, TOKEN = 0.01, 0.0002
DURATIONS = ConstantDurations(STEP, TOKEN)
LIMITS = Limits(rows=16, token_budget=512, max_model_len=32_768, depth=2)


def shape(blocks: int = 8_000) -> KVShape:
    return KVShape((KVGroup("full", (0,)),), 16, blocks, b"ledger")


@dataclass
class Ask:
    """A request. `front`: seconds of the front end by name, `tail`: from its last token to the end of its answer."""

    at: float
    prompt: int
    output: int
    ids: Sequence[int] | None = None
    front: dict[str, float] = field(default_factory=dict)
    tail: float = 0.0
    paused: float = 0.0
    priority: int = 0
    name: str = ""
    ended: float = 0.0


class SlowHost(SimulatedDevice):
    """A device before whose steps the host takes `host(step)` seconds."""

    host: Callable[[int], float] = staticmethod(lambda step: 0.0)

    def collect(self, ticket: Ticket) -> Result:
        result = super().collect(ticket)
        self._clock.advance_to(self._clock.now() + self.host(ticket.plan.step))
        return result


def serve(
    asks: Sequence[Ask], limits: Limits = LIMITS, blocks: int = 8_000, host: Callable[[int], float] = lambda step: 0.0, policy: str = "fcfs"
) -> Ledger:
    """Serves the requests, each with the front end's part, and returns the ledger."""
    clock, kv = VirtualClock(), shape(blocks)
    ledger = Ledger(clock.now, max_requests=max(8_192, len(asks)))
    metrics = Metrics(on_choice=ledger.choice_ended)
    info = ExecutorInfo(kv=kv, vocab=1 << 31, max_model_len=limits.max_model_len, rows=limits.rows, runner="", weights_bytes=0, kv_bytes=0)
    device = SlowHost(info, clock, DURATIONS)
    device.host = host
    engine = Engine(Scheduler(limits, kv, POLICIES[policy]), device, clock, limits.depth)
    waiting, open_ = sorted(asks, key=lambda each: -_submitted(each)), dict[str, Ask]()
    while waiting or not engine.idle:
        if engine.idle:
            clock.advance_to(max(clock.now(), _submitted(waiting[-1])))
        commands = []
        while waiting and (at := _submitted(waiting[-1])) <= clock.now():
            ask = waiting.pop()
            ask.name = f"r{len(waiting)}"
            open_[ask.name] = ask
            ids = ask.ids or (len(waiting) + 100_000, *range(1, ask.prompt))
            commands.append(Admit(Admitted(ask.name, tuple(ids), ask.output, 1, arrived=ask.at, priority=ask.priority)))
            front = {name: seconds for name, seconds in ask.front.items() if name in ("render", "encode", "grammar")}
            ledger.submitted(ask.name, FrontEnd(ask.at, ask.at + ask.front.get("network", 0.0), at, **front))
        turn = engine.turn(engine.prepare(commands))
        ledger.apply(turn.events)
        for event in turn.events:
            metrics.apply(event)
    for name, ask in open_.items():
        record = ledger.find(name)
        assert record is not None and record.front is not None
        last = max(each.times.ended for each in record.choices.values() if each.times is not None)
        record.front.first = record.choices[0].times.first_token_at if record.choices[0].times is not None else None
        ask.ended = record.front.ended = last + ask.tail + ask.paused
        record.front.paused = [(ask.ended - ask.paused, ask.ended)]
    return ledger


def _submitted(ask: Ask) -> float:
    return ask.at + sum(ask.front.values())


def background(rng: Random, rate: float, seconds: float, prompt: int = 120, output: int = 24) -> list[Ask]:
    """Chats that come at random."""
    now, asks = 0.0, []
    while (now := now + rng.expovariate(rate)) < seconds:
        asks.append(Ask(now, 1 + int(rng.expovariate(1 / prompt)), 1 + int(rng.expovariate(1 / output))))
    return asks


@dataclass
class Fault:
    """A planted fault: the requests, the one whose explanation must name it, the cause, and how the world is set."""

    cause: str
    probe: Ask
    others: list[Ask] = field(default_factory=list)
    to_first: bool = True
    world: dict[str, Any] = field(default_factory=dict)


def _around(rng: Random, value: float) -> float:
    return value * rng.uniform(0.7, 1.5)


def _front(cause: str, name: str, rng: Random) -> Fault:
    return Fault(cause, Ask(0.5, 60, 8, front={name: _around(rng, 0.5)}), background(rng, 4.0, 1.0))


def plant(cause: str, rng: Random) -> Fault:
    """A fault of the kind, drawn at random."""
    quiet, at = background(rng, 2.0, 2.0), rng.uniform(0.3, 0.8)
    longs = [Ask(at - 0.01 * each, int(_around(rng, 6_000)), 4) for each in range(1, 4)]
    match cause:
        case "network" | "grammar":
            return _front(cause, cause, rng)
        case "template":
            return _front(cause, "render", rng)
        case "tokenise":
            return _front(cause, "encode", rng)
        case "detokenise":
            return Fault(cause, Ask(at, 60, 8, tail=_around(rng, 0.6)), quiet, to_first=False)
        case "slow_reader":
            return Fault(cause, Ask(at, 60, 8, paused=_around(rng, 0.8)), quiet, to_first=False)
        case "rows":
            held = [Ask(0.01 * each, 40, int(_around(rng, 150))) for each in range(16)]
            return Fault(cause, Ask(at, 60, 8), held)
        case "blocks":
            held = [Ask(0.01 * each, 900, int(_around(rng, 100))) for each in range(3)]
            return Fault(cause, Ask(at + 0.3, 600, 8), held, world={"blocks": 200})
        case "budget":
            return Fault(cause, Ask(at, 60, 8), longs)
        case "others_prefill":
            later = [Ask(at + 0.1 + 0.3 * each, int(_around(rng, 5_000)), 2) for each in range(4)]
            return Fault(cause, Ask(at, 60, 60), later, to_first=False)
        case "prefix":
            ids, world = (7, *range(1, int(_around(rng, 2_400)))), {"limits": replace(LIMITS, token_budget=4_096)}
            same = Ask(at, len(ids) + 20, 4, ids=(*ids, *range(9_000, 9_020)))
            return Fault(cause, same, [Ask(at, len(ids), 4, ids=ids)], world=world)
        case "preempted":
            urgent = [Ask(at + 0.3, 60, int(_around(rng, 150)), priority=-1) for _ in range(2)]
            world = {"policy": "priority", "limits": replace(LIMITS, rows=2)}
            return Fault(cause, Ask(at, 60, 40), [*urgent, Ask(0.0, 40, 400, priority=-1)], to_first=False, world=world)
        case "host":
            seconds = _around(rng, 0.03)
            return Fault(cause, Ask(at, 60, 30), quiet, to_first=False, world={"host": lambda step: seconds})
        case "prefill":
            return Fault(cause, Ask(at, int(_around(rng, 6_000)), 4))
        case _:
            return Fault("decode", Ask(at, 30, int(_around(rng, 200))), to_first=False)


def apply_lever(fault: Fault) -> Fault:
    """The same requests in a server with the lever that `observe.investigate` names for the cause."""
    limits = fault.world.get("limits", LIMITS)
    match fault.cause:
        case "rows" | "preempted":
            return replace(fault, world=fault.world | {"limits": replace(limits, rows=2 * limits.rows)})
        case "blocks":
            return replace(fault, world=fault.world | {"blocks": 2 * fault.world["blocks"]})
        case "budget":  # another replica
            return replace(fault, others=fault.others[::2])
        case "others_prefill":
            return replace(fault, world=fault.world | {"limits": replace(limits, mixed_tokens=64)})
        case _:  # prefill: its prefix is cached
            ids = tuple(range(1, fault.probe.prompt + 1))
            return replace(fault, probe=replace(fault.probe, at=fault.probe.at + 9.0, ids=ids), others=[Ask(0.0, len(ids), 1, ids=ids)])


APPLIED = ("rows", "blocks", "budget", "others_prefill", "preempted", "prefill")
"""Causes whose lever can be applied in this world."""
FAULTS = (
    "network", "template", "tokenise", "grammar", "detokenise", "slow_reader", "rows", "blocks", "budget", "others_prefill", "prefix",
    "preempted", "host", "prefill", "decode",
)  # fmt: skip
