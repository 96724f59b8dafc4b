"""`observe.metrics` in Prometheus' text format. With `prometheus_live` the only place that knows prometheus_client.

Metrics with the meaning of vLLM's have vLLM's names (`vllm:…`), so that existing dashboards, alerts and autoscalers work unchanged; others
are `ridgeline_…`. No metric has two names: a second one would double the exposition and the storage. `compat="vllm"` adds what vLLM's own
dashboards ask for besides: the label `engine`, and figures that Ridgeline has under names of its own.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import accumulate
from typing import Final, TypeVar

from prometheus_client.core import CollectorRegistry, CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from ridgeline.core.plan import KVShape
from ridgeline.observe.histogram import Histogram
from ridgeline.observe.metrics import Metrics
from ridgeline.observe.requests import Tenant

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The text format, which every scraper reads. In OpenMetrics the library may turn the colon of `vllm:` into an underscore."""


VLLM: Final = "vllm:"
TENANT: Final = ("model_name", "tenant")
T = TypeVar("T")
Labelled = Iterable[tuple[tuple[str, ...], T]]
"""Values of a metric for each combination of values of its own labels."""


def exposition(
    metrics: Metrics,
    model_name: str,
    kv: KVShape,
    tenants: Collection[str] = (),
    compat: str = "none",
    pids: Mapping[str, int] | None = None,
    more: Iterable[Collector] = (),
) -> bytes:
    """All metrics in the text format.

    tenants  labels of those that are shown
    compat   see `ServerConfig.metrics_compat`
    more     what else is told (`observe.prometheus_live`)
    pids     prefix of names → process whose memory, files and processor time are told
    """
    return render([MetricsCollector(metrics, model_name, kv, tenants, compat == "vllm"), *more], pids or {})


def render(collectors: Iterable[Collector], pids: Mapping[str, int]) -> bytes:
    """Renders what collectors have, and what processes take, in the text format."""
    registry = CollectorRegistry()
    for each in collectors:
        registry.register(each)
    for prefix, pid in pids.items():
        process_collector(prefix, pid, registry)
    return generate_latest(registry)


def process_collector(prefix: str, pid: int, registry: CollectorRegistry | None = None) -> Collector:
    """Memory, files and processor time of a process."""
    return ProcessCollector(prefix, partial(int, pid), registry=registry)


class MetricsCollector(Collector):
    """Metrics of one model."""

    def __init__(self, metrics: Metrics, model_name: str, kv: KVShape, tenants: Collection[str], is_vllm: bool) -> None:
        self._metrics = metrics
        self._tenants = [(label, metrics.tenants.by_label[label]) for label in sorted(tenants) if label in metrics.tenants.by_label]
        self._model = model_name
        self._kv = kv
        self._is_vllm = is_vllm

    def describe(self) -> list[Metric]:
        """An empty list: names are not checked against other collectors, there are none."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every family, in a fixed order."""
        yield from self._gauges()
        yield from self._counters()
        yield from self._goodput()
        yield from self._histograms()
        if self._kv.host_blocks:
            yield from self._host()
        if self._metrics.tiers:
            yield from self._by_tier()
        if self._tenants:
            yield from self._by_tenant()
        if self._is_vllm:
            yield from self._vllm()

    def _gauges(self) -> Iterator[Metric]:
        m, blocks = self._metrics, self._kv.blocks
        free = blocks if m.free_blocks is None else m.free_blocks
        yield self._gauge("vllm:num_requests_running", "Choices that are running.", m.running)
        yield self._gauge("vllm:num_requests_waiting", "Choices that are waiting: not started, or preempted.", m.waiting)
        yield self._gauge("vllm:kv_cache_usage_perc", "KV cache usage: share of blocks in use (1 is all).", m.kv_cache_usage(blocks))
        yield self._gauge("ridgeline_expected_wait_seconds", "What a request that comes now should wait.", m.expected_wait)
        yield self._gauge("ridgeline_brown_out_level", "What is left out under load (--brown-out): 0 nothing … 4.", m.brown_out)
        if m.drafting is not None:
            told = m.drafting
            yield self._gauge("ridgeline_draft_depth", "Drafts of a sequence that offers some, as many as are worth it now.", told.depth)
            yield self._gauge("ridgeline_draft_chance", "Estimated chance that its first draft is right.", told.chance)
            yield self._gauge("ridgeline_draft_token_cost", "Share by which one more token makes a step longer.", told.token_cost)
        yield self._gauge("ridgeline_kv_blocks_free", "Free KV blocks.", free)
        yield self._gauge("ridgeline_kv_blocks_cached", "Cached KV blocks that no request uses.", m.cached_blocks)

    def _counters(self) -> Iterator[Metric]:
        m = self._metrics
        for name, text, value in (
            ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", m.prefix_queries),
            ("vllm:prefix_cache_hits", "Prompt tokens taken from the prefix cache.", m.prefix_hits),
            ("vllm:num_preemptions", "Preemptions.", m.preemptions),
            ("vllm:spec_decode_num_draft_tokens", "Speculative draft tokens that were verified.", m.draft_tokens),
            ("vllm:spec_decode_num_accepted_tokens", "Speculative draft tokens that were accepted.", m.accepted_tokens),
            ("vllm:prompt_tokens", "Prompt tokens of accepted requests.", m.prompt_tokens),
            ("vllm:generation_tokens", "Tokens sampled.", m.generation_tokens),
            ("ridgeline_immediate_ends", "Choices that ended at their first token.", m.ends.immediate),
            ("ridgeline_runaway_answers", "Choices that reached their limit repeating themselves.", m.ends.runaway),
            ("ridgeline_engine_starts", "Starts of the engine's process; every one behind the first is a failure.", m.engine_starts),
            ("ridgeline_steps", "Steps scheduled.", m.steps),
            ("ridgeline_late_steps", "Steps with decoding rows, a quarter longer than --step-ms or more.", m.late_steps),
            ("ridgeline_evicted_blocks", "Cached KV blocks that were evicted.", m.evicted_blocks),
            ("ridgeline_continued_requests", "Requests that went on in a new engine after theirs had ended.", m.continued),
        ):
            yield self._counter(name, text, [((), value)])
        swaps = [((result,), count) for result, count in m.swaps.items()]
        yield self._counter("ridgeline_model_swaps", "Swaps of the model (`admin swap`) by what became of them.", swaps, "result")
        if m.experts is not None:
            yield self._counter("ridgeline_expert_uses", "Experts that steps chose, each once a layer.", [((), m.experts.uses)])
            yield self._counter("ridgeline_expert_misses", "Of these such as were not in memory.", [((), m.experts.misses)])
            yield self._counter("ridgeline_expert_read_bytes", "Bytes of experts read from disk.", [((), m.experts.bytes)])
            yield self._counter("ridgeline_expert_wait_seconds", "Waits for them, of all threads together.", [((), m.experts.wait)])
            late = m.experts.right - m.experts.useful
            guesses = [(("useful",), m.experts.useful), (("late",), late), (("wrong",), m.experts.guesses - m.experts.right)]
            yield self._counter("ridgeline_expert_guesses", "Experts read ahead, by whether they were needed and there.", guesses, "result")
        finished = [((reason.value,), count) for reason, count in m.finished.items()]
        yield self._counter("vllm:request_success", "Choices that ended, by reason.", finished, "finished_reason")
        rejected = [((code,), count) for code, count in m.rejected.items()]
        yield self._counter("ridgeline_rejected_requests", "Requests told to come back later (429), by error.", rejected, "reason")
        answers = [((str(status), error), count) for (status, error), count in sorted(m.answers.items())]
        yield self._counter("ridgeline_http_requests", "HTTP requests answered, probes apart.", answers, "status", "error")

    def _goodput(self) -> Iterator[Metric]:
        m = self._metrics
        results = [((result.value,), count) for result, count in m.results.items()]
        text = "Requests that ended, by result: good is whole and within the objective (--goodput)."
        yield self._counter("ridgeline_requests", text, results, "result")
        yield self._counter("ridgeline_useful_tokens", "Tokens sampled for answers that came to their end.", [((), m.useful_tokens)])
        yield self._counter("ridgeline_good_tokens", "Tokens sampled for requests within the objective.", [((), m.good_tokens)])
        for name, limit in (("ttft", m.objective.ttft), ("itl", m.objective.itl)):
            if limit is not None:
                yield self._gauge(f"ridgeline_objective_{name}_seconds", "What a good request keeps (--goodput).", limit)

    def _histograms(self) -> Iterator[Metric]:
        m = self._metrics
        for name, text, histogram in (
            ("vllm:time_to_first_token_seconds", "Time from arrival to the first token.", m.time_to_first_token),
            ("vllm:inter_token_latency_seconds", "Time between two tokens of a choice.", m.inter_token),
            ("vllm:request_time_per_output_token_seconds", "Time per token of a choice behind its first.", m.time_per_output_token),
            ("vllm:e2e_request_latency_seconds", "Time from arrival to the end of a choice.", m.end_to_end),
            ("ridgeline_tokenizer_seconds", "Time from arrival to the ids of a prompt: template, tokenizer.", m.tokenizer),
            ("vllm:request_queue_time_seconds", "Time from arrival to the first scheduling.", m.queue),
            ("vllm:request_prefill_time_seconds", "Time from the first scheduling to the first token.", m.prefill),
            ("vllm:request_decode_time_seconds", "Time from the first token to the last.", m.decode),
            ("vllm:request_inference_time_seconds", "Time from the first scheduling to the last token.", m.inference),
            ("ridgeline_step_run_seconds", "Time of a step in the executor.", m.step_run),
            ("vllm:iteration_tokens_total", "Tokens computed in a step.", m.step_tokens),
            ("vllm:request_prompt_tokens", "Prompt tokens of a choice, at its end.", m.request_prompt),
            ("vllm:request_generation_tokens", "Tokens that a choice generated, at its end.", m.request_generation),
        ):
            yield self._histogram(name, text, [((), histogram)])

    def _host(self) -> Iterator[Metric]:
        """Metrics of the host tier of KV blocks."""
        m, size = self._metrics, self._kv.block_bytes
        yield self._gauge("ridgeline_kv_blocks_host", "KV blocks in use in host memory.", m.host_blocks)
        for name, text, value in (
            ("ridgeline_kv_bytes_to_host", "Bytes of KV blocks copied to the host.", m.blocks_to_host * size),
            ("ridgeline_kv_bytes_from_host", "Bytes of KV blocks copied back to the device.", m.blocks_from_host * size),
            ("ridgeline_host_cache_hits", "Tokens not computed, since their KV was copied back from the host.", m.host_hits),
        ):
            yield self._counter(name, text, [((), value)])

    def _by_tier(self) -> Iterator[Metric]:
        """Metrics of the tiers that keep blocks beyond this engine."""
        for name, text, key in (
            ("ridgeline_tier_hits", "Tokens not computed, since a tier brought their KV.", "hits"),
            ("ridgeline_tier_fetched_blocks", "KV blocks that a tier brought.", "fetched"),
            ("ridgeline_tier_converted_blocks", "KV blocks that a tier brought with another KV type or other heads.", "converted"),
            ("ridgeline_tier_kept_blocks", "KV blocks that a tier took.", "kept"),
            ("ridgeline_tier_bad_blocks", "KV blocks of a tier that were other than their names say, and not used.", "bad"),
            ("ridgeline_tier_dropped_blocks", "KV blocks that a tier did not take, since it failed or could not keep up.", "dropped"),
            ("ridgeline_tier_failures", "Calls of a tier that failed.", "failures"),
            ("ridgeline_tier_refused", "Calls of a tier whose blocks are of another layout.", "refused"),
        ):
            yield self._counter(name, text, [((tier,), counts[key]) for tier, counts in sorted(self._metrics.tiers.items())], "tier")

    def _by_tenant(self) -> Iterator[Metric]:
        open_choices = GaugeMetricFamily("ridgeline_tenant_open_choices", "Choices that are running or waiting.", labels=TENANT)
        for label, tenant in self._tenants:
            open_choices.add_metric([self._model, label], tenant.open_choices)
        yield open_choices
        counters: tuple[tuple[str, str, Callable[[Tenant], int]], ...] = (
            ("rejected_requests", "Requests told to come back later (429).", lambda tenant: tenant.rejected),
            ("prompt_tokens", "Prompt tokens of accepted requests.", lambda tenant: tenant.prompt_tokens),
            ("generation_tokens", "Tokens sampled for requests that ended.", lambda tenant: tenant.generation_tokens),
        )
        for name, text, value in counters:
            yield self._counter(f"ridgeline_tenant_{name}", text, [((label,), value(tenant)) for label, tenant in self._tenants], "tenant")
        results = [((label, result.value), count) for label, tenant in self._tenants for result, count in tenant.results.items()]
        yield self._counter("ridgeline_tenant_requests", "Requests that ended, by result.", results, "tenant", "result")
        first = [((label,), tenant.time_to_first_token) for label, tenant in self._tenants]
        yield self._histogram("ridgeline_tenant_time_to_first_token_seconds", "Time from arrival to the first token.", first, "tenant")

    def _vllm(self) -> Iterator[Metric]:
        """Metrics that vLLM has besides."""
        m = self._metrics
        waiting = GaugeMetricFamily("vllm:num_requests_waiting_by_reason", "Choices that wait.", labels=["model_name", "engine", "reason"])
        for reason, count in (("capacity", m.waiting), ("deferred", 0)):
            waiting.add_metric([self._model, "0", reason], count)
        yield waiting
        cache = GaugeMetricFamily("vllm:cache_config_info", "The KV cache.", labels=["engine", "block_size", "num_gpu_blocks"])
        cache.add_metric(["0", str(self._kv.block_tokens), str(self._kv.blocks)], 1)
        yield cache
        yield self._counter("vllm:prompt_tokens_cached", "Prompt tokens taken from the prefix cache.", [((), m.cached_tokens)])
        cached, computed = m.cached_tokens, m.prompt_tokens - m.cached_tokens
        sources = [(("local_compute",), computed), (("local_cache_hit",), cached), (("external_kv_transfer",), 0)]
        yield self._counter("vllm:prompt_tokens_by_source", "Prompt tokens computed, or taken from a cache.", sources, "source")
        rejections = [((code,), count) for code, count in m.rejected.items()]
        yield self._counter("vllm:admission_rejections", "Requests rejected, by the error's code.", rejections, "reason")
        yield self._histogram("vllm:request_prefill_kv_computed_tokens", "Prompt tokens computed.", [((), m.request_computed)])
        yield self._histogram("vllm:request_num_preemptions", "Preemptions of a choice.", [((), m.request_preemptions)])
        yield self._histogram("vllm:request_params_n", "Choices of a request.", [((), m.request_choices)])
        yield self._histogram("vllm:request_params_max_tokens", "max_tokens of a request.", [((), m.request_max_tokens)])
        yield self._histogram("vllm:request_max_num_generation_tokens", "The same, as vLLM has both.", [((), m.request_max_tokens)])

    def _labels(self, name: str) -> dict[str, str]:
        """The labels that every series of a metric has."""
        return {"model_name": self._model} | ({"engine": "0"} if self._is_vllm and name.startswith(VLLM) else {})

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        common = self._labels(name)
        family = GaugeMetricFamily(name, text, labels=list(common))
        family.add_metric(list(common.values()), value)
        return family

    def _counter(self, name: str, text: str, values: Labelled[float], *labels: str) -> Metric:
        common = self._labels(name)
        family = CounterMetricFamily(name, text, labels=[*common, *labels])
        for own, value in values:
            family.add_metric([*common.values(), *own], value)
        return family

    def _histogram(self, name: str, text: str, histograms: Labelled[Histogram], *labels: str) -> Metric:
        common = self._labels(name)
        family = HistogramMetricFamily(name, text, labels=[*common, *labels])
        for own, histogram in histograms:
            bounds = [*map(_bound, histogram.bounds), "+Inf"]
            counts = list(zip(bounds, accumulate(histogram.counts), strict=True))
            family.add_metric([*common.values(), *own], counts, histogram.sum)
        return family


def _bound(value: float) -> str:
    return f"{value:.16g}" if value != int(value) else f"{int(value)}.0"
