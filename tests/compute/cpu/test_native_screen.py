"""A screened head gives the whole product's largest outputs, whatever the weights: flat, tied, hostile to bounds, not finite.

Of each row the id of the largest, or all that a sampler can choose.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
import pytest
from calls import linear_codes, quantise
from fake_grammars import FakeGrammars, packed_mask
from screened import LEVELS, Head, Masks, near, random_rows, requests, rows_of
from single import single

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.packing import SCREENED, PackedWeight, pack, packable
from ridgeline.compute.decoding.edits import needed
from ridgeline.compute.decoding.sampler import accept
from ridgeline.core.params import RowParams, Sampling

pytestmark = pytest.mark.skipif(not ext.isa_levels(), reason=f"native extension not built: {ext.lost()}")


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


@pytest.mark.parametrize("level", LEVELS)
def test_packing_loses_nothing(level: str, pool: ThreadPoolExecutor) -> None:
    """Bytes come back, scales that are no numbers too; rows and whole products have the bits of the other layout."""
    rng = np.random.default_rng(1)
    for n, k in ((1, 32), (16, 64), (75, 640), (33, 1152)):
        random = rng.integers(0, 256, (n, k // 32 * 34), np.uint8)
        rows = random_rows(rng, n, k)
        for stored in (random, np.zeros_like(random), np.full_like(random, 255), rows):
            assert np.array_equal(pack("Q8_0", stored, (n, k), pool, form=SCREENED).unpack(), stored)
        plain, cut = (pack("Q8_0", rows, (n, k), pool, form=form) for form in ("", SCREENED))
        assert cut.nbytes <= plain.nbytes + (n + 15) // 16 * (k // 32 * 352 + 64) + 128
        ids = np.arange(n)
        assert np.array_equal(cut.rows(ids).view(np.uint32), plain.rows(ids).view(np.uint32))
        for m in (0, 1, 2, 4, 5, 8, 9, 13, 16, 70):
            x = quantise(rng.standard_normal((m, k)).astype(np.float32), group=32)
            assert np.array_equal(linear_codes(x, cut, level=level).view(np.uint32), linear_codes(x, plain, level=level).view(np.uint32))
            out = np.full((m, n), 7.0, np.float32)
            linear_codes(x, cut, level=level, out=out, blocks=range((n + 15) // 16 - 1, (n + 15) // 16))
            assert (out[:, : (n - 1) // 16 * 16] == 7.0).all()
    assert not packable("Q4_0", (16, 64), form=SCREENED) and not packable("Q8_0", (16, 40), form=SCREENED)


def test_wide_matrices(pool: ThreadPoolExecutor) -> None:
    """Rows that no panel holds."""
    rng = np.random.default_rng(2)
    rows = random_rows(rng, 20, 1 << 14)
    plain, cut = (pack("Q8_0", rows, (20, 1 << 14), pool, form=form) for form in ("", SCREENED))
    for m in (1, 3, 8, 40):
        x = quantise(rng.standard_normal((m, 1 << 14)).astype(np.float32), group=32)
        assert np.array_equal(linear_codes(x, cut).view(np.uint32), linear_codes(x, plain).view(np.uint32))


@pytest.mark.parametrize(("level", "threads"), list(product(LEVELS, (1, 3))))
def test_random_weights(level: str, threads: int, pool: ThreadPoolExecutor) -> None:
    rng = np.random.default_rng(3)
    for n, k, group in ((1, 32, 32), (17, 64, 64), (500, 640, 128), (2100, 256, 32)):
        head = Head(random_rows(rng, n, k), pool, 70, level, threads, group)
        for m in (1, 0, 3, 4, 5, 9, 16, 70, 1):
            head.check((rng.standard_normal((m, k)) * np.exp(rng.standard_normal((m, 1)))).astype(np.float32))


@pytest.mark.parametrize("level", LEVELS)
def test_what_stands_out_is_found_with_little_work(level: str, pool: ThreadPoolExecutor) -> None:
    """And of equal rows, or rows that differ by next to nothing, the first."""
    rng = np.random.default_rng(4)
    rows = random_rows(rng, 3000, 640)
    rows[[901, 1500, 2999]] = rows[900]
    rows[40], rows[2000] = rows[800], rows[800]
    for column in range(2, 34):  # one code of the second is next to the first's, where activations are least
        rows[2000, column] ^= np.uint8(column == 9)
    head = Head(rows, pool, 16, level)
    x = np.stack([near(rows, row, rng) for row in (900, 1500, 2999, 40, 800, 2000, 5, 2990)])
    assert head.check(x) < 0.05
    assert head.best(x)[:3] == [900, 900, 900]
    assert head.check(x[:1]) < 0.05
    small = x[3:4].copy()
    small[:, 7] = 0
    assert head.check(small) < 0.05


@pytest.mark.parametrize(("level", "positive", "more"), list(product(LEVELS, (0.5, 1.0), (480, 540, 556, 559, 560, 561, 600))))
def test_outputs_as_far_from_what_is_seen_as_can_be(level: str, positive: float, more: int, pool: ThreadPoolExecutor) -> None:
    """What 5 bits leave out of one row adds to its output wherever it can, and takes from that of the others: with `more` of 640 codes
    one step higher in 5 bits, these seem higher by 8 / 640 · more, and are lower by 7 than that."""
    rng = np.random.default_rng(more)
    n, k, one = 400, 640, 100
    sign = np.where(rng.random(k) < positive, 1, -1)
    high = np.where(sign > 0, 3, -4)
    codes = np.broadcast_to(8 * high + np.where(sign > 0, 0, 7), (n, k)) + 8 * sign * (np.arange(k) < more)
    codes = np.where(rng.random((n, k)) < 0.5, -codes, codes)
    codes[::40] = 8 * high + np.where(sign > 0, 0, 7) + 8 * sign * (np.arange(k) < more)
    codes[one] = 8 * high + np.where(sign > 0, 7, 0)
    scales = np.broadcast_to(0.001 * np.exp(rng.standard_normal(k // 32)), (n, k // 32))
    x = (sign * np.exp(rng.standard_normal(k // 32)).repeat(32)).astype(np.float32)
    if more != 560:
        scales = np.full_like(scales, 0.0007)
        x = (0.3 * sign).astype(np.float32)
    head = Head(rows_of(codes, scales), pool, 6, level)
    for m in (1, 6):
        head.check(np.repeat(x[None], m, axis=0))
        if more < 560:
            assert head.best(np.repeat(x[None], m, axis=0)) == [one] * m


@pytest.mark.parametrize("level", LEVELS)
def test_bounds_fit_tokens_whose_inputs_differ_in_size(level: str, pool: ThreadPoolExecutor) -> None:
    """As those of heads do: scales of inputs follow the tokens, less is computed behind bounds, and ids stay those of the whole."""
    rng = np.random.default_rng(16)
    rows, sizes = random_rows(rng, 3000, 640), np.exp(1.5 * rng.standard_normal(640)).astype(np.float32)
    head, shares = Head(rows, pool, 16, level), []

    def tokens() -> np.ndarray:
        near_some = np.stack([near(rows, row, rng) for row in rng.integers(0, 3000, 16)])
        return sizes * (near_some + 6 * rng.standard_normal(near_some.shape)).astype(np.float32)

    for _ in range(80):
        shares.append(head.check(tokens()))
    assert sum(head.plan.screened[:2]) == 80
    new = [Head(rows, pool, 16, level).check(tokens()) for _ in range(8)]
    assert np.mean(shares[-8:]) < 0.6 * np.mean(new)
    small = sizes * np.float32(1e-3) * rng.standard_normal((16, 640)).astype(np.float32)
    for x in (1 / sizes[None], np.where(np.arange(640) % 97 == 0, sizes, 0)[None].astype(np.float32), small, -small):
        head.check(x)  # unlike all that were seen


@pytest.mark.parametrize("level", LEVELS)
def test_numbers_at_their_ends(level: str, pool: ThreadPoolExecutor) -> None:
    """Zeros, subnormals, outputs that overflow, and what is not finite: the whole product's ids, NaN first as ever."""
    rng = np.random.default_rng(5)
    n, k = 300, 96
    plain = random_rows(rng, n, k)
    tiny = rows_of(rng.integers(-127, 128, (n, k)), np.full((n, k // 32), 6e-8))
    huge = rows_of(rng.integers(-127, 128, (n, k)), np.full((n, k // 32), 65504.0))
    bad, endless = plain.copy(), plain.copy()
    bad[70, :2] = np.array([np.nan], np.float16).view(np.uint8)
    endless[71, 34:36] = np.array([np.inf], np.float16).view(np.uint8)
    positive = rows_of(rng.integers(1, 128, (n - 5, k)), np.full((n - 5, k // 32), 0.01))
    x = rng.standard_normal((7, k)).astype(np.float32)
    zero, nan, mixed, infinite = np.zeros_like(x), x.copy(), x.copy(), x.copy()
    nan[2, 40], mixed[3], infinite[1, 5], infinite[4, 6] = np.nan, 0, np.inf, -np.inf
    with np.errstate(over="ignore"):
        sizes = [x, zero, nan, mixed, infinite, -abs(x), *(x * np.float32(10.0**power) for power in (-36, -30, -20, 20, 30, 36))]
    for rows in (plain, tiny, huge, bad, endless, positive, np.zeros_like(plain)):
        for given in sizes:
            head = Head(rows, pool, 7, level)
            head.check(given)
            head.check(given[2:3])
            assert head.plan.screened[1] == 0
            head = Head(rows, pool, 7, level)
            head.check_kept(given, requests(rng, 7))
            head.check_kept(given[2:3], requests(rng, 1))
            assert head.plan.screened[:2] == (2, 0)


@pytest.mark.parametrize(("level", "threads"), list(product(LEVELS, (1, 3))))
def test_what_is_sampled_of_random_weights(level: str, threads: int, pool: ThreadPoolExecutor) -> None:
    """Rows of all kinds: some of the largest, one, and beside them one of all, which leaves nothing to screen."""
    rng = np.random.default_rng(8)
    for n, k, group in ((1, 32, 32), (17, 64, 64), (500, 640, 128), (2100, 256, 32), (5000, 64, 32)):
        rows = random_rows(rng, n, k)
        for m in (1, 3, 4, 9, 16, 70):
            head = Head(rows, pool, 70, level, threads, group)
            x = (rng.standard_normal((m, k)) * np.exp(rng.standard_normal((m, 1)))).astype(np.float32)
            head.check_kept(x, requests(rng, m))
            assert head.plan.screened[0] == 1
            head.check_kept(x, requests(rng, m, whole=True))
            assert head.plan.screened[0] == 1


def masks_of(rng: np.random.Generator, count: int, outputs: int, shares: Sequence[float]) -> tuple[Masks, np.ndarray]:
    """Masks of rows, each of a share of outputs, at least one; above 1: of all but some runs of them. And what they allow [M, N]."""
    allowed, masks = np.ones((count, outputs), bool), Masks()
    for row, share in zip(allowed, rng.choice(shares, count), strict=True):
        if share > 1:
            for start in rng.integers(0, outputs, 5):
                row[start : start + outputs // 4] = False
        elif share < 1:
            row[:] = rng.random(outputs) < share
        row[rng.integers(outputs)] = True
        masks.append(None if share == 1 else packed_mask(row))
    return masks, allowed


@pytest.mark.parametrize(("level", "threads"), list(product(LEVELS, (1, 3))))
def test_the_largest_that_masks_allow(level: str, threads: int, pool: ThreadPoolExecutor) -> None:
    """As of the whole product, where masks leave one output, few, most, or those that are not the largest; screened, paused and neither."""
    rng = np.random.default_rng(11)
    for n, k, group in ((1, 32, 32), (17, 64, 64), (500, 640, 128), (2100, 256, 32), (9000, 64, 32)):
        head = Head(random_rows(rng, n, k), pool, 16, level, threads, group)
        kinds = (1, (0.0,)), (1, (0.5,)), (16, (0.0,)), (16, (0.0, 0.01)), (16, (0.0, 0.01, 0.5, 1.0, 2.0)), (3, (0.9, 2.0)), (5, (1.0,))
        for m, shares in kinds:
            x = (rng.standard_normal((m, k)) * np.exp(rng.standard_normal((m, 1)))).astype(np.float32)
            masks, allowed = masks_of(rng, m, n, shares)
            whole = head.outputs(x)
            for _ in range(12):  # too many outputs are left where weights are random: steps are passed over
                assert head.best(x, masks) == np.where(allowed, whole, -np.inf).argmax(axis=1).tolist()
        nothing = [packed_mask(np.zeros(n, bool))] * 3
        assert head.best(x[:3], nothing) == [0, 0, 0]


def followed(grammars: FakeGrammars, head: Head, x: np.ndarray, free: Sequence[int] = ()) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Ids, states and masks of a step of which the rows of `free` follow nothing. Row i has sampled 100 + i, but for row 0; all but the
    first of more than two ask."""
    masks, records = grammars.records(len(x), free)
    records[:, 3] = np.arange(len(x)) >= (len(x) > 2)
    records[1:, 2] = np.where(records[1:, 0], 100 + np.arange(1, len(x)), -1)
    found, addresses = np.full(len(x), -7, np.int32), np.ascontiguousarray(records[:, 1])
    head.run(x, found.ctypes.data, 0, addresses.ctypes.data, 0, grammars.calls.ctypes.data, records.ctypes.data)
    assert (records[:, 5] > 0).tolist() == (records[:, 0] > 0).tolist()  # CPU time
    return found.tolist(), records[:, 4], masks


@pytest.mark.parametrize(("level", "threads"), list(product(LEVELS, (1, 3))))
def test_rows_ask_their_grammars_first(level: str, threads: int, pool: ThreadPoolExecutor) -> None:
    """The largest of what a grammar takes; of rows that ask, masks only where it takes another one and the head is screened."""
    rng = np.random.default_rng(14)
    rows = random_rows(rng, 6000, 640)
    head = Head(rows, pool, 8, level, threads)
    for kind in ("near", "flat"):
        for count in (1, 2, 3, 8):
            places = rng.integers(0, 6000, count)
            x = np.stack([near(rows, place, rng) for place in places])
            if kind == "flat":
                x = rng.standard_normal(x.shape).astype(np.float32)
            _, allowed = masks_of(rng, count, 6000, (0.0, 0.001, 0.5, 2.0))
            whole = head.outputs(x)
            allowed[::2][np.arange(len(allowed[::2])), whole[::2].argmax(axis=1)] = True
            wanted, free = np.where(allowed, whole, -np.inf).argmax(axis=1).tolist(), [2] if count == 8 else []
            wanted = [int(whole[i].argmax()) if i in free else each for i, each in enumerate(wanted)]
            for _ in range(12 if kind == "flat" else 1):  # too many outputs are left: steps are passed over
                grammars = FakeGrammars(allowed)
                found, states, masks = followed(grammars, head, x, free)
                assert found == wanted
                assert sorted(grammars.consumed) == [(i, 100 + i) for i in range(2, count) if i not in free]  # the second is at its end
                takes = np.array([allowed[i, row.argmax()] for i, row in enumerate(whole)])
                following = np.array([i not in free for i in range(count)])
                asks = following & (np.arange(count) >= (count > 2))
                asked = sorted(grammars.asked) == np.flatnonzero(asks).tolist()
                assert asked == bool(grammars.asked) and (asked or kind == "flat")
                assert states.tolist() == (following & ~(asks & takes) if asked else following).astype(int).tolist()
                for i in np.flatnonzero(states):
                    assert np.array_equal(masks[i], packed_mask(allowed[i])[0])


@pytest.mark.parametrize("count", [2, 5])
def test_a_row_that_is_lost_is_said_and_has_a_mask_of_all(count: int, pool: ThreadPoolExecutor) -> None:
    rng = np.random.default_rng(15)
    rows = random_rows(rng, 1000, 640)
    head, x = Head(rows, pool, 5), np.stack([near(rows, row, rng) for row in range(10, 10 + count)])
    allowed = np.zeros((count, 1000), bool)
    allowed[:, 500] = True
    found, states, masks = followed(FakeGrammars(allowed, lost=[1]), head, x)
    assert found == [11 if i == 1 else 500 for i in range(count)]
    assert states.tolist() == [-1 if i == 1 else 1 for i in range(count)] and (masks[1] == 0xFFFFFFFF).all()


@pytest.mark.parametrize("level", LEVELS)
def test_masks_that_leave_few_cost_little(level: str, pool: ThreadPoolExecutor) -> None:
    """Neither bounds nor other blocks are computed; and among what stands out, what a mask forbids stands in nobody's way."""
    rng = np.random.default_rng(12)
    rows = random_rows(rng, 6000, 640)
    head, x = Head(rows, pool, 2, level), np.stack([near(rows, row, rng) for row in (900, 4000)])
    few = [packed_mask(np.isin(np.arange(6000), ids)) for ids in ((3, 5000), (17,))]
    wanted = [max((3, 5000), key=lambda id: head.outputs(x)[0, id]), 17]
    assert head.best(x, few) == wanted
    assert head.plan.screened == (0, 0, 0, 0)
    most = [packed_mask(~np.isin(np.arange(6000), (900,))), None]
    outputs = head.outputs(x)
    outputs[0, 900] = -np.inf
    assert head.best(x, most) == outputs.argmax(axis=1).tolist()
    assert head.plan.screened[0] == 1


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_sampled_under_masks(level: str, pool: ThreadPoolExecutor) -> None:
    """Of what is kept as of whole rows."""
    rng = np.random.default_rng(13)
    for n, k in ((17, 64), (500, 640), (2100, 256), (9000, 64)):
        rows = random_rows(rng, n, k)
        for m, shares in ((1, (0.0,)), (4, (0.0, 0.01)), (16, (0.01, 0.5, 1.0, 2.0)), (16, (0.5, 2.0))):
            head = Head(rows, pool, 16, level)
            x = (rng.standard_normal((m, k)) * np.exp(rng.standard_normal((m, 1)))).astype(np.float32)
            params, (masks, _) = requests(rng, m), masks_of(rng, m, n, shares)
            keep = np.array([needed(row, 1) for row in params], np.int32)
            given = params, [()] * m, [9] * m, [None] * m, None
            whole = head.sampler.sample_rows(head.outputs(x), *given, None, masks)
            outputs, maxima = head.kept(x, keep, masks)
            assert head.sampler.sample_rows(outputs, *given, maxima, masks) == whole


@pytest.mark.parametrize("level", LEVELS)
def test_rows_that_sample_several_positions(level: str, pool: ThreadPoolExecutor) -> None:
    """Each position is kept by itself: drafted rows walk what is left of it as they walk whole rows; greedy ones need ids alone."""
    rng = np.random.default_rng(10)
    head = Head(random_rows(rng, 3000, 256), pool, 12, level)
    for counts in ([1, 4, 2, 5], [12], [3, 3, 3, 3]):
        x = (rng.standard_normal((12, 256)) * np.exp(rng.standard_normal((12, 1)))).astype(np.float32)
        whole = head.outputs(x)
        for params in (requests(rng, len(counts)), [RowParams(1, 0, 1, Sampling(temperature=0.0))] * len(counts)):
            keep = np.repeat(np.array([needed(row, 1) for row in params], np.int32), counts)
            right = single(head.sampler.sample_rows, whole, *positions_of(params, counts))[0]
            ends = np.cumsum(counts)
            drafts = [tuple(right[end - count : end - 1]) for end, count in zip(ends, counts, strict=True)]
            drafts[-1] = (*drafts[-1][:-1], 7)
            given = params, drafts, [9] * len(counts), [None] * len(counts)
            expected = head.sampler.sample_rows(whole, *given)
            outputs, maxima = head.kept(x, keep)
            assert head.sampler.sample_rows(outputs, *given, None, maxima) == expected
            assert [len(tokens) for tokens in expected.ids] == [*counts[:-1], counts[-1] - 1]
            if (keep == 1).all():
                assert accept(head.best(x), drafts, given[3]) == expected.ids


def positions_of(params: Sequence[RowParams], counts: Sequence[int]) -> tuple[list[RowParams], list[int]]:
    """Rows' positions as rows of their own."""
    rows = [row for row, count in zip(params, counts, strict=True) for _ in range(count)]
    return rows, [9 + offset for count in counts for offset in range(count)]


@pytest.mark.parametrize("level", LEVELS)
def test_what_equals_the_last_one_that_is_kept(level: str, pool: ThreadPoolExecutor) -> None:
    """Equals at that place, far apart: of these the first are chosen from, as of whole rows."""
    rng = np.random.default_rng(9)
    rows = random_rows(rng, 6000, 640)
    for equal in rng.permutation(6000)[:12]:
        rows[equal] = rows[700]
    for better in (3, 2222, 4000):
        rows[better] = rows[700]
        rows[better, :2] = (rows[700, :2].view(np.uint16) + 1).view(np.uint8)  # a scale by its last bit
    head = Head(rows, pool, 8, level)
    x = np.repeat(near(rows, 700, rng)[None], 8, axis=0)
    for seed in range(15):
        params = [
            RowParams(seed=seed, choice=index, prompt_tokens=1, sampling=Sampling(temperature=20.0, top_k=k, top_p=p))
            for index, (k, p) in enumerate(product((2, 4, 9, 15), (1.0, 0.9)))
        ]
        assert head.check_kept(x, params) < 1 / 12
    assert head.plan.screened[1] == 0


def test_flat_outputs_are_computed_whole_and_tried_again(pool: ThreadPoolExecutor) -> None:
    rng = np.random.default_rng(6)
    rows = random_rows(rng, 1000, 640)
    head, flat = Head(rows, pool, 4), rng.standard_normal((4, 640)).astype(np.float32)
    rows_out = np.stack([near(rows, row, rng) for row in (1, 400, 999)])
    for _ in range(100):
        head.check(flat)
    steps, skipped, pairs, computed = head.plan.screened
    assert steps + skipped == 100 and steps < 15
    assert computed > pairs / 6
    for _ in range(300):
        assert head.best(rows_out) == [1, 400, 999]
    assert head.plan.screened[0] > steps + 30


def test_a_plan_that_is_asked_for_outputs_writes_them(pool: ThreadPoolExecutor) -> None:
    rng = np.random.default_rng(7)
    rows = random_rows(rng, 100, 64)
    head, x = Head(rows, pool, 3), rng.standard_normal((3, 64)).astype(np.float32)
    head.run(x)
    assert np.array_equal(head.out, linear_codes(quantise(x, group=32), head.plain))
    assert head.plan.screened == (0, 0, 0, 0)


def test_the_layout_is_part_of_the_weight() -> None:
    weight = PackedWeight("Q8_0", (16, 32), np.zeros(16 * 34, np.uint8))
    assert weight.matrix[0] != PackedWeight("Q8_0", (16, 32), np.zeros(16 * 34 + 64, np.uint8), form=SCREENED).matrix[0]
