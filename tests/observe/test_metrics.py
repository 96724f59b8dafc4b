"""Metrics from events: each one from a short sequence that can be counted by hand; and the exposition."""

from array import array
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ridgeline.core import events
from ridgeline.core.events import Finish, Usage
from ridgeline.core.plan import KVGroup, KVShape, Timings
from ridgeline.errors import ConfigError
from ridgeline.observe.histogram import Histogram
from ridgeline.observe.metrics import Metrics
from ridgeline.observe.prometheus import exposition
from ridgeline.observe.requests import MAX_TENANTS, ChoiceTimes, Result, parse_goodput
from ridgeline.planning.objectives import Objective

KV = KVShape((KVGroup("full", (0,)),), 16, 16, b"")


def story(*happened: events.Event) -> Metrics:
    metrics = Metrics()
    for event in happened:
        metrics.apply(event)
    return metrics


def scheduled(step: int, time: float, counts: dict[int, int], free: int = 10, cached: int = 0) -> events.Scheduled:
    return events.Scheduled(step, time, tuple(counts), array("i", counts.values()), 0, free, cached)


def computed(step: int, time: float, sampled: dict[int, int]) -> events.Computed:
    return events.Computed(step, time, tuple(sampled), array("i", sampled.values()))


def closed(name: str, time: float, reason: Finish = Finish.LENGTH, choice: int = 0, out: int = 2) -> events.Closed:
    return events.Closed(name, choice, reason, Usage(30, out, 16), time)


TWO_TOKENS = (
    events.Admitted("a", 100.0, 30, 1, 99.75),
    events.Started("a", 0, 7, 100.4, resumed=False),
    events.PrefixHit("a", 0, 16),
    scheduled(0, 100.4, {7: 14}, free=8),
    computed(0, 101.0, {7: 1}),
    events.StepTimed(0, Timings(run=0.6)),
    scheduled(1, 101.0, {7: 1}, free=8),
    closed("a", 101.5),
    computed(1, 101.5, {7: 1}),
)


def test_one_request() -> None:
    m = story(*TWO_TOKENS)
    assert (m.prompt_tokens, m.generation_tokens, m.prefix_queries, m.prefix_hits, m.steps) == (30, 2, 30, 16, 2)
    assert (m.running, m.waiting, m.finished[Finish.LENGTH]) == (0, 0, 1)
    assert m.queue.sum == pytest.approx(0.65) and m.queue.count == 1
    assert m.time_to_first_token.sum == pytest.approx(1.25) and m.time_to_first_token.count == 1
    assert m.inter_token.sum == pytest.approx(0.5) and m.inter_token.count == 1, "the last token comes after the end in the same step"
    assert m.end_to_end.sum == pytest.approx(1.75)
    assert m.prefill.sum == pytest.approx(0.6) and m.decode.sum == pytest.approx(0.5) and m.inference.sum == pytest.approx(1.1)
    assert (m.time_per_output_token.sum, m.time_per_output_token.count) == (pytest.approx(0.5), 1)
    assert (m.step_tokens.count, m.step_tokens.sum) == (2, 15)
    assert (m.request_prompt.sum, m.request_generation.sum, m.step_run.sum) == (30, 2, 0.6)


def ended(*happened: events.Event, objective: Objective) -> Metrics:
    metrics = Metrics(objective)
    for event in happened:
        metrics.apply(event)
    return metrics


@pytest.mark.parametrize(
    ("objective", "result"),
    [
        ("ttft=1.25s,itl=0.5s", Result.GOOD), ("ttft=1.24s", Result.LATE_FIRST_TOKEN), ("itl=499ms", Result.SLOW_TOKENS),
        ("ttft:1249 tpot:1", Result.LATE_FIRST_TOKEN), ("", Result.GOOD),
    ],
)  # fmt: skip
def test_goodput(objective: str, result: Result) -> None:
    """By the definition of `bench serve`, and from arrival."""
    m = ended(*TWO_TOKENS, objective=parse_goodput(objective))
    assert [each for each, count in m.results.items() if count] == [result]
    assert (m.useful_tokens, m.good_tokens) == (2, 2 if result is Result.GOOD else 0)


def test_a_requests_own_targets_count_before_the_servers() -> None:
    for ttft, itl, result in ((1250, 500, Result.GOOD), (1249, 0, Result.LATE_FIRST_TOKEN), (0, 499, Result.SLOW_TOKENS)):
        own = replace(TWO_TOKENS[0], ttft_ms=ttft, itl_ms=itl)
        assert ended(own, *TWO_TOKENS[1:], objective=Objective(9.0, 9.0)).results[result] == 1
    slower = replace(TWO_TOKENS[0], ttft_ms=2000, itl_ms=2000)
    assert ended(slower, *TWO_TOKENS[1:], objective=Objective(0.1, 0.1)).results[Result.GOOD] == 1


def test_the_worst_choice_is_the_requests_result() -> None:
    started = [events.Started("a", choice, 1 + choice, 0.0, resumed=False) for choice in range(2)]
    one = (events.Admitted("a", 0.0, 5, 2, 0.0, "t"), *started, computed(0, 1.0, {1: 1, 2: 1}))
    m = ended(*one, closed("a", 2.0), closed("a", 2.0, Finish.ABORT, 1), objective=Objective())
    assert m.results[Result.ABORTED] == 1 and m.useful_tokens == 0 and m.tenants.by_label["t"].open_choices == 0
    m = ended(*one, closed("a", 2.0), objective=Objective())
    m.engine_lost()
    assert m.results[Result.FAILED] == 0 and m.tenants.by_label["t"].open_choices == 1
    m.apply(closed("a", 2.0, Finish.ERROR))
    assert m.results[Result.FAILED] == 1 and m.tenants.by_label["t"].open_choices == 0
    assert ChoiceTimes(0.0, 0.0, 1.0, 3.0, 4.0).tpot(3) == 1.0 and ChoiceTimes(0.0, 0.0, 1.0, 1.0, 4.0).tpot(1) is None


@pytest.mark.parametrize("text", ["ttft=1", "x=1s", "ttft=1s,ttft=2s", "ttft=0s", "ttft:1e3", "ttft=90000s", "ttft", "=1s"])
def test_a_goodput_that_is_none(text: str) -> None:
    with pytest.raises(ConfigError, match="--goodput has"):
        parse_goodput(text)


def test_tenants_have_a_bound() -> None:
    m = Metrics()
    for number in range(MAX_TENANTS + 9):
        m.apply(events.Admitted(f"r{number}", 0.0, 3, 1, 0.0, f"t{number}"))
    m.http_ended(429, "overloaded", "t70")
    assert len(m.tenants.by_label) == MAX_TENANTS + 1
    others = m.tenants.by_label["(other)"]
    assert (others.prompt_tokens, others.rejected, m.tenants.by_label["t5"].prompt_tokens) == (27, 1, 3)
    body = exposition(m, "m", KV, m.tenants.by_label).decode()
    assert 'ridgeline_tenant_open_choices{model_name="m",tenant="(other)"} 9.0' in body
    assert 'ridgeline_tenant_requests_total{model_name="m",result="good",tenant="t5"} 0.0' in body
    assert "tenant" not in exposition(m, "m", KV).decode()


VLLM_DASHBOARD = (
    "vllm:e2e_request_latency_seconds_bucket", "vllm:prompt_tokens_total", "vllm:generation_tokens_total",
    "vllm:kv_cache_usage_perc", "vllm:inter_token_latency_seconds_bucket", "vllm:num_requests_running", "vllm:num_requests_waiting",
    "vllm:request_success_total", "vllm:time_to_first_token_seconds_bucket", "vllm:request_prompt_tokens_bucket",
    "vllm:request_generation_tokens_bucket", "vllm:request_queue_time_seconds_sum", "vllm:request_prefill_time_seconds_sum",
    "vllm:request_decode_time_seconds_sum", "vllm:request_max_num_generation_tokens_bucket",
    "vllm:request_inference_time_seconds_sum", "vllm:request_params_n_bucket", "vllm:request_params_max_tokens_bucket",
    "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:num_preemptions_total",
    "vllm:iteration_tokens_total_bucket", "vllm:request_time_per_output_token_seconds_bucket",
    "vllm:num_requests_waiting_by_reason", "vllm:prompt_tokens_cached_total", "vllm:admission_rejections_total",
    "vllm:prompt_tokens_by_source_total", "vllm:request_prefill_kv_computed_tokens_sum", "vllm:request_num_preemptions_bucket",
    "vllm:cache_config_info",
)  # fmt: skip
"""What the dashboards of vLLM's repository, and its autoscaling examples, ask for."""


def test_vllms_names_and_labels() -> None:
    body = exposition(story(*TWO_TOKENS), "m", KV, compat="vllm").decode()
    samples = [line for line in body.splitlines() if line.startswith("vllm:")]
    assert {line.partition("{")[0] for line in samples} >= set(VLLM_DASHBOARD)
    assert all('engine="0"' in line for line in samples)
    assert all('model_name="m"' in line for line in samples if not line.startswith("vllm:cache_config_info"))
    own = [line for line in body.splitlines() if line.startswith("ridgeline_")]
    assert own and not any("engine=" in line for line in own)
    assert "engine=" not in exposition(story(*TWO_TOKENS), "m", KV).decode()


def test_gauges_follow_rows() -> None:
    started = [events.Started("a", choice, 1 + choice, 0.0, resumed=False) for choice in range(2)]
    m = story(events.Admitted("a", 0.0, 5, 3, 0.0), *started)
    assert (m.running, m.waiting) == (2, 1)
    m.apply(events.Preempted("a", 1, "b", "blocks"))
    assert (m.running, m.waiting, m.preemptions) == (1, 2, 1)
    m.apply(events.Started("a", 1, 9, 1.0, resumed=True))
    assert (m.running, m.waiting, m.queue.count) == (2, 1, 2), "a resumption is no second wait in the queue"
    for choice in range(3):
        m.apply(closed("a", 2.0, Finish.STOP, choice))
    assert (m.running, m.waiting, m.finished[Finish.STOP]) == (0, 0, 3)
    assert m.request_preemptions.counts[:2] == [2, 1] and (m.cached_tokens, m.request_computed.sum) == (16, 42)
    assert m.prompt_tokens == 5


def test_drafts_are_counted_and_several_ids_share_a_gap() -> None:
    m = story(
        events.Admitted("a", 0.0, 5, 1, 0.0), events.Started("a", 0, 1, 0.0, resumed=False), computed(1, 1.0, {1: 1}),
        events.Computed(2, 3.0, (1,), array("i", [4]), drafted=5, accepted=3),
    )  # fmt: skip
    assert (m.draft_tokens, m.accepted_tokens, m.generation_tokens) == (5, 3, 5)
    assert m.inter_token.sum == 0.5
    body = exposition(m, "m", KV).decode()
    assert 'vllm:spec_decode_num_draft_tokens_total{model_name="m"} 5.0' in body
    assert 'vllm:spec_decode_num_accepted_tokens_total{model_name="m"} 3.0' in body


def test_gaps_of_one_step_may_differ() -> None:
    """Rows that wait for different times are counted each with its own."""
    started = [events.Started("a", choice, 1 + choice, 0.0, resumed=False) for choice in range(4)]
    m = story(
        events.Admitted("a", 0.0, 5, 4, 0.0), *started, computed(0, 1.0, {1: 1, 3: 1}), computed(1, 2.0, {2: 1, 4: 1}),
        computed(2, 4.0, {1: 1, 2: 1, 4: 1, 3: 1}),
    )  # fmt: skip
    assert (m.inter_token.sum, m.inter_token.count) == (10.0, 4)
    assert [m.inter_token.counts[m.inter_token.bounds.index(gap)] for gap in (2.0, 3.0)] == [2, 2]


def test_abort_before_a_row() -> None:
    m = story(events.Admitted("a", 0.0, 5, 1, 0.0), closed("a", 1.0, Finish.ABORT, out=0))
    assert (m.running, m.waiting, m.finished[Finish.ABORT], m.queue.count) == (0, 0, 1, 0)


def test_what_an_engine_that_ends_leaves_open_goes_on_or_fails() -> None:
    m = story(*TWO_TOKENS[:5], events.Admitted("b", 101.0, 5, 2, 101.0))
    prompts, waits = m.prompt_tokens, m.queue.count
    m.engine_lost()
    assert (m.running, m.waiting, m.finished[Finish.ERROR], m.free_blocks) == (0, 3, 0, None)
    (request,) = [each.request_id for each in TWO_TOKENS if isinstance(each, events.Admitted)]
    for event in (events.Admitted(request, 103.0, 5, 1, 100.0), events.Started(request, 0, 1, 103.0, True), computed(1, 104.0, {1: 1})):
        m.apply(event)
    assert (m.running, m.waiting, m.continued) == (1, 2, 1)
    assert (m.prompt_tokens, m.queue.count, m.time_to_first_token.count) == (prompts, waits, 1)
    assert m.inter_token.sum > 1, "a client waited that long between two tokens"
    for event in (closed(request, 105.0), closed("b", 105.0, Finish.ERROR), closed("b", 105.0, Finish.ERROR)):
        m.apply(event)
    assert (m.running, m.waiting, m.finished[Finish.ERROR], m.end_to_end.count) == (0, 0, 2, 3)
    body = exposition(m, "m", KV).decode()
    assert 'ridgeline_continued_requests_total{model_name="m"} 1.0' in body


def test_unknown_requests_change_no_gauge() -> None:
    m = story(events.Started("x", 0, 1, 0.0, resumed=False), events.Preempted("x", 0, "y", "row"), computed(0, 0.0, {1: 1}))
    assert (m.running, m.waiting) == (0, 0)


@pytest.mark.parametrize(("value", "bucket"), [(0.5, 0), (1.0, 0), (1.5, 1), (2.0, 1), (3.0, 2)])
def test_a_bucket_holds_its_upper_bound(value: float, bucket: int) -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.observe(value)
    assert histogram.counts.index(1) == bucket and histogram.sum == value


def test_exposition() -> None:
    body = exposition(story(*TWO_TOKENS), 'odd "name"\n', KV)
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    samples = {(s.name, s.labels.get("le") or s.labels.get("finished_reason")): s.value for f in families.values() for s in f.samples}
    assert all(s.labels["model_name"] == 'odd "name"\n' for f in families.values() for s in f.samples)
    assert samples["vllm:generation_tokens_total", None] == 2
    assert samples["vllm:request_success_total", "length"] == 1
    assert samples["vllm:kv_cache_usage_perc", None] == 0.5
    assert samples["vllm:time_to_first_token_seconds_count", None] == 1
    assert samples["vllm:time_to_first_token_seconds_bucket", "0.5"] == 0
    assert samples["vllm:time_to_first_token_seconds_bucket", "1.0"] == 0
    assert samples["vllm:time_to_first_token_seconds_bucket", "1.5"] == 1
    assert samples["vllm:time_to_first_token_seconds_bucket", "+Inf"] == 1
    assert min(float(le) for name, le in samples if name == "vllm:request_queue_time_seconds_bucket") == 0.001


def test_the_host_tier() -> None:
    last = events.Scheduled(1, 0.0, (7,), array("i", [1]), 0, 8, 0, 3)
    happened = (events.Moved(4, 17), events.Moved(17, 2), events.Moved(5, 18), events.Evicted(18), events.PrefixHit("a", 0, 48, 16), last)
    body = exposition(story(*happened), "m", replace(KV, host_blocks=8, block_bytes=100)).decode()
    for name, value in (
        ("kv_blocks_host", 3), ("kv_bytes_to_host_total", 200), ("kv_bytes_from_host_total", 100), ("host_cache_hits_total", 16),
        ("evicted_blocks_total", 1),
    ):  # fmt: skip
        assert f'ridgeline_{name}{{model_name="m"}} {float(value)}' in body
    assert "host" not in exposition(story(*happened), "m", KV).decode(), "figures of a tier that is not there"


def test_an_engine_without_steps_has_an_empty_cache() -> None:
    body = exposition(Metrics(), "m", KV)
    assert 'vllm:kv_cache_usage_perc{model_name="m"} 0.0' in body.decode()
    assert 'ridgeline_kv_blocks_free{model_name="m"} 16.0' in body.decode()
