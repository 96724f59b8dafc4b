"""Overload, in the real engine over a device that only takes time, behind the front end's bound on how long a request may wait."""

from random import Random

from jobs import Job, front_end, serve

from ridgeline.core.pace import Pace
from ridgeline.core.params import Limits
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.core.step_time import StepSeconds
from ridgeline.sim.fleet.durations import ConstantDurations

STEP, TOKEN, ROWS = 0.01, 0.0001, 32
LIMITS = Limits(rows=ROWS, token_budget=1_024, max_model_len=4_096, depth=2)
KV = KVShape((KVGroup("full", (0,)),), 16, 8_000, b"overload")
CAPACITY = 21.0
"""Requests per second that the device answers, about."""


def at(load: float, ttft_ms: int = 0, seconds: float = 40.0, seed: int = 1) -> tuple[float, float, float]:
    """Goodput per second, p99 of the time to first token, and the share of requests that was refused. Times of the first fifth do not
    count. ttft_ms 0: nobody has a target, nobody is refused."""
    rng, now, jobs = Random(seed), 0.0, []
    while (now := now + rng.expovariate(load * CAPACITY)) < seconds:
        tokens = max(1, min(2_000, int(rng.lognormvariate(5.0, 0.7)))), max(1, min(400, int(rng.lognormvariate(4.0, 0.6))))
        jobs.append(Job(now, *tokens, fields={"ttft_ms": ttft_ms}))
    pace = Pace(StepSeconds(STEP, TOKEN, TOKEN), 0.06)
    serve(jobs, LIMITS, KV, ConstantDurations(STEP, TOKEN, 1e-7), "slo", pace, **front_end(ROWS))
    counted = [job for job in jobs if job.at > seconds / 5]
    ttft = sorted(job.ttft for job in counted if not job.is_refused)
    good = sum(each <= (ttft_ms or 1e9) / 1e3 for each in ttft) / (0.8 * seconds)
    return good, ttft[int(0.99 * len(ttft))], sum(job.is_refused for job in counted) / len(counted)


def test_four_times_what_there_is_costs_little_goodput() -> None:
    """The target is twice the p99 of 0.8 load, and who would wait for a quarter of it is refused once the server is behind."""
    _, p99, _ = at(0.8)
    target = round(2e3 * p99)
    found = {load: at(load, target) for load in (1.3, 4.0)}
    print(f"\np99 of TTFT at 0.8 without targets: {p99:.2f} s")
    for load, (good, late, refused) in found.items():
        print(f"load {load}: goodput {good:5.2f}/s, p99 of TTFT {late:.2f} s, refused {refused:.0%}")
    assert found[4.0][0] >= 0.9 * max(good for good, _, _ in found.values())
    assert found[4.0][1] <= 2 * p99
