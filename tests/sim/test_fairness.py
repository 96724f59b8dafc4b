"""Fair shares of tenants, in the real engine over a device that only takes time: what they have beside one that floods the server."""

import heapq
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

import pytest

from ridgeline.core import events
from ridgeline.core.commands import Admit
from ridgeline.core.params import Admitted, Limits
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.core.policy import POLICIES
from ridgeline.core.scheduler import Scheduler
from ridgeline.engine.engine import Engine
from ridgeline.engine.executor import ExecutorInfo
from ridgeline.errors import OverloadedError
from ridgeline.server.keys import Caller
from ridgeline.server.waiting_room import WaitingRoom
from ridgeline.sim.clock import VirtualClock
from ridgeline.sim.fleet.durations import ConstantDurations
from ridgeline.sim.fleet.replica import SimulatedDevice

ROWS, QUEUE, PROMPT, OUTPUT = 16, 64, 100, 30
KV = KVShape((KVGroup("full", (0,)),), 16, 1_200, b"fair")
LIMITS = Limits(rows=ROWS, token_budget=512, max_model_len=4_096, depth=2)
CAPACITY = 28.0
"""Requests of mean length that the device answers per second, about: of more than that some are refused."""


@dataclass(frozen=True)
class Tenant:
    """rate: requests per second. scale: of their lengths."""

    rate: float
    weight: int = 1
    scale: float = 1.0


@dataclass
class Served:
    """ttft: seconds from arrival to first token. tokens: of prompts and outputs that were computed for it in the time counted."""

    ttft: list[float] = field(default_factory=list)
    tokens: int = 0
    refused: int = 0
    asked: int = 0

    @property
    def p95(self) -> float:
        return sorted(self.ttft)[int(0.95 * len(self.ttft))]


def serve(tenants: Mapping[str, Tenant], seconds: float = 120.0, warm: float = 20.0, seed: int = 1) -> dict[str, Served]:
    """What each tenant was served between `warm` and `seconds`, behind the front end's bound on what waits."""
    clock, room = VirtualClock(), WaitingRoom(QUEUE)
    info = ExecutorInfo(kv=KV, vocab=1 << 31, max_model_len=4_096, rows=ROWS, runner="simulated", weights_bytes=0, kv_bytes=0)
    scheduler = Scheduler(LIMITS, KV, POLICIES["fcfs"])
    engine = Engine(scheduler, SimulatedDevice(info, clock, ConstantDurations(0.01, 0.0001)), clock, LIMITS.depth)
    arrivals: list[tuple[float, str, int, int]] = []
    for name, tenant in tenants.items():
        rng, now = Random(f"{seed}{name}"), 0.0
        while (now := now + rng.expovariate(tenant.rate)) < seconds:
            prompt = max(1, min(2_000, int(rng.lognormvariate(0, 0.7) * PROMPT * 0.78 * tenant.scale)))
            output = max(1, min(600, int(rng.lognormvariate(0, 0.7) * OUTPUT * 0.78 * tenant.scale)))
            heapq.heappush(arrivals, (now, name, prompt, output))
    found = {name: Served() for name in tenants}
    open_: dict[str, int] = defaultdict(int)
    request_of: dict[str, tuple[str, float, Admitted]] = {}
    rows: dict[int, str] = {}
    first: set[str] = set()
    while arrivals or not engine.idle:
        if engine.idle and arrivals:
            clock.advance_to(max(clock.now(), arrivals[0][0]))
        commands = []
        while arrivals and arrivals[0][0] <= clock.now():
            now, name, prompt, output = heapq.heappop(arrivals)
            found[name].asked += 1
            try:
                room.check(Caller(name, tenants[name].weight), 1, ROWS, {each: count for each, count in open_.items() if count}, now)
            except OverloadedError:
                found[name].refused += 1
                continue
            open_[name] += 1
            ids = (hash((name, now)) & 0xFFFFFF, *range(1, prompt))
            request = Admitted(f"r{len(request_of)}", ids, output, 1, tenant=name, weight=tenants[name].weight, domain=name.encode())
            request_of[request.request_id] = name, now, request
            commands.append(Admit(request))
        turn = engine.turn(commands)
        for event in turn.events:
            if type(event) is events.Started:
                rows[event.sequence] = event.request_id
            elif type(event) is events.Computed and warm <= event.time < seconds:
                for sequence, ids in zip(event.sequences, event.sampled, strict=True):
                    name, arrived, request = request_of[rows[sequence]]
                    found[name].tokens += ids
                    if ids and request.request_id not in first:
                        first.add(request.request_id)
                        found[name].tokens += len(request.prompt)
                        found[name].ttft.append(event.time - arrived)
            elif type(event) is events.Closed:
                name = request_of[event.request_id][0]
                open_[name] -= 1
                room.on_ended(1, ROWS, sum(open_.values()), clock.now())
    return found


def jain(shares: list[float]) -> float:
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))


def test_who_floods_has_his_share_and_no_more() -> None:
    """Three tenants that want more than their shares, and one that wants twenty times as much; weights count."""
    weights = {"v1": 1, "v2": 2, "v3": 4, "b": 1}
    found = serve({name: Tenant(20 * CAPACITY if name == "b" else 0.8 * CAPACITY, weight) for name, weight in weights.items()}, 40, 10)
    shares = [found[name].tokens / weight for name, weight in weights.items()]
    assert jain(shares) >= 0.99
    fair = sum(served.tokens for served in found.values()) / sum(weights.values())
    assert all(found[name].tokens >= 0.9 * fair * weights[name] for name in ("v1", "v2", "v3"))
    assert found["b"].refused > 0.9 * found["b"].asked


def test_long_requests_buy_no_larger_share() -> None:
    found = serve({"short": Tenant(CAPACITY, scale=0.5), "long": Tenant(CAPACITY, scale=3.0)}, 40, 10)
    assert jain([served.tokens for served in found.values()]) >= 0.98
    assert found["short"].p95 < found["long"].p95


@pytest.mark.parametrize("load", [0.85, 1.2])
def test_beside_one_that_floods_first_tokens_come_as_soon(load: float) -> None:
    """The victim asks for a twentieth of what the other does; or each for half, at the same total load."""
    total, victims = load * CAPACITY, []
    for share in (1 / 2, 1 / 21):
        found = serve({"victim": Tenant(total * share), "other": Tenant(total * (1 - share))}, 60, 10)
        victims.append(found["victim"])
    equal, beside = victims
    assert beside.p95 <= (1.3 if load < 1 else 0.5) * equal.p95, "in overload only the other one waits for itself"
    assert beside.refused == 0 and len(beside.ttft) > 30
