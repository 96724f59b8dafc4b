"""Roofline, latency and batching: the source documents' numbers at their own rounding (part N = Notes on inference, part N)."""

import pytest

from ridgeline.errors import ConfigError
from ridgeline.planning import batching, latency, roofline

GB, TB, TFLOPS = 1e9, 1e12, 1e12


@pytest.mark.parametrize(("tflops", "tb", "ridge"), [(312, 2.0, 156), (989, 3.35, 295)])  # part 3, "The Roofline Perspective"
def test_ridge_points(tflops: float, tb: float, ridge: int) -> None:
    assert round(roofline.ridge_intensity(tflops * TFLOPS, tb * TB)) == ridge


@pytest.mark.parametrize("tokens", [1, 8, 32, 64, 128, 156, 295, 512])  # part 3: prefill AI = P, decode AI = B
def test_intensity_in_16_bits_is_the_number_of_tokens(tokens: int) -> None:
    assert roofline.matmul_intensity(tokens, 4096, 14336, 2) == tokens
    assert roofline.matmul_intensity(tokens, 4096, 14336, 0.5) == 4 * tokens
    assert roofline.matmul_intensity(tokens, 4096, 14336, 2, 2) < tokens


def test_prefill_of_512_is_compute_bound_and_one_stream_is_not() -> None:
    for flops, bandwidth in ((312 * TFLOPS, 2.0 * TB), (989 * TFLOPS, 3.35 * TB)):
        assert roofline.attainable_flops(512, flops, bandwidth) == flops
        assert roofline.attainable_flops(1, flops, bandwidth) == bandwidth
        assert roofline.compute_utilisation(1, flops / bandwidth) < 0.01


def test_prefill_over_decode_is_512_times_the_work_for_the_same_bytes() -> None:
    assert roofline.matmul_flops(512, 4096, 14336) == 512 * roofline.matmul_flops(1, 4096, 14336)


def test_operations_a_parameter() -> None:  # part 1, section 1
    assert roofline.forward_flops(7e9) == 2 * 7e9 and roofline.training_flops(7e9) == 6 * 7e9


def test_roofline_takes_the_longer_of_the_two() -> None:
    assert roofline.roofline_seconds(312e12, 1e12, 312e12, 2e12) == 1.0
    assert roofline.roofline_seconds(1e12, 4e12, 312e12, 2e12) == 2.0


def test_attention_is_quadratic_in_prefill_and_linear_in_decode() -> None:
    assert roofline.attention_flops(2048, 2048, 32, 128, 1) == 4 * roofline.attention_flops(1024, 1024, 32, 128, 1)
    assert roofline.attention_flops(1, 2048, 32, 128, 1) == 2 * roofline.attention_flops(1, 1024, 32, 128, 1)


def test_without_a_cache_positions_grow_with_the_square() -> None:  # part 3, "The KV Cache"
    assert roofline.recomputed_tokens(0, 100) == 4950
    assert roofline.recomputed_tokens(3, 2) == 7


@pytest.mark.parametrize(("bandwidth", "milliseconds"), [(2.0 * TB, 7), (0.1 * TB, 140)])  # part 1, sections 1 and 3
def test_reading_the_weights_of_7b(bandwidth: float, milliseconds: float) -> None:
    assert latency.weight_read_seconds(14 * GB, bandwidth) * 1e3 == pytest.approx(milliseconds)


def test_single_stream_ceiling() -> None:  # part 1: "~140 tok/s"; the exact quotient is 142.9
    assert round(latency.single_stream_rate(14 * GB, 2.0 * TB), -1) == 140


def test_ideal_shard_reading_rate() -> None:  # part 2: 95.7 tokens/s, and no answer for one device
    assert round(latency.sharded_stream_rate(140 * GB, 80 * GB, 3350 * GB, 4), 1) == 95.7
    with pytest.raises(ConfigError, match="take 2 devices"):
        latency.sharded_stream_rate(140 * GB, 80 * GB, 3350 * GB, 1)


def test_whole_answer() -> None:  # part 1, section 2
    assert latency.end_to_end_seconds(0.300, 200, 0.020) == pytest.approx(4.3)


def test_timeline() -> None:  # part 2: ITLs [35, 37, 36], 27.8 tokens/s
    times = [320, 355, 392, 428]
    assert latency.gaps(times) == [35, 37, 36]
    assert latency.tpot(times) == 36
    assert round(1000 / latency.tpot(times), 1) == 27.8


def test_the_fiftieth_waits_for_49() -> None:  # part 1, section 2
    assert latency.queued_ttft(50, 0.040) - latency.queued_ttft(1, 0.040) == pytest.approx(49 * 0.040)


@pytest.mark.parametrize("decode", [3.0, 5.0])  # part 5, section 14: "Total TTFT: ~45ms"
def test_where_the_time_goes(decode: float) -> None:
    assert latency.first_token_seconds(0.5, 1, 40, decode) == pytest.approx(45, abs=1.5)


def test_warm_prefix() -> None:  # part 5, section 10
    assert round(100 * latency.saving(753, 367)) == 51


THROUGHPUT_A100 = {1: (140, 7), 4: (540, 7.4), 16: (2000, 8), 32: (3600, 8.9), 64: (5800, 11), 128: (7200, 17.8), 256: (7800, 32.8)}


@pytest.mark.parametrize("batch", THROUGHPUT_A100)  # part 3, "Batch Size Impact on Throughput and Latency"
def test_throughput_is_batch_over_latency(batch: int) -> None:
    rate, milliseconds = THROUGHPUT_A100[batch]
    assert batching.throughput(batch, milliseconds / 1e3) == pytest.approx(rate, rel=0.025)


@pytest.mark.parametrize(("batch", "percent"), [(4, 3), (16, 10), (32, 20), (64, 40), (128, 75)])  # part 3, same table: 82, not 75, at 128
def test_utilisation_of_batches(batch: int, percent: int) -> None:
    assert 100 * batching.batch_utilisation(batch, 156) == pytest.approx(percent, abs=8)


def test_batch_beyond_the_ridge_is_all_the_device_has() -> None:
    assert batching.batch_utilisation(256, 156) == 1.0


def test_knee_maximises_throughput_over_latency() -> None:
    fixed, each = 0.008, 0.0002
    power = {batch: batch / (fixed + batch * each) ** 2 for batch in range(1, 400)}
    assert batching.knee_batch(fixed, each) == max(power, key=power.__getitem__) == 40
    assert batching.knee_batch(0.001, 0.1) == 1


def test_static_batch_idles() -> None:  # part 3: 10 and 500 tokens, the short one's slot is idle 98 % of the time
    assert batching.static_idle_share([10, 500]) == pytest.approx(0.49)
    assert batching.static_idle_share([7, 7]) == 0


def test_chunked_prefill() -> None:  # part 2, `chunked_schedule`
    assert batching.chunks(6144, 2048) == [2048, 2048, 2048]
    assert batching.chunks(10_000, 2048) == [2048] * 4 + [1808]


def test_paging_against_contiguous_reservation() -> None:  # part 5: 10 of 20 and 6 of 20; part 3: below 5 % with pages
    assert batching.contiguous_waste([10, 6], 20) == pytest.approx(0.6)
    assert batching.paged_waste([10, 6], 4) == pytest.approx(1 - 16 / 20)
    assert batching.paged_waste([4096, 1000, 517], 16) < 0.05
