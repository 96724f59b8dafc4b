"""Blocks reserved by a learned quantile of outputs, where the KV cache is scarce: in the real engine over a device that takes time."""

from collections.abc import Callable
from random import Random

import pytest
from jobs import Job, Served, serve

from ridgeline.core.params import Limits
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.core.reservation import BUCKETS, MIN_SAMPLES, SAMPLES_PER_TABLE, OutputLengths, Reservation, _bucket, _longest
from ridgeline.sim.fleet.durations import ConstantDurations

LIMITS = Limits(rows=32, token_budget=512, max_model_len=4_096, depth=2, mixed_tokens=256)
KV = KVShape((KVGroup("full", (0,)),), 16, 600, b"scarce")
MAX_TOKENS = 2_000
"""Of every request, as clients send it: most outputs are a tenth of that."""


def scarce(monkeypatch: pytest.MonkeyPatch, fits: Callable[..., bool] | None = None) -> Served:
    rng = Random(1)
    jobs = [
        Job(0.0, max(1, min(1_500, int(rng.lognormvariate(4.7, 0.7)))), max(1, min(MAX_TOKENS, int(rng.lognormvariate(5, 0.8)))))
        for _ in range(400)
    ]
    with monkeypatch.context() as patch:
        if fits is not None:
            patch.setattr(Reservation, "will_fit", fits)
        return serve(jobs, LIMITS, KV, ConstantDurations(0.01, 0.0001, 1e-6), max_tokens=MAX_TOKENS)


def test_preemptions_fall_and_throughput_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    learned = scarce(monkeypatch)
    prompts_alone = scarce(monkeypatch, lambda self, sequences, available: True)
    worst_case = scarce(monkeypatch, lambda self, sequences, available: sum(map(self.most_to_come, sequences)) <= available)
    print(f"\n{'':14}{'preemptions':>12}{'running':>9}{'tokens/s':>10}")
    for name, served in {"prompts alone": prompts_alone, "learned": learned, "worst case": worst_case}.items():
        print(f"{name:14}{served.counts['Preempted']:12}{served.running:9.1f}{served.tokens_per_second:10.0f}")
    assert prompts_alone.counts["Preempted"] > 100
    assert learned.counts["Preempted"] <= 0.15 * prompts_alone.counts["Preempted"]
    assert learned.tokens_per_second >= prompts_alone.tokens_per_second
    assert learned.running > 3 * worst_case.running and learned.tokens_per_second > 2 * worst_case.tokens_per_second


def test_lengths_are_learned_and_forgotten() -> None:
    for length in [*range(300), 1 << 20, (1 << 31) - 1]:
        assert length <= _longest(_bucket(length)) < max(length + 1, 1.13 * length) and _bucket(length) < BUCKETS
    lengths = OutputLengths()
    assert not lengths.is_known
    for outputs in range(1, 101):
        lengths.add(outputs)
    assert lengths.is_known and 33 <= lengths.expected(0) <= 39, "35 of 100 have no more"
    assert 60 <= lengths.expected(50) <= 75, "half as far behind 50"
    assert lengths.expected(100 - MIN_SAMPLES // 2) == 2 * (100 - MIN_SAMPLES // 2), "few had more: nobody knows"
    for _ in range(8 * 1_024 + SAMPLES_PER_TABLE):
        lengths.add(1_000)
    assert lengths.expected(0) >= 1_000
