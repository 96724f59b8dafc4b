"""What decides a plan: activations, parallel layouts, speculation, split phases, money, goodput, at the notes' own rounding."""

import pytest

from ridgeline.planning import levers, objectives, parallel, report, speed
from ridgeline.planning.deployment import activation_bytes, attention_score_bytes, tiled_score_bytes
from ridgeline.planning.objectives import FinishedRequest, Objective

GIB = 2**30


def test_activations_with_and_without_tiles() -> None:  # part 3: 1 GB per layer, 32 GB for 32; "a few hundred MB" with tiles
    layer = attention_score_bytes(32, 4096, 2)
    assert layer / GIB == 1 and 32 * layer / GIB == 32
    tiled = tiled_score_bytes(32, 4096, 4) + activation_bytes(4096, 4096, 14336, 4096, 2)
    assert 0.1e9 < tiled < 0.5e9
    assert tiled_score_bytes(32, 8192, 4) == 2 * tiled_score_bytes(32, 4096, 4)


@pytest.mark.parametrize(("micro_batches", "bubble"), [(4, 0.2), (9, 0.1)])  # part 3: bubbles of 10 … 20 %
def test_pipeline_bubble_of_two_stages(micro_batches: int, bubble: float) -> None:
    assert parallel.pipeline_bubble(2, micro_batches) == pytest.approx(bubble)
    assert parallel.pipeline_bubble(1, micro_batches) == 0


def test_kv_heads_are_copied_when_ranks_outnumber_them() -> None:
    assert [parallel.kv_heads_per_device(8, ranks) for ranks in (1, 2, 8, 16)] == [8, 4, 1, 1]


def test_all_reduce() -> None:
    assert parallel.all_reduce_bytes(100, 4) == 150
    assert parallel.all_reduce_seconds(1e9, 1, 900e9, 1e-6) == 0
    assert parallel.all_reduce_seconds(1e9, 2, 900e9, 0) == pytest.approx(1 / 450)
    one = parallel.tensor_parallel_seconds(1, 8192, 80, 2, 4, 900e9, 2e-6)
    assert one == pytest.approx(160 * (16384 * 1.5 / 450e9 + 4 * 2e-6))


def test_pipeline_and_experts_pay_for_what_leaves_the_device() -> None:
    assert parallel.pipeline_seconds(1, 8192, 2, 1, 900e9, 1e-6) == 0
    assert parallel.pipeline_seconds(1, 8192, 2, 3, 900e9, 1e-6) == pytest.approx(2 * (16384 / 450e9 + 1e-6))
    assert parallel.expert_parallel_seconds(64, 4096, 32, 2, 2, 1, 900e9, 1e-6) == 0
    assert parallel.expert_parallel_seconds(64, 4096, 32, 2, 2, 8, 900e9, 0) == pytest.approx(64 * (8 * 2 * 8192 * 7 / 8) / 450e9)


def test_batched_experts_are_nearly_all_read() -> None:
    assert parallel.experts_touched(8, 2, 1) == pytest.approx(2)
    assert parallel.experts_touched(8, 2, 32) == pytest.approx(8, abs=0.01)


@pytest.mark.parametrize(("tflops", "tb", "ridge"), [(312, 2.0, 156), (989, 3.35, 295)])  # part 3, "The Roofline Perspective"
def test_ridge_points(tflops: float, tb: float, ridge: int) -> None:
    assert round(speed.ridge_intensity(tflops * 1e12, tb * 1e12)) == ridge


def test_expected_tokens_of_a_verification() -> None:
    assert levers.accepted_tokens(0.0, 4) == 1
    assert levers.accepted_tokens(1.0, 4) == 5
    assert levers.accepted_tokens(0.8, 4) == pytest.approx(sum(0.8**i for i in range(5)))


def test_four_tokens_for_one_and_a_half_passes() -> None:  # part 5, section 14; part 3's table: 1.5 … 3 times
    speedup = levers.speculation_speedup(4, 1.5)
    assert 1.5 <= speedup <= 3 and speedup == pytest.approx(2.67, abs=0.01)


def test_speculation_helps_while_memory_binds_and_hurts_when_compute_does() -> None:
    tokens = levers.accepted_tokens(0.7, 4)
    waiting = levers.speculation_passes(4, 0.05, 1.0, 1.0)
    computing = levers.speculation_passes(4, 0.05, 5.0, 1.0)
    assert levers.speculation_speedup(tokens, waiting) > 1.5
    assert levers.speculation_speedup(tokens, computing) < 1


@pytest.mark.parametrize(("interference", "layout"), [(95, "separate"), (8, "colocated")])  # part 2, `choose_layout`
def test_layout_of_phases(interference: float, layout: str) -> None:
    assert levers.phase_layout(interference, 20) == layout


def test_transfer_of_a_prompts_cache() -> None:
    assert parallel.kv_transfer_seconds(1.34e9, 900e9) == pytest.approx(1.34 / 450)
    assert levers.interference_seconds(0.1, 0.03) == pytest.approx(0.07)
    assert levers.interference_seconds(0.02, 0.03) == 0


@pytest.mark.parametrize(("hit", "times"), [(0.5, 2), (0.9, 10)])  # part 3: prefix caching 2 … 10 times
def test_reused_prefill(hit: float, times: float) -> None:
    assert levers.reused_prefill_speedup(hit) == pytest.approx(times)


@pytest.mark.parametrize(("rate", "million"), [(286, 15.5), (7200, 0.62)])  # part 3, "The Cost Equation": $16/h
def test_cost_of_a_million_tokens(rate: float, million: float) -> None:
    assert speed.million_token_cost(16, rate) == pytest.approx(million, rel=0.005)


def test_batching_is_25_times_cheaper() -> None:  # part 3
    assert speed.million_token_cost(16, 286) / speed.million_token_cost(16, 7200) == pytest.approx(25, abs=0.2)


def test_cost_of_a_thousand_tokens() -> None:  # part 1, section 7
    assert speed.million_token_cost(3, 1000) / 1000 == pytest.approx(0.00083, abs=5e-6)


def test_api_against_own_device() -> None:  # part 1, section 9
    assert round(report.self_host_month_cost(2), -2) == 1500
    even = report.break_even_tokens_per_day(2, 1.0)
    assert 30 * even / 1e6 * 1.0 == pytest.approx(report.self_host_month_cost(2))


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [(5e5, "api"), (1e7, "evaluate"), (1e8, "self-host")],
)  # part 1, section 9
def test_hosting(tokens: float, expected: str) -> None:
    assert report.hosting(tokens) == expected


SERVED = [
    FinishedRequest(256, 0.4, 0.03),
    FinishedRequest(200, 0.4, 0.03, useful=False),
    FinishedRequest(100, 1.5, 0.03),
    FinishedRequest(50, 0.2, 0.09),
]


def test_goodput_twice() -> None:  # part 1, section 2 (tokens); part 4, section 2 (requests within TTFT < 1 s, TPOT < 50 ms)
    assert objectives.token_goodput(SERVED, 2.0) == 203
    assert objectives.request_goodput(SERVED, 2.0, Objective(1.0, 0.05)) == 0.5
    assert objectives.request_goodput(SERVED, 2.0, Objective()) == 1.5
