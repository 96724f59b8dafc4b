"""Speculation, split phases, reuse, money, goodput: the source documents' numbers (part N = Notes on inference, part N)."""

import pytest

from ridgeline.planning import cost, disaggregation, objectives, reuse, speculation
from ridgeline.planning.objectives import Objective, Served


def test_expected_tokens_of_a_verification() -> None:
    assert speculation.accepted_tokens(0.0, 4) == 1
    assert speculation.accepted_tokens(1.0, 4) == 5
    assert speculation.accepted_tokens(0.8, 4) == pytest.approx(sum(0.8**i for i in range(5)))


def test_four_tokens_for_one_and_a_half_passes() -> None:  # part 5, section 14; part 3's table: 1.5 … 3 times
    speedup = speculation.speculation_speedup(4, 1.5)
    assert 1.5 <= speedup <= 3 and speedup == pytest.approx(2.67, abs=0.01)


def test_speculation_helps_while_memory_binds_and_hurts_when_compute_does() -> None:
    tokens = speculation.accepted_tokens(0.7, 4)
    waiting = speculation.speculation_passes(4, 0.05, 1.0, 1.0)
    computing = speculation.speculation_passes(4, 0.05, 5.0, 1.0)
    assert speculation.speculation_speedup(tokens, waiting) > 1.5
    assert speculation.speculation_speedup(tokens, computing) < 1


@pytest.mark.parametrize(("interference", "layout"), [(95, "separate"), (8, "colocated")])  # part 2, `choose_layout`
def test_layout_of_phases(interference: float, layout: str) -> None:
    assert disaggregation.phase_layout(interference, 20) == layout


def test_transfer_of_a_prompts_cache() -> None:
    assert disaggregation.kv_transfer_seconds(1.34e9, 900e9) == pytest.approx(1.34 / 450)
    assert disaggregation.interference_seconds(0.1, 0.03) == pytest.approx(0.07)
    assert disaggregation.interference_seconds(0.02, 0.03) == 0


@pytest.mark.parametrize(("hit", "times"), [(0.5, 2), (0.9, 10)])  # part 3: prefix caching 2 … 10 times
def test_reused_prefill(hit: float, times: float) -> None:
    assert reuse.reused_prefill_speedup(hit) == pytest.approx(times)
    assert reuse.hit_ratio(int(1000 * hit), 1000) == hit


def test_a_shared_prefix_is_stored_once() -> None:
    assert reuse.shared_kv_tokens(3, 1000, 900) == 900 + 300
    assert reuse.shared_kv_tokens(0, 1000, 900) == 0


@pytest.mark.parametrize(("rate", "million"), [(286, 15.5), (7200, 0.62)])  # part 3, "The Cost Equation": $16/h
def test_cost_of_a_million_tokens(rate: float, million: float) -> None:
    assert cost.million_token_cost(16, rate) == pytest.approx(million, rel=0.005)


def test_batching_is_25_times_cheaper() -> None:  # part 3
    assert cost.token_cost(16, 286) / cost.token_cost(16, 7200) == pytest.approx(25, abs=0.2)


def test_cost_of_a_thousand_tokens() -> None:  # part 1, section 7
    assert 1000 * cost.token_cost(3, 1000) == pytest.approx(0.00083, abs=5e-6)


def test_api_against_own_device() -> None:  # part 1, section 9
    assert cost.api_month_cost(100e6, 1.0) == 3000
    assert round(cost.self_host_month_cost(2), -2) == 1500
    even = cost.break_even_tokens_per_day(2, 1.0)
    assert cost.api_month_cost(even, 1.0) == pytest.approx(cost.self_host_month_cost(2))


@pytest.mark.parametrize(
    ("tokens", "sensitive", "expected"),
    [(5e5, False, "api"), (1e7, False, "evaluate"), (1e8, False, "self-host"), (5e5, True, "self-host")],
)  # part 1, section 9
def test_hosting(tokens: float, sensitive: bool, expected: str) -> None:
    assert cost.hosting(tokens, sensitive) == expected


SERVED = [Served(256, 0.4, 0.03), Served(200, 0.4, 0.03, useful=False), Served(100, 1.5, 0.03), Served(50, 0.2, 0.09)]


def test_goodput_twice() -> None:  # part 1, section 2 (tokens); part 4, section 2 (requests within TTFT < 1 s, TPOT < 50 ms)
    assert objectives.token_goodput(SERVED, 2.0) == 203
    assert objectives.request_goodput(SERVED, 2.0, Objective(1.0, 0.05)) == 0.5
    assert objectives.request_goodput(SERVED, 2.0, Objective()) == 1.5


@pytest.mark.parametrize(
    ("ttft", "itl", "route"),
    [
        (1.100, 0.060, "inspect queueing and prefill"),
        (0.350, 0.160, "inspect decode scheduling and memory pressure"),
        (0.350, 0.060, "within example thresholds"),
    ],
)  # part 2, `investigate`
def test_where_to_look(ttft: float, itl: float, route: str) -> None:
    assert objectives.investigate(ttft, itl) == route


def test_targets_are_ordered() -> None:
    assert objectives.TTFT_TARGETS["code completion"] < objectives.TTFT_TARGETS["chat"] < objectives.TTFT_TARGETS["document questions"]
    assert objectives.TTFT_INTERACTIVE < objectives.TTFT_TOLERABLE < objectives.TTFT_BROKEN
    assert objectives.ITL_SMOOTH < objectives.ITL_CHOPPY < objectives.ITL_TYPEWRITER
    assert objectives.KV_ALERT < objectives.KV_TROUBLE
