"""Four replicas and a router that follows prefixes, on traffic like Mooncake's: nearly the hits of one cache, earlier first tokens."""

from dataclasses import replace

import pytest
from conversations import conversations

from ridgeline.core.params import Limits
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.planning.objectives import Objective
from ridgeline.sim.fleet.durations import ConstantDurations
from ridgeline.sim.fleet.fleet import FleetConfig
from ridgeline.sim.fleet.measures import SimulationReport
from ridgeline.sim.fleet.replica import ReplicaConfig
from ridgeline.sim.fleet.service import Service

REPLICAS = 4
SERVER = ReplicaConfig(
    Limits(rows=64, samples=64, token_budget=4096, max_model_len=32_768, max_waiting=1 << 20, prefix_caching=True),
    KVShape((KVGroup("full", (0,)),), 64, 6_000, b"affinity"),
    ConstantDurations(0.008, 0.00004),
)
"""Some H100 with 8 B weights: 25,000 prompt tokens per second, 384,000 tokens of KV cache."""


def figures(config: FleetConfig, requests: int) -> SimulationReport:
    return Service(config, 1).run(conversations(1, requests, rate=12.0, pause=15.0)).report(Objective())


@pytest.mark.parametrize("requests", [600, pytest.param(10_000, marks=pytest.mark.night)])
def test_prefixes_find_their_replica(requests: int) -> None:
    kv, seconds = SERVER.kv, SERVER.durations
    assert isinstance(seconds, ConstantDurations)
    big = replace(SERVER, kv=replace(kv, blocks=REPLICAS * kv.blocks), durations=ConstantDurations(0.008, 0.00004 / REPLICAS))
    whole = figures(FleetConfig(big, 1), requests)
    found = {name: figures(FleetConfig(SERVER, REPLICAS, name), requests) for name in ("least-requests", "cache-aware")}
    affine, least = found["cache-aware"], found["least-requests"]
    print(f"hits: one cache {whole.cached_share:.3f}, { ({name: round(each.cached_share, 3) for name, each in found.items()}) }")
    print(f"TTFT p50: one server {whole.ttft.p50:.3f}, { ({name: round(each.ttft.p50, 3) for name, each in found.items()}) }")
    assert affine.cached_share >= 0.9 * whole.cached_share
    assert affine.ttft.p50 <= 0.6 * least.ttft.p50
