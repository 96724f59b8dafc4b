"""Packed weights give the file's bytes back, and every ISA level the bits of the references, at every number of tokens and slice."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from calls import Codes, linear_codes, quantise

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.packing import FORMATS, PackedWeight, pack, packable
from ridgeline.compute.ops import quantised
from ridgeline.compute.quant.formats import dequantise
from ridgeline.compute.quant.groups import BLOCKS, groups
from ridgeline.compute.quant.small import RECORDED, SMALL, records
from ridgeline.facts.files.formats import FORMATS as STORED

pytestmark = pytest.mark.skipif(not ext.isa_levels(), reason=f"native extension not built: {ext.lost()}")
LEVELS = ext.isa_levels() or ("none",)
ALL = tuple(kind for kind in sorted(BLOCKS) if packable(kind, (16, 256)))
PACKED = tuple(kind for kind in ALL if kind not in ("NVFP4", "TQ1_0", "IQ1_M", "IQ2_XXS", "IQ2_XS"))
"""Without those that share a kernel with another one."""

HALVES = {
    "Q4_1": (0, 2), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "TQ2_0": (64,),
    "MXFP4": (),
}  # fmt: skip
"""Where a block has fp16 fields; at 0 where nothing is said."""

FACTORS = {"Q2_K": slice(0, 16), "Q3_K": slice(96, 108), "Q4_K": slice(4, 16), "Q5_K": slice(4, 16), "Q6_K": slice(192, 208)}
"""Where it has integer scales, and minima."""


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


def rows_of(kind: str, n: int, k: int, seed: int, size: float = 1.0) -> np.ndarray:
    """Random rows of a file: every code and integer scale, fp16 scales of many magnitudes."""
    rng = np.random.default_rng(seed)
    form = STORED[kind]
    blocks = rng.integers(0, 256, (n, k // form.block_elements, form.block_bytes), np.uint8)
    for start in HALVES.get(kind, (0,)):
        scales = rng.standard_normal(blocks.shape[:2]) * size * 10.0 ** rng.integers(-4, 1, blocks.shape[:2])
        blocks[..., start : start + 2] = scales.astype(np.float16)[..., None].view(np.uint8)
    if kind == "MXFP4":
        blocks[..., 0] = rng.integers(110, 130, blocks.shape[:2])
    return blocks.reshape(n, -1)


def activations(m: int, k: int, seed: int, group: int) -> np.ndarray:
    """Of another magnitude in every group."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((m, k)) * 10.0 ** rng.integers(-6, 6, (m, k // group)).repeat(group, axis=1)).astype(np.float32)


def assert_same_bits(ours: np.ndarray, reference: np.ndarray) -> None:
    assert ours.shape == reference.shape
    nan = np.isnan(reference)
    assert np.array_equal(np.isnan(ours), nan)
    assert np.array_equal(ours[~nan].view(np.uint32), reference[~nan].view(np.uint32))


def assert_product(kind: str, rows: np.ndarray, weight: PackedWeight, x: Codes) -> None:
    """Every level gives the reference's bits."""
    reference = quantised.linear_codes(*x, groups(kind, rows))
    for level in LEVELS:
        assert_same_bits(linear_codes(x, weight, level=level), reference)


def test_numbers_of_formats() -> None:
    assert {"Q4_0", "Q5_0", "Q8_0", "Q4_K", "Q6_K"} <= set(PACKED)
    assert not packable("Q4_K", (16, 640))
    assert not packable("Q8_0", (16, 40))
    assert not packable("Q8_0", (640,))
    assert not packable("Q9_9", (16, 256))
    assert len(FORMATS) == len(set(FORMATS))


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("n", [1, 16, 37])
def test_round_trip(kind: str, n: int, pool: ThreadPoolExecutor) -> None:
    """Any bytes come back, scales that are no numbers too; also where a matrix takes several chunks."""
    k = 512
    random = np.random.default_rng(n).integers(0, 256, (n, STORED[kind].row_bytes(k)), np.uint8)
    for rows in (random, np.zeros_like(random), np.full_like(random, 255)):
        weight = pack(kind, rows, (n, k), pool)
        assert np.array_equal(weight.unpack(), records(kind, rows, STORED[kind].block_bytes) if kind in RECORDED else rows)
        assert weight.data.ctypes.data % 64 == 0


def test_round_trip_of_many_chunks(pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.compute.cpu.packing.CHUNK_BYTES", 5000)
    rows = rows_of("Q5_0", 333, 96, 1)
    rows.flags.writeable = False
    assert np.array_equal(pack("Q5_0", rows, (333, 96), pool).unpack(), rows)


@pytest.mark.parametrize("kind", ALL)
def test_rows(kind: str, pool: ThreadPoolExecutor) -> None:
    rows = rows_of(kind, 40, 512, 2)
    weight, ids = pack(kind, rows, (40, 512), pool), np.array([39, 0, 17, 17, 32])
    assert_same_bits(weight.rows(ids), dequantise(kind, np.ascontiguousarray(rows[ids])))
    with pytest.raises(IndexError, match="row 40"):
        weight.rows(np.array([40]))


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize(("m", "n", "k"), [(0, 16, 256), (1, 37, 768), (3, 16, 512), (4, 48, 256), (17, 20, 256), (70, 33, 512)])
def test_product_is_the_references(kind: str, m: int, n: int, k: int, pool: ThreadPoolExecutor) -> None:
    rows = rows_of(kind, n, k, m)
    weight = pack(kind, rows, (n, k), pool)
    assert_product(kind, rows, weight, quantised.quantise(activations(m, k, n, weight.span), group=weight.span))


@pytest.mark.parametrize("kind", [kind for kind in PACKED if STORED[kind].block_elements == 256 and not kind.startswith("IQ4")])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 80, 512), (3, 40, 768), (5, 80, 512), (9, 33, 256), (40, 33, 512), (270, 33, 256)])
def test_stepped_product_is_the_references(kind: str, m: int, n: int, k: int, pool: ThreadPoolExecutor) -> None:
    """Every 32 inputs of another magnitude, and spans beside them whose scales are one."""
    rows = rows_of(kind, n, k, m)
    weight = pack(kind, rows, (n, k), pool)
    sizes = np.exp2(-np.random.default_rng(k).integers(0, 5, (m, k // 32))).astype(np.float32)
    x = activations(m, k, n, weight.span) * sizes.repeat(32, axis=1)
    x[m // 2, :256] = 1.0
    codes = quantised.quantise(x, group=256, stepped=True)
    assert {len(np.unique(scales)) for scales in codes[1].reshape(-1, 8)} >= {1, 3}
    assert_product(kind, rows, weight, codes)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", PACKED)
def test_tokens_and_slices_change_no_bit(kind: str, level: str, pool: ThreadPoolExecutor) -> None:
    """Any number of tokens and any cut of the outputs; what is not asked for stays."""
    n, k = 73, 1024 if STORED[kind].block_elements == 256 else 1056
    weight = pack(kind, rows_of(kind, n, k, 3), (n, k), pool)
    x = quantise(activations(70, k, 4, weight.span), group=weight.span)
    whole = linear_codes(x, weight, level=level)
    for m in (*range(1, 17), 23, 24, 25, 64, 69):
        part = (x[0][:m], x[1][:m], x[2][:m])
        assert_same_bits(linear_codes(part, weight, level=level), whole[:m])
    for blocks, columns in ((range(1, 2), slice(16, 32)), (range(4, 5), slice(64, 73)), (range(0), slice(0, 0))):
        out = np.full((70, n), 7.0, np.float32)
        linear_codes(x, weight, level=level, out=out, blocks=blocks)
        assert_same_bits(out[:, columns], whole[:, columns])
        out[:, columns] = 7.0
        assert (out == 7.0).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", PACKED)
def test_long_rows_change_no_bit(kind: str, level: str, pool: ThreadPoolExecutor) -> None:
    """Rows of which no panel holds all tokens: sums wait among the outputs."""
    n, k, m = 36, 17 * 256, 75
    weight = pack(kind, rows_of(kind, n, k, 5), (n, k), pool)
    x = quantise(activations(m, k, 6, weight.span), group=weight.span)
    whole = linear_codes(x, weight, level=level)
    for first in (0, 31, 71, 72):
        few = (x[0][first : first + 3], x[1][first : first + 3], x[2][first : first + 3])
        assert_same_bits(linear_codes(few, weight, level=level), whole[first : first + 3])
    assert not np.isnan(whole).all()


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q5_1", "Q8_0"])
def test_prompts_change_no_bit(kind: str, pool: ThreadPoolExecutor) -> None:
    """More tokens than are prepared at a time, and a last tile of them that is not full: each has the bits that it has among a few."""
    n, k, m = 36, 512, 530
    weight = pack(kind, rows_of(kind, n, k, 13), (n, k), pool)
    x = quantise(activations(m, k, 14, weight.span), group=weight.span)
    few = np.concatenate([linear_codes((x[0][i : i + 5], x[1][i : i + 5], x[2][i : i + 5]), weight) for i in range(0, m, 5)])
    for count in (*range(16, 64), 511, 512, 513, 527, 528, 529, 530):
        assert_same_bits(linear_codes((x[0][:count], x[1][:count], x[2][:count]), weight), few[:count])


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0x88, 0x77, 0xFF])
def test_nothing_saturates(kind: str, byte: int, pool: ThreadPoolExecutor) -> None:
    """Codes, integer scales and activations at their limits, of one sign and of both."""
    factors = np.array([byte, 0x00, 0x7F, 0x80, 0xFF], np.uint8)
    n, k = len(factors), 256
    rows = np.full((n, STORED[kind].row_bytes(k)), byte, np.uint8)
    blocks = rows.reshape(n, -1, STORED[kind].block_bytes)
    if kind in FACTORS:
        blocks[..., FACTORS[kind]] = factors[:, None, None]
    for start in HALVES.get(kind, (0,)):
        blocks[..., start : start + 2] = np.array([0.5], np.float16).view(np.uint8)
    place = np.arange(k)
    negative = np.array([place < 0, place >= 0, place % 2 == 0, place // 2 % 2 == 0, place % 4 == 0, place % 32 < 16, place % 8 < 4])
    weight = pack(kind, rows, (n, k), pool)
    x = quantised.quantise(np.where(negative, -127, 127).astype(np.float32), group=weight.span)
    assert_product(kind, rows, weight, x)
    assert_product(kind, rows, weight, (x[0][:3], x[1][:3], x[2][:3]))


@pytest.mark.parametrize("kind", PACKED)
def test_what_is_not_finite_stays(kind: str, pool: ThreadPoolExecutor) -> None:
    n, k = 18, 512
    rows = rows_of(kind, n, k, 7)
    first = rows[3, : STORED[kind].block_bytes]
    for start in HALVES.get(kind, (0,)):
        first[start : start + 2] = np.array([np.inf], np.float16).view(np.uint8)
    weight = pack(kind, rows, (n, k), pool)
    x = activations(9, k, 8, weight.span)
    x[1, 40], x[6, 511], x[7] = np.nan, -np.inf, 0
    codes = quantise(x, group=weight.span)
    assert_product(kind, rows, weight, codes)
    assert_product(kind, rows, weight, (codes[0][:2], codes[1][:2], codes[2][:2]))
    assert np.isnan(linear_codes(codes, weight)[[1, 6]]).all()


def test_spans_are_the_formats() -> None:
    for kind in PACKED:
        weight = PackedWeight(kind, (16, 512), np.zeros(0, np.uint8))
        assert weight.span == groups(kind, rows_of(kind, 1, 512, 0)).span


@pytest.mark.parametrize("kind", PACKED)
def test_wider_groups_of_activations_are_products_too(kind: str, pool: ThreadPoolExecutor) -> None:
    """A value that products of several formats read is quantised for the widest of them."""
    rows = rows_of(kind, 20, 512, 12)
    weight = pack(kind, rows, (20, 512), pool)
    for m in (1, 4, 13):
        assert_product(kind, rows, weight, quantised.quantise(activations(m, 512, m, 512), group=512))


def test_quantise_at_every_level() -> None:
    for sample in quantised.quantise.samples():
        reference = quantised.quantise(**sample.arguments)
        for level in LEVELS:
            codes, scales, sums = quantise(**sample.arguments, level=level)
            assert np.array_equal(codes, reference[0])
            assert_same_bits(scales, reference[1])
            assert np.array_equal(sums, reference[2])


@pytest.mark.parametrize(("outliers", "tolerance"), [(0, 0.01), (20, 0.035)])
def test_near_the_dequantised_product(outliers: int, tolerance: float, pool: ThreadPoolExecutor) -> None:
    """Activations are off by at most half a scale; in the root mean square products of normal ones by 1 %, or by 3.5 % where one column of
    a hundred is 20 times as large."""
    rng = np.random.default_rng(9)
    for kind in sorted(PACKED, key=lambda kind: kind in SMALL):
        rows, x = rng.integers(0, 256, (12, STORED[kind].row_bytes(1024)), np.uint8), rng.standard_normal((16, 1024)).astype(np.float32)
        for start in HALVES.get(kind, (0,)):
            rows.reshape(-1, STORED[kind].block_bytes)[:, start : start + 2] = np.ones(1, np.float16).view(np.uint8)
        if kind == "MXFP4":
            rows.reshape(-1, STORED[kind].block_bytes)[:, 0] = 127
        if outliers:
            x[:, rng.choice(1024, 10, replace=False)] *= outliers
        dense = dequantise(kind, rows).astype(np.float64)
        weight, exact = pack(kind, rows, (12, 1024), pool), x @ dense.T
        codes = quantise(x, group=weight.span)
        error = np.abs(linear_codes(codes, weight) - exact)
        most = codes[1].repeat(32, axis=1) / 2 @ np.abs(dense).T
        assert (error <= most * 1.001).all()
        assert np.sqrt((error**2).sum() / (exact**2).sum()) <= tolerance, kind


def test_misuse_is_refused(pool: ThreadPoolExecutor) -> None:
    weight = pack("Q8_0", rows_of("Q8_0", 4, 64, 11), (4, 64), pool)
    with pytest.raises(ValueError, match="multiple of 32"):
        quantise(np.zeros((1, 40), np.float32), group=32)
    with pytest.raises(ValueError, match="multiple of 256"):
        quantise(np.zeros((1, 640), np.float32), group=256)
    for group in (0, 48, -32):
        with pytest.raises(ValueError, match="multiples of 32"):
            quantise(np.zeros((1, 96), np.float32), group=group)
    with pytest.raises(ValueError, match="contiguous float32"):
        quantise(np.zeros((1, 64)), group=32)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="do not fit"):
        linear_codes(quantise(np.zeros((1, 96), np.float32), group=32), weight)
    with pytest.raises(ValueError, match="not blocks"):
        linear_codes(quantise(np.zeros((1, 64), np.float32), group=32), weight, blocks=range(2))
    with pytest.raises(ValueError, match="cannot be packed"):
        pack("Q4_K", np.zeros((4, 144), np.uint8), (4, 64), pool)
    with pytest.raises(ValueError, match="contiguous uint8"):
        pack("Q8_0", np.zeros((4, 67), np.uint8), (4, 64), pool)
