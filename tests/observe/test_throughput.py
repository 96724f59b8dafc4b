"""The line about throughput and queue: what ten seconds of events come to."""

import asyncio
import logging

import pytest

from ridgeline.core import events
from ridgeline.core.events import Event
from ridgeline.observe import throughput
from ridgeline.observe.metrics import Metrics
from ridgeline.observe.requests import Result
from ridgeline.observe.throughput import Totals, log_throughput, queue


def after(*happened: Event) -> Metrics:
    metrics = Metrics()
    for event in happened:
        metrics.apply(event)
    return metrics


def step(number: int, counts: tuple[int, ...], sampled: tuple[int, ...], drafted: int = 0, accepted: int = 0) -> list[Event]:
    rows = tuple(range(len(counts)))
    return [
        events.Scheduled(number, 0.0, rows, counts, 1, 60, 20),  # type: ignore[arg-type]
        events.Computed(number, 0.0, rows, sampled, drafted, accepted),  # type: ignore[arg-type]
    ]


def test_prefill_and_decode_per_second() -> None:
    """100 prompt tokens in two chunks, of which the second samples; then decoding, of two drafts one is right."""
    metrics = after(*step(1, (60,), (0,)), *step(2, (40,), (1,)), *step(3, (3,), (2,), 2, 1))
    metrics.results[Result.GOOD] += 5
    found = throughput.throughput(Totals.read(Metrics(), 0.0), Totals.read(metrics, 10.0))
    assert found.pop("good_requests_per_second") == 0.5
    assert found == {"prefill_tokens_per_second": 9.9, "decode_tokens_per_second": 0.3, "prefix_hit_rate": None}


def test_hit_rate_and_queue() -> None:
    metrics = after(
        events.Admitted("a", 0.0, 80, 2, 0.0), events.Started("a", 0, 1, 0.0, False), events.PrefixHit("a", 0, 20), *step(1, (60,), (1,))
    )
    assert throughput.throughput(Totals.read(Metrics(), 0.0), Totals.read(metrics, 10.0))["prefix_hit_rate"] == 0.25
    assert queue(metrics, 100) == {"running": 1, "waiting": 1, "kv_cache_usage": pytest.approx(0.2)}
    assert queue(Metrics(), 100)["kv_cache_usage"] == 0


def test_a_line_while_something_is_computed_and_none_at_rest(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(throughput, "INTERVAL_SECONDS", 0.01)
    metrics = Metrics()

    async def run() -> None:
        logging_task = asyncio.create_task(log_throughput(lambda: metrics, lambda: 100))
        await asyncio.sleep(0.05)
        assert not caplog.records
        for event in step(1, (5,), (1,)):
            metrics.apply(event)
        await asyncio.sleep(0.05)
        logging_task.cancel()

    with caplog.at_level(logging.INFO, "ridgeline"):
        asyncio.run(run())
    [line] = caplog.records
    assert line.getMessage() == "throughput" and line.__dict__["fields"]["decode_tokens_per_second"] > 0
