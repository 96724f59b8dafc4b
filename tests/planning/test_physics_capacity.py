"""Memory, parallelism and what fits: the source documents' numbers at their own rounding (part N = Notes on inference, part N)."""

import pytest

from ridgeline.planning import capacity, parallel

GB, MIB, GIB = 1e9, 2**20, 2**30
LLAMA3 = {"8B": (32, 8, 128), "70B": (80, 8, 128), "405B": (126, 8, 128)}
"""Layers, KV heads, head dimension."""


@pytest.mark.parametrize(
    ("precision", "gigabytes"),
    [("f32", (28, 140, 280)), ("f16", (14, 70, 140)), ("int8", (7, 35, 70)), ("int4", (3.5, 17.5, 35)), ("fp8", (7, 35, 70))],
)  # part 1, "Weight Memory by Precision"; part 5, section 2
def test_weights_of_7_35_and_70b(precision: str, gigabytes: tuple[float, ...]) -> None:
    for billions, expected in zip((7e9, 35e9, 70e9), gigabytes, strict=True):
        assert capacity.weight_bytes(billions, capacity.BYTES_PER_PARAMETER[precision]) / GB == expected


@pytest.mark.parametrize(
    ("billions", "f16", "int8", "int4", "devices"),
    [(8.03, 16.1, 8.0, 4.0, 1), (70.6, 141.2, 70.6, 35.3, 2), (405.1, 810.2, 405.1, 202.6, 11)],
)  # part 3, "Llama 3 Model Weight Memory"
def test_weights_of_llama_3(billions: float, f16: float, int8: float, int4: float, devices: int) -> None:
    for expected, each in ((f16, 2), (int8, 1), (int4, 0.5)):
        assert capacity.weight_bytes(billions, each) == pytest.approx(expected, abs=0.051)
    assert parallel.min_devices(capacity.weight_bytes(billions, 2), 80) == devices


def test_training_against_inference() -> None:  # part 1, "Training vs Inference": ~84 GB; 15 … 22 GB
    assert capacity.training_bytes(7e9) / GB == 84
    assert 15 <= capacity.needed_bytes(14 * GB) / GB <= 22
    assert capacity.needed_bytes(14 * GB) / GB - 14 == pytest.approx(2.8)  # the calculator's "Framework Overhead 2.8 GB"


@pytest.mark.parametrize(
    ("model", "token_bytes", "token_mib", "request_gib", "percent"),
    [("8B", 131_072, 0.125, 0.5, 3.1), ("70B", 327_680, 0.3125, 1.25, 0.9), ("405B", 516_096, 0.49, 1.96, 0.2)],
)  # part 3, "KV Cache Memory Per Request": "MB" and "GB" are binary there
def test_kv_of_llama_3(model: str, token_bytes: int, token_mib: float, request_gib: float, percent: float) -> None:
    assert capacity.kv_token_bytes(*LLAMA3[model], 2) == token_bytes
    assert token_bytes / MIB == pytest.approx(token_mib, abs=0.005)
    request = capacity.kv_bytes(*LLAMA3[model], 4096, 2)
    assert request / GIB == pytest.approx(request_gib, abs=0.01)
    weights = {"8B": 16.1, "70B": 141.2, "405B": 810.2}[model]
    assert 100 * request / GIB / weights == pytest.approx(percent, abs=0.06)


@pytest.mark.parametrize(
    ("model", "gigabytes"), [("8B", (0.5, 16, 64, 128)), ("70B", (1.25, 40, 160, 320)), ("405B", (1.96, 62.7, 250.9, 501.8))]
)  # part 3, "KV Cache Memory at Scale"; 405B there from the rounded 1.96
def test_kv_at_scale(model: str, gigabytes: tuple[float, ...]) -> None:
    for batch, expected in zip((1, 32, 128, 256), gigabytes, strict=True):
        assert capacity.kv_bytes(*LLAMA3[model], 4096, 2, batch) / GIB == pytest.approx(expected, rel=0.006)


def test_long_context() -> None:  # part 3: 128K × 32 sequences of 8B
    assert capacity.kv_bytes(*LLAMA3["8B"], 131_072, 2, 32) / GIB == 512


def test_kv_of_7b() -> None:  # part 1: 2,048 tokens 1.07 GB; part 4: 4,096 tokens ≈ 2.1 GB, 64 of them ~137 GB, GQA ÷ 4
    assert capacity.kv_bytes(32, 32, 128, 2048, 2) / GB == pytest.approx(1.07, abs=0.005)
    assert capacity.kv_bytes(32, 32, 128, 4096, 2) / GB == pytest.approx(2.1, abs=0.05)
    assert capacity.kv_bytes(32, 32, 128, 4096, 2, 64) / GB == pytest.approx(137, abs=0.5)
    assert capacity.kv_bytes(32, 32, 128, 1, 2) == 4 * capacity.kv_bytes(32, 8, 128, 1, 2)


def test_query_heads_in_the_formula_are_an_eightfold_error() -> None:  # part 2: 1.34 and 10.74 GB (10.0 GiB)
    grouped, every = capacity.kv_bytes(80, 8, 128, 4096, 2), capacity.kv_bytes(80, 64, 128, 4096, 2)
    assert (round(grouped / GB, 2), round(every / GB, 2), every / GIB, every / grouped) == (1.34, 10.74, 10.0, 8.0)


def test_one_hundred_users_of_70b() -> None:  # part 2, production note: 134 GB of KV, about 274 in all, on 4 × 80
    kv = 100 * round(capacity.kv_bytes(80, 8, 128, 4096, 2) / GB, 2)
    assert round(kv) == 134 and round(140 + kv) == 274 and capacity.fits(320, 140, kv, 0)


@pytest.mark.parametrize(("reserve", "fits"), [(8, True), (16, False)])  # part 2, "Try it yourself": 67.69 GB raw
def test_the_reserve_decides(reserve: float, fits: bool) -> None:
    kv = capacity.kv_bytes(32, 8, 128, 2048, 2, 200)
    assert round(14 + kv / GB, 2) == 67.69
    assert capacity.fits(80 * GB, 14 * GB, kv, reserve * GB) is fits


@pytest.mark.parametrize(
    ("memory", "weights", "overhead", "sequence", "expected"),
    [
        (80, 14, 3, 1.07, 58),  # part 1, section 3: 63 GB / 1.07 GB; it rounds 58.9 up to "about 59"
        (80, 14, 2.8, 1.07, 59),  # part 1, the calculator
        (80, 16.1, 4, 0.5, 119),  # part 3, "The Memory Wall": 8B
        (160, 141.2, 6, 1.25, 10),  # 70B in 16 bits
        (160, 70.6, 6, 1.25, 66),  # 70B in 8 bits
        (80, 141.2, 6, 1.25, 0),
        (80, 0, 0, 1.342, 59),  # part 2: users of an 80 GB KV budget, 16 bits
        (80, 0, 0, 0.671, 119),  # part 2: 8 bits
    ],
)
def test_most_sequences(memory: float, weights: float, overhead: float, sequence: float, expected: int) -> None:
    assert capacity.max_sequences(memory, weights, overhead, sequence) == expected


def test_ten_more_sequences_from_four_bits() -> None:  # part 1: 10.5 GB freed; "10 more" is 9.8
    assert round((14 - 3.5) / 1.07, 1) == 9.8


def test_85_more_requests_from_four_bits() -> None:  # part 3: ~106 GB freed, ~85 requests of 1.25
    freed = capacity.weight_bytes(70.6, 2) - capacity.weight_bytes(70.6, 0.5)
    assert round(freed) == 106 and round(freed / 1.25) == 85


def test_context_is_a_shared_budget() -> None:  # part 2, `max_context_for_budget`
    token = capacity.kv_token_bytes(80, 8, 128, 2)
    assert capacity.max_context(320 * GB, 140 * GB, 40 * GB, token, 50) == 8544
    assert capacity.max_context(100 * GB, 140 * GB, 40 * GB, token) == 0


@pytest.mark.parametrize(("tokens", "admitted"), [(16_384, True), (65_536, False)])  # part 2, `admit`
def test_online_admission(tokens: int, admitted: bool) -> None:
    assert capacity.may_admit([4096] * 40, tokens, 327_680, 60 * GB) is admitted


def test_activations_with_and_without_tiles() -> None:  # part 3: 1 GB a layer, 32 GB for 32; "a few hundred MB" with tiles
    layer = capacity.attention_score_bytes(32, 4096, 2)
    assert layer / GIB == 1 and 32 * layer / GIB == 32
    tiled = capacity.tiled_score_bytes(32, 4096, 4) + capacity.activation_bytes(4096, 4096, 14336, 4096, 2)
    assert 0.1e9 < tiled < 0.5e9
    assert capacity.tiled_score_bytes(32, 8192, 4) == 2 * capacity.tiled_score_bytes(32, 4096, 4)


def test_70b_on_two_a100_is_29_gb_over() -> None:  # part 3, "Total Memory Budget"
    budget = {"weights": 141, "kv": 40, "activations": 4, "overhead": 4}
    assert 160 - sum(budget.values()) == -29
    assert not capacity.fits(160, 141, 40, 8)
    assert round(70.6 + 40 + 8) == 119 and capacity.fits(160, 70.6, 40, 8)
    assert not capacity.fits(160, 141, 20, 8)  # halving the batch alone: 169


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
