"""Throughput and queue as a log line, every ten seconds in which something was computed."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from ridgeline.observe.logs import with_fields
from ridgeline.observe.metrics import Metrics
from ridgeline.observe.requests import Result

log = logging.getLogger("ridgeline.engine")

INTERVAL_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Totals:
    """Counters of the metrics at a time in seconds."""

    time: float
    steps: int
    computed: int
    sampled: int
    rejected_drafts: int
    queries: int
    hits: int
    good: int

    @classmethod
    def read(cls, metrics: Metrics, now: float) -> "Totals":
        """The counters as they are."""
        return cls(
            now, metrics.steps, int(metrics.step_tokens.sum), metrics.generation_tokens,
            metrics.draft_tokens - metrics.accepted_tokens, metrics.prefix_queries, metrics.prefix_hits,
            metrics.results[Result.GOOD],
        )  # fmt: skip


async def log_throughput(current: Callable[[], Metrics], blocks: Callable[[], int], **of: str) -> NoReturn:
    """Writes the lines until it is cancelled. `blocks`: those of the KV cache; `of`: further fields."""
    before = Totals.read(current(), time.monotonic())
    while True:
        await asyncio.sleep(INTERVAL_SECONDS)
        metrics = current()
        now = Totals.read(metrics, time.monotonic())
        if now.steps > before.steps or metrics.running or metrics.waiting:
            log.info("throughput", extra=with_fields(**of, **throughput(before, now), **queue(metrics, blocks())))
        before = now


def throughput(before: Totals, now: Totals) -> dict[str, float | None]:
    """Tokens per second between two readings. What steps computed and no sample came of is prefill; prefix_hit_rate is of prompt tokens."""
    seconds = max(1e-9, now.time - before.time)
    sampled = now.sampled - before.sampled
    prefill = now.computed - before.computed - sampled - (now.rejected_drafts - before.rejected_drafts)
    queries = now.queries - before.queries
    return {
        "prefill_tokens_per_second": max(0, prefill) / seconds,
        "decode_tokens_per_second": sampled / seconds,
        "good_requests_per_second": (now.good - before.good) / seconds,
        "prefix_hit_rate": (now.hits - before.hits) / queries if queries else None,
    }


def queue(metrics: Metrics, blocks: int) -> dict[str, float]:
    """Sequences that run and wait, and the share of KV blocks that they hold."""
    return {"running": metrics.running, "waiting": metrics.waiting, "kv_cache_usage": metrics.kv_cache_usage(blocks)}
