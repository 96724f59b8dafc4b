"""`observe.metrics` in Prometheus' text format. The only place that knows prometheus_client.

Metrics with the meaning of vLLM's have vLLM's names (`vllm:…`), so that existing dashboards, alerts and autoscalers work unchanged; others
are `ridgeline_…`. No metric has two names: a second one would double the exposition and the storage.
"""

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Final

from prometheus_client.core import CollectorRegistry, CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from ridgeline.core.plan import KVShape
from ridgeline.observe.metrics import Histogram, Metrics

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The text format, which every scraper reads. In OpenMetrics the library may turn the colon of `vllm:` into an underscore."""


def exposition(metrics: Metrics, model_name: str, kv: KVShape, tenants: Mapping[str, tuple[int, int]] | None = None) -> bytes:
    """All metrics in the text format. `tenants`: open choices and rejected requests of each."""
    registry = CollectorRegistry()
    registry.register(_Collector(metrics, model_name, kv, tenants or {}))
    return generate_latest(registry)


class _Collector(Collector):
    def __init__(self, metrics: Metrics, model_name: str, kv: KVShape, tenants: Mapping[str, tuple[int, int]]) -> None:
        self._metrics = metrics
        self._tenants = tenants
        self._model_name = model_name
        self._kv = kv

    def describe(self) -> list[Metric]:
        """An empty list: names are not checked against other collectors, there are none."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every family, in a fixed order."""
        m = self._metrics
        blocks = self._kv.blocks
        free = blocks if m.free_blocks is None else m.free_blocks
        yield self._gauge("vllm:num_requests_running", "Choices that are running.", m.running)
        yield self._gauge("vllm:num_requests_waiting", "Choices that are waiting: not started, or preempted.", m.waiting)
        yield self._gauge("vllm:kv_cache_usage_perc", "KV cache usage: share of blocks in use (1 is all).", m.kv_cache_usage(blocks))
        yield self._gauge("ridgeline_kv_blocks_free", "Free KV blocks.", free)
        yield self._gauge("ridgeline_kv_blocks_cached", "Cached KV blocks that no request uses.", m.cached_blocks)
        if self._kv.host_blocks:
            yield from self._host()
        yield self._counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", m.prefix_queries)
        yield self._counter("vllm:prefix_cache_hits", "Prompt tokens taken from the prefix cache.", m.prefix_hits)
        yield self._counter("vllm:num_preemptions", "Preemptions.", m.preemptions)
        yield self._counter("vllm:spec_decode_num_draft_tokens", "Speculative draft tokens that were verified.", m.draft_tokens)
        yield self._counter("vllm:spec_decode_num_accepted_tokens", "Speculative draft tokens that were accepted.", m.accepted_tokens)
        yield self._counter("vllm:prompt_tokens", "Prompt tokens of accepted requests.", m.prompt_tokens)
        yield self._counter("vllm:generation_tokens", "Tokens sampled.", m.generation_tokens)
        yield self._finished()
        yield self._counter("ridgeline_immediate_ends", "Choices that ended at their first token.", m.ends.immediate)
        yield self._counter("ridgeline_runaway_answers", "Choices that reached their limit repeating themselves.", m.ends.runaway)
        yield self._counter("ridgeline_steps", "Steps scheduled.", m.steps)
        yield self._counter("ridgeline_late_steps", "Steps with decoding rows, a quarter longer than --step-ms or more.", m.late_steps)
        yield self._counter("ridgeline_evicted_blocks", "Cached KV blocks that were evicted.", m.evicted_blocks)
        yield self._counter("ridgeline_rejected_requests", "Requests that were rejected: too many wait, or they fit no more.", m.rejected)
        yield self._counter("ridgeline_engine_restarts", "Engines that were started because the one before had ended.", m.restarts)
        yield self._counter("ridgeline_continued_requests", "Requests that went on in a new engine after theirs had ended.", m.continued)
        yield from self._by_tenant()
        yield self._histogram("vllm:time_to_first_token_seconds", "Time from arrival to the first token.", m.time_to_first_token)
        yield self._histogram("vllm:inter_token_latency_seconds", "Time between two tokens of a choice.", m.inter_token)
        yield self._histogram("vllm:e2e_request_latency_seconds", "Time from arrival to the end of a choice.", m.end_to_end)
        yield self._histogram("vllm:request_queue_time_seconds", "Time from arrival to the first scheduling.", m.queue)
        yield self._histogram("ridgeline_step_run_seconds", "Time of a step in the executor.", m.step_run)
        yield self._histogram("vllm:iteration_tokens_total", "Tokens computed in a step.", m.step_tokens)
        yield self._histogram("vllm:request_prompt_tokens", "Prompt tokens of a choice, at its end.", m.request_prompt)
        yield self._histogram("vllm:request_generation_tokens", "Tokens that a choice generated, at its end.", m.request_generation)

    def _host(self) -> Iterator[Metric]:
        """Metrics of the host tier of KV blocks."""
        m, size = self._metrics, self._kv.block_bytes
        yield self._gauge("ridgeline_kv_blocks_host", "KV blocks in use in host memory.", m.host_blocks)
        yield self._counter("ridgeline_kv_bytes_to_host", "Bytes of KV blocks copied to the host.", m.blocks_to_host * size)
        yield self._counter("ridgeline_kv_bytes_from_host", "Bytes of KV blocks copied back to the device.", m.blocks_from_host * size)
        yield self._counter("ridgeline_host_cache_hits", "Tokens not computed, since their KV was copied back from the host.", m.host_hits)

    def _by_tenant(self) -> Iterator[Metric]:
        labels = ["model_name", "tenant"]
        choices = GaugeMetricFamily("ridgeline_tenant_open_choices", "Choices that are running or waiting.", labels=labels)
        rejected = CounterMetricFamily("ridgeline_tenant_rejected_requests", "Requests rejected, as too many wait.", labels=labels)
        for tenant, (open_choices, refused) in sorted(self._tenants.items()):
            choices.add_metric([self._model_name, tenant], open_choices)
            rejected.add_metric([self._model_name, tenant], refused)
        yield from (choices, rejected) if self._tenants else ()

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family

    def _finished(self) -> Metric:
        family = CounterMetricFamily("vllm:request_success", "Choices that ended, by reason.", labels=["model_name", "finished_reason"])
        for reason, count in self._metrics.finished.items():
            family.add_metric([self._model_name, reason.value], count)
        return family

    def _histogram(self, name: str, text: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(name, text, labels=["model_name"])
        bounds = [*map(_bound, histogram.bounds), "+Inf"]
        family.add_metric([self._model_name], list(zip(bounds, accumulate(histogram.counts), strict=True)), histogram.sum)
        return family


def _bound(value: float) -> str:
    return f"{value:.16g}" if value != int(value) else f"{int(value)}.0"
