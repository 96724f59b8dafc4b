"""Metrics of a router, in Prometheus' text format."""

from functools import cache
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from ridgeline.observe.prometheus import CONTENT_TYPE
from ridgeline.router.replicas import Replicas

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class RouterMetrics:
    """Counters that the proxy raises; gauges are read when they are asked for."""

    content_type = CONTENT_TYPE

    def __init__(self) -> None:
        own = self._registry = CollectorRegistry()
        self._answers = Counter("ridgeline_router_answers", "Answers of replicas, by class of status.", ("replica", "status"), registry=own)
        self._first_byte = Histogram(
            "ridgeline_router_first_byte_seconds", "From a request to the first byte of its answer's body.", ("replica",), registry=own,
            buckets=SECONDS,
        )  # fmt: skip
        self.retries = Counter("ridgeline_router_retries", "Requests that went to another replica.", registry=own)
        self.hedges = Counter("ridgeline_router_hedged_requests", "Requests that a second replica was asked too.", registry=own)
        self.hedges_won = Counter("ridgeline_router_hedged_answers", "Hedged requests whose second replica began first.", registry=own)
        self.continued = Counter("ridgeline_router_continued_answers", "Streams that a replica went on with.", ("replica",), registry=own)
        self.broken = Counter("ridgeline_router_broken_answers", "Answers whose replica ended before they did.", registry=own)
        self._open = Gauge("ridgeline_router_requests_running", "Requests that a replica has.", ("replica",), registry=own)
        self._held = Gauge("ridgeline_router_requests_held", "Requests that wait for a replica while there is none.", registry=own)
        self._ready = Gauge("ridgeline_router_replica_ready", "1 while a replica gets requests.", ("replica",), registry=own)
        self._blocks = Gauge("ridgeline_router_known_blocks", "Blocks that a replica has told of.", ("replica",), registry=own)
        self._matched = Gauge("ridgeline_router_matched_tokens", "Prompt tokens, about, sent where they had been before.", registry=own)
        self._prompts = Gauge("ridgeline_router_prompt_tokens", "Prompt tokens (about) of all requests.", registry=own)

        self.answers = cache(self._answers.labels)
        """(URL of a replica, class of status) → its counter, found once: labels cost more than a count."""
        self.first_byte = cache(self._first_byte.labels)

    def exposition(self, replicas: Replicas) -> bytes:
        """All of it, as text."""
        ready = {each.number for each in replicas.ready()}
        self._open.clear()
        self._blocks.clear()
        self._ready.clear()  # of replicas that have left
        for each in replicas.all:
            self._open.labels(each.upstream.url).set(each.load.requests)
            self._ready.labels(each.upstream.url).set(each.number in ready)
            if replicas.held is not None:
                self._blocks.labels(each.upstream.url).set(replicas.held.blocks(each.number))
        self._held.set(replicas.room.count)
        self._matched.set(replicas.chooser.matched_tokens)
        self._prompts.set(replicas.chooser.prompt_tokens)
        return generate_latest(self._registry)
