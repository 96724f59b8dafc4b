"""Order by slack, and targets of streams, in the real engine over a device that only takes time: goodput against fcfs."""

from random import Random
from typing import Any

import pytest
from jobs import Job, Served, front_end, serve

from ridgeline.core.pace import Pace
from ridgeline.core.params import Limits
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.core.step_time import StepSeconds
from ridgeline.planning.objectives import Objective
from ridgeline.sim.fleet.durations import ConstantDurations

STEP, TOKEN = 0.01, 0.0001
LIMITS = Limits(rows=32, token_budget=2_048, max_model_len=32_768, depth=2)
KV = KVShape((KVGroup("full", (0,)),), 16, 16_000, b"slo")
OBJECTIVES = {"chat": Objective(ttft=0.5, itl=0.06), "long": Objective(ttft=10.0, itl=0.06)}
KNEE = 7.0
"""Requests per second at which the goodput of order by slack is highest, about; fcfs is at its best a little below."""


def mixed(rate: float, seconds: float, seed: int = 1) -> list[Job]:
    """Nine chats of some 200 tokens and one document of some 6,000, each with its own target."""
    rng, now, jobs = Random(seed), 0.0, []
    while (now := now + rng.expovariate(rate)) < seconds:
        kind, prompt, output = ("long", 8.7, 4.3) if rng.random() < 0.1 else ("chat", 5.2, 4.6)
        tokens = max(1, min(16_000, int(rng.lognormvariate(prompt, 0.5)))), max(1, int(rng.lognormvariate(output, 0.5)))
        jobs.append(Job(now, *tokens, kind, {"ttft_ms": round(1e3 * (OBJECTIVES[kind].ttft or 0))}))
    return jobs


def goodput(jobs: list[Job], seconds: float) -> float:
    """Requests per second that met their objective."""
    met = [OBJECTIVES[job.kind].is_met(job.ttft, (job.last - job.first) / max(1, job.output - 1)) for job in jobs if not job.is_refused]
    return sum(met) / seconds


def under(policy: str, jobs: list[Job], **front: Any) -> Served:
    return serve(jobs, LIMITS, KV, ConstantDurations(STEP, TOKEN, 1e-8), policy, Pace(StepSeconds(STEP, TOKEN, TOKEN), 0.06), **front)


@pytest.mark.parametrize("load", [0.8, 1.0])
def test_goodput_rises_at_the_knee_and_throughput_stays(load: float) -> None:
    found = {}
    for policy in ("fcfs", "slo"):
        jobs = mixed(load * KNEE, 60)
        served = under(policy, jobs)
        found[policy] = goodput(jobs, 60), served.tokens_per_second
        print(f"{policy:5} at {load * KNEE:.1f}/s: goodput {found[policy][0]:.2f}/s, {served.tokens_per_second:.0f} tokens/s")
    assert found["slo"][0] >= 1.25 * found["fcfs"][0]
    assert found["slo"][1] >= 0.95 * found["fcfs"][1]


@pytest.mark.parametrize("seed", [1, 2])
def test_refusals_cost_no_throughput_at_the_knee(seed: int) -> None:
    """A queue that passes refuses nobody: those who will be late rank behind the others, and have what a lull leaves."""
    found = {}
    for policy in ("fcfs", "slo"):
        jobs = mixed(KNEE, 40, seed)
        served = under(policy, jobs, **(front_end(LIMITS.rows) if policy == "slo" else {}))
        found[policy] = goodput(jobs, 40), served.tokens_per_second
    assert found["slo"][0] >= 1.25 * found["fcfs"][0] and found["slo"][1] >= 0.98 * found["fcfs"][1], found


@pytest.mark.parametrize(("itl_ms", "low", "high"), [(25, 0.0, 0.03), (0, 0.055, 0.07), (150, 0.12, 0.16)])
def test_prompts_take_what_a_streams_target_leaves(itl_ms: int, low: float, high: float) -> None:
    """A stream beside prompts that never end: a step takes as long as the stream allows, or `step_ms`."""
    stream = Job(0.0, 10, 300, "chat", {"itl_ms": itl_ms})
    prompts = [Job(0.5 + each / 1e3, 8_000, 1, "long") for each in range(12)]
    under("fcfs", [stream, *prompts])
    assert low <= sorted(stream.gaps)[-20] <= high
    assert all(job.first > 0 for job in prompts)


def test_who_floods_takes_no_others_slack() -> None:
    """A tenant within its share beside one that asks for several times what there is."""
    rng, flood = Random(2), mixed(4 * KNEE, 20, seed=3)
    victim = [Job(3 + rng.random() * 17, 200, 40, "chat", {"ttft_ms": 500, "tenant": "v", "domain": b"v"}) for _ in range(30)]
    under("slo", [*flood, *victim])
    waits = sorted(job.ttft for job in victim)
    print(f"victim: median {waits[15]:.2f} s, worst {waits[-1]:.2f} s")
    assert waits[27] < 1.0
