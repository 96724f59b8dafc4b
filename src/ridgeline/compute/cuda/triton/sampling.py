"""Sampling of the next id of each row, as `compute/decoding` samples it: greedy, or Gumbel-max over what temperature, top-k, min-p and
top-p leave.

Three launches: `filter_limits` finds for each row its argmax and the least logit that the filters leave; `gumbel_argmax` adds noise to
slices of a row's vocabulary, a function of seed, choice, position and id, and takes the argmax of each; `gumbel_argmax_reduce` takes the
best slice. Nothing is sorted: thresholds are found digit by digit in integers that are ordered as fp32 is (radix select). Weights and noise
are fp64, as the reference's are, and of equal logits the lowest ids stay.
"""

from functools import partial
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ridgeline.compute.cuda.triton.dependent import after_previous
from ridgeline.compute.cuda.triton.launch import BoundLaunch, Run, ceil_div, nothing, one_by_one, power_of_2

BLOCK: Final = 32768 if triton.knobs.runtime.interpret else 2048
"""Logits of a row that a program takes at a time: in the interpreter many take as long as few."""
STAGES: Final = tl.constexpr(3)
"""Blocks prefetched at a time: a program is alone on its row, and would wait for each."""
MAX_CANDIDATES: Final = 8192
"""Candidates of top-p that are listed, in the pass that sums their mass; with more, every pass reads the whole row."""
SLICES: Final = 16
SLICE: Final = BLOCK
"""Most programs per row, and fewest ids of each."""
ROW_BYTES: Final = 4 + 4 + 4 + 4
_LOWEST: Final = tl.constexpr(-2147483648)


@triton.jit
def _keys(numbers):
    """fp32 → int32 in the same order: 0 and -0 are equal, NaN is above everything."""
    bits = (numbers + 0.0).to(tl.int32, bitcast=True)
    return tl.where(numbers != numbers, 0x7FFFFFFF, bits ^ ((bits >> 31) & 0x7FFFFFFF))


@triton.jit
def _digit(key, shift, BITS: tl.constexpr):
    """BITS bits of a key, the most significant ones without their sign: digits are in the keys' order."""
    return ((key ^ _LOWEST) >> shift) & ((1 << BITS) - 1)


@triton.jit
def _has_prefix(key, prefix, shift):
    """True where the bits from `shift` > 0 on are those of `prefix`; there are none from 32 on, by which a machine cannot shift."""
    return (((key ^ prefix).to(tl.uint32, bitcast=True) >> (shift - 1)) >> 1) == 0


@triton.jit
def _best(logits, vocab, BLOCK: tl.constexpr):
    """The lowest id of the largest logit of a row."""
    at = tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), _LOWEST, tl.int32)
    ids = tl.zeros((BLOCK,), tl.int32)
    for start in tl.range(0, vocab, BLOCK, num_stages=STAGES):
        key = _keys(tl.load(logits + start + at, mask=start + at < vocab, other=float("-inf")).to(tl.float32))
        better = (key > top) & (start + at < vocab)
        top, ids = tl.where(better, key, top), tl.where(better, start + at, ids)
    largest = tl.max(top, axis=0)
    return tl.min(tl.where(top == largest, ids, vocab), axis=0)


@triton.jit
def _top_k(logits, vocab, k, BLOCK: tl.constexpr):
    """(key of the k-th largest logit of a row, the last id that counts among its equals)."""
    at = tl.arange(0, BLOCK)
    digits = tl.arange(0, 256)
    limit = tl.full((), _LOWEST, tl.int32)
    missing = k
    equals = k
    for place in range(4):  # not unrolled: that takes the compiler seconds
        counts = tl.zeros((256,), tl.int32)
        for start in tl.range(0, vocab, BLOCK, num_stages=STAGES):
            key = _keys(tl.load(logits + start + at, mask=start + at < vocab, other=0.0).to(tl.float32))
            mask = (start + at < vocab) & _has_prefix(key, limit, 32 - 8 * place)
            counts += tl.histogram(_digit(key, 24 - 8 * place, 8), 256, mask=mask)
        above = tl.sum(counts, axis=0) - tl.cumsum(counts, axis=0)
        chosen = (above < missing) & (missing <= above + counts)
        limit = limit ^ (tl.sum(tl.where(chosen, digits, 0), axis=0) << (24 - 8 * place))
        missing -= tl.sum(tl.where(chosen, above, 0), axis=0)
        equals = tl.sum(tl.where(chosen, counts, 0), axis=0)
    last = vocab
    if missing < equals:
        last = vocab * 0
        seen = vocab * 0
        for start in tl.range(0, vocab, BLOCK, num_stages=STAGES):
            key = _keys(tl.load(logits + start + at, mask=start + at < vocab, other=0.0).to(tl.float32))
            equal = (start + at < vocab) & (key == limit)
            rank = seen + tl.cumsum(equal.to(tl.int32), axis=0)
            last = tl.maximum(last, tl.max(tl.where(equal & (rank <= missing), start + at, 0), axis=0))
            seen += tl.sum(equal.to(tl.int32), axis=0)
    return limit, last


@triton.jit
def _scaled(numbers, highest, temperature):
    """Logarithms of weights, the largest 0: fp64."""
    return (numbers.to(tl.float64) - highest) / temperature


@triton.jit
def _passes(key, ids, limit, last):
    """True where a logit is above `limit`, or equal to it with an id up to `last`."""
    return (key > limit) | ((key == limit) & (ids <= last))


@triton.jit
def _last_of_mass(logits, vocab, highest, temperature, limit, last, found, missing, BLOCK: tl.constexpr):
    """The last id of those equal to `found` that the missing mass needs; `limit` and `last` are those of the filters before it."""
    at = tl.arange(0, BLOCK)
    final = vocab * 0
    seen = vocab * 0
    for start in tl.range(0, vocab, BLOCK, num_stages=STAGES):
        numbers = tl.load(logits + start + at, mask=start + at < vocab, other=float("-inf")).to(tl.float32)
        key = _keys(numbers)
        equal = (start + at < vocab) & (key == found) & _passes(key, start + at, limit, last)
        if tl.max(equal.to(tl.int32), axis=0) > 0:
            rank = seen + tl.cumsum(equal.to(tl.int32), axis=0) - 1
            weight = tl.exp(_scaled(numbers, highest, temperature))
            final = tl.maximum(final, tl.max(tl.where(equal & (rank * weight < missing), start + at, 0), axis=0))
            seen += tl.sum(equal.to(tl.int32), axis=0)
    return final


@triton.jit
def _last_listed(keys, weights, ids, count, found, missing, BLOCK: tl.constexpr):
    """`_last_of_mass` over a list of candidates in the order of their ids."""
    at = tl.arange(0, BLOCK)
    final = count * 0
    seen = count * 0
    for start in range(0, count, BLOCK):
        inside = start + at < count
        equal = inside & (tl.load(keys + start + at, mask=inside, other=0) == found)
        rank = seen + tl.cumsum(equal.to(tl.int32), axis=0) - 1
        needed = equal & (rank * tl.load(weights + start + at, mask=inside, other=0.0) < missing)
        final = tl.maximum(final, tl.max(tl.where(needed, tl.load(ids + start + at, mask=inside, other=0), 0), axis=0))
        seen += tl.sum(equal.to(tl.int32), axis=0)
    return final


@triton.jit
def _candidates(
    logits, vocab, highest, temperature, least, limit, last, threshold, keys, weights, ids,
    BLOCK: tl.constexpr, MAX_CANDIDATES: tl.constexpr,
):  # fmt: skip
    """(mass of what the filters leave, how many of it are at least `threshold`): one pass, which lists the first MAX_CANDIDATES of them."""
    at = tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), tl.float64)
    count = vocab * 0
    for start in tl.range(0, vocab, BLOCK, num_stages=STAGES):
        numbers = tl.load(logits + start + at, mask=start + at < vocab, other=float("-inf")).to(tl.float32)
        scaled = _scaled(numbers, highest, temperature)
        key = _keys(numbers)
        passes = (start + at < vocab) & (scaled >= least) & _passes(key, start + at, limit, last)
        weight = tl.where(passes, tl.exp(scaled), 0.0)
        sums += weight
        candidate = passes & (scaled >= threshold)
        if tl.max(candidate.to(tl.int32), axis=0) > 0:
            place = count + tl.cumsum(candidate.to(tl.int32), axis=0) - 1
            listed = candidate & (place < MAX_CANDIDATES)
            tl.store(keys + place, key, mask=listed)
            tl.store(weights + place, weight, mask=listed)
            tl.store(ids + place, start + at, mask=listed)
            count += tl.sum(candidate.to(tl.int32), axis=0)
    return tl.sum(sums, axis=0), count


@triton.jit
def _top_p(
    logits, vocab, highest, temperature, least, limit, last, p, keys, weights, ids, BLOCK: tl.constexpr, MAX_CANDIDATES: tl.constexpr
):  # fmt: skip
    """(limit, last id) of the smallest set of likeliest ids with a mass of p, among those that the filters before it leave.

    keys, ids int32, weights fp64 [MAX_CANDIDATES]: scratch of the row
    """
    PART: tl.constexpr = BLOCK // 4  # sixteen sums of each fit in registers
    # Weights below an equal share of the mass that may be left out are not needed: their sum is less than that mass. It is at least
    # 1 - p, since the largest weight is 1; only flat rows, with too many above that, are listed again by their own mass.
    threshold = tl.log((1.0 - p) / vocab) - 1e-9
    total, count = _candidates(
        logits, vocab, highest, temperature, least, limit, last, threshold, keys, weights, ids, BLOCK, MAX_CANDIDATES
    )  # fmt: skip
    if count > MAX_CANDIDATES:
        tl.debug_barrier()
        _, count = _candidates(
            logits, vocab, highest, temperature, least, limit, last, threshold + tl.log(total), keys, weights, ids, BLOCK, MAX_CANDIDATES
        )  # fmt: skip
    missing = p * total
    tl.debug_barrier()
    is_listed = count <= MAX_CANDIDATES
    end = tl.where(is_listed, count, vocab)
    digits = tl.arange(0, 16)
    offsets = tl.arange(0, PART)
    found = tl.full((), _LOWEST, tl.int32)
    for place in range(8):
        masses = tl.zeros((16, PART), tl.float64)
        for start in range(0, end, PART):
            inside = start + offsets < end
            if is_listed:
                key = tl.load(keys + start + offsets, mask=inside, other=0)
                weight = tl.load(weights + start + offsets, mask=inside, other=0.0)
            else:
                numbers = tl.load(logits + start + offsets, mask=inside, other=float("-inf")).to(tl.float32)
                scaled = _scaled(numbers, highest, temperature)
                key = _keys(numbers)
                weight = tl.where(_passes(key, start + offsets, limit, last) & (scaled >= least), tl.exp(scaled), 0.0)
            matching = inside & _has_prefix(key, found, 32 - 4 * place)
            digit = _digit(key, 28 - 4 * place, 4)
            masses += tl.where(matching[None, :] & (digit[None, :] == digits[:, None]), weight[None, :], 0.0)
        mass = tl.sum(masses, axis=1)
        above = tl.sum(tl.where(digits[:, None] > digits[None, :], mass[:, None], 0.0), axis=0)
        reaches = above + mass >= missing
        chosen = tl.max(tl.where(reaches, digits, 0), axis=0)
        found = found ^ (chosen << (28 - 4 * place))
        missing -= tl.sum(tl.where(digits == chosen, above, 0.0), axis=0)
    final = vocab * 0
    if is_listed:
        final = _last_listed(keys, weights, ids, count, found, missing, BLOCK)
    else:
        final = _last_of_mass(logits, vocab, highest, temperature, limit, last, found, missing, BLOCK)
    return found, final


@triton.jit
def filter_limits_kernel(
    logits, temperatures, top_ks, top_ps, min_ps, best, highest, limits, lasts, keys, weights, listed_ids, stride, vocab,
    BLOCK: tl.constexpr, MAX_CANDIDATES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program per row: its argmax, the largest logit, and the limits of the filters. A row without filters keeps every id."""
    after_previous(PDL)
    row = tl.program_id(0)
    logits += row.to(tl.int64) * stride
    ids = _best(logits, vocab, BLOCK)
    tl.store(best + row, ids)
    largest = tl.load(logits + ids).to(tl.float32)
    tl.store(highest + row, largest)
    limit = tl.full((), _LOWEST, tl.int32)
    last = vocab
    temperature = tl.load(temperatures + row)
    if (temperature > 0) & (tl.abs(largest) < float("inf")):
        k = tl.load(top_ks + row)
        if (k > 0) & (k < vocab):
            limit, last = _top_k(logits, vocab, k, BLOCK)
        p = tl.load(top_ps + row)
        if p < 1:
            least = tl.log(tl.load(min_ps + row))
            limit, last = _top_p(
                logits, vocab, largest.to(tl.float64), temperature, least, limit, last, p,
                keys + row.to(tl.int64) * MAX_CANDIDATES, weights + row.to(tl.int64) * MAX_CANDIDATES,
                listed_ids + row.to(tl.int64) * MAX_CANDIDATES, BLOCK, MAX_CANDIDATES,
            )  # fmt: skip
    tl.store(limits + row, limit)
    tl.store(lasts + row, last)


@triton.jit
def gumbel_argmax_kernel(
    logits, temperatures, min_ps, seeds, choices, positions, highest, limits, lasts, scores, ids, stride, vocab, slice_size,
    SLICES: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program: the best score of one slice of a row, and its lowest id. A slice without candidates has the score -inf."""
    after_previous(PDL)
    row, slice_number = tl.program_id(0), tl.program_id(1)
    logits += row.to(tl.int64) * stride
    quads = tl.arange(0, BLOCK // 4)
    at = tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), float("-inf"), tl.float64)
    best_ids = tl.zeros((BLOCK,), tl.int32)
    temperature, largest = tl.load(temperatures + row), tl.load(highest + row)
    if (temperature > 0) & (tl.abs(largest) < float("inf")):
        least = tl.log(tl.load(min_ps + row))
        limit, last = tl.load(limits + row), tl.load(lasts + row)
        seed = tl.load(seeds + row)
        choice, position = tl.load(choices + row).to(tl.uint32), tl.load(positions + row).to(tl.uint32)
        end = tl.minimum(vocab, (slice_number + 1) * slice_size)
        for start in tl.range(slice_number * slice_size, end, BLOCK, num_stages=STAGES):
            numbers = tl.load(logits + start + at, mask=start + at < end, other=float("-inf")).to(tl.float32)
            scaled = _scaled(numbers, largest.to(tl.float64), temperature)
            passes = (start + at < end) & (scaled >= least) & _passes(_keys(numbers), start + at, limit, last)
            if tl.max(passes.to(tl.int32), axis=0) > 0:
                counter = (start // 4 + quads).to(tl.uint32)
                zero = counter * 0
                one, two, three, four = tl.philox(seed, counter, zero + position, zero + choice, zero)
                words = tl.interleave(tl.interleave(one, three), tl.interleave(two, four))
                uniform = (words.to(tl.float64) + 0.5) * (1.0 / 4294967296.0)
                score = scaled - tl.log(-tl.log(uniform))
                better = passes & (score > top)
                top, best_ids = tl.where(better, score, top), tl.where(better, start + at, best_ids)
    largest_score = tl.max(top, axis=0)
    tl.store(scores + row * SLICES + slice_number, largest_score)
    tl.store(ids + row * SLICES + slice_number, tl.min(tl.where(top == largest_score, best_ids, vocab), axis=0))


@triton.jit
def gumbel_argmax_reduce_kernel(scores, slice_ids, best, ids, SLICES: tl.constexpr, PDL: tl.constexpr):
    """One program per row: the id of the best slice; the argmax where no slice has a candidate, as in greedy rows."""
    after_previous(PDL)
    row = tl.program_id(0)
    at = row * SLICES + tl.arange(0, SLICES)
    score = tl.load(scores + at)
    largest = tl.max(score, axis=0)
    winner = tl.min(tl.where(score == largest, tl.load(slice_ids + at), 0x7FFFFFFF), axis=0)
    tl.store(ids + row, tl.where(largest == float("-inf"), tl.load(best + row), winner))


@triton.jit
def finite_kernel(x, row_of_token, flags, x_stride, width, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """One program per token: sets its row's flag to 0 where a number is not finite. All programs that write, write 0."""
    after_previous(PDL)
    token = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    numbers = tl.load(x + token * x_stride + at, mask=at < width, other=0.0).to(tl.float32)
    not_finite = tl.max((numbers != numbers).to(tl.int32) | (tl.abs(numbers) == float("inf")).to(tl.int32), axis=0)
    if not_finite > 0:
        tl.store(flags + tl.load(row_of_token + token), 0)


def scratch_bytes(rows: int) -> int:
    """Scratch bytes of `sample`."""
    return rows * (MAX_CANDIDATES * 16 + SLICES * 12 + ROW_BYTES)


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, seed: Tensor, choice: Tensor, position: Tensor,
    ids: Tensor, scratch: Tensor,
) -> Run:  # fmt: skip
    """The launches of logits [R, V] of any floats → ids int32 [R], all rows in the same ones.

    temperature, top_p, min_p  fp64 [R], as in `core.params.Sampling`
    top_k                      int32 [R]
    seed, choice               int64 [R]
    position                   int32 [R]: absolute position of the token that is sampled
    scratch                    uint8, at least `scratch_bytes`, aligned to 8 bytes
    """
    rows, vocab = logits.shape
    if not rows:
        return nothing
    scratch = scratch[: scratch_bytes(rows)]
    sizes = [8 * MAX_CANDIDATES, 8 * SLICES, 4 * MAX_CANDIDATES, 4 * MAX_CANDIDATES, 4 * SLICES, 4, 4, 4, 4]
    kinds = [torch.float64, torch.float64, torch.int32, torch.int32, torch.int32, torch.int32, torch.float32, torch.int32, torch.int32]
    parts = [part.view(kind) for part, kind in zip(scratch.split([rows * size for size in sizes]), kinds, strict=True)]
    weights, scores, keys, listed_ids, slice_ids, best, highest, limits, lasts = parts
    block = min(max(16, power_of_2(vocab)), BLOCK)
    limit = BoundLaunch(
        filter_limits_kernel, (rows,),
        (logits, temperature, top_k, top_p, min_p, best, highest, limits, lasts, keys, weights, listed_ids, logits.stride(0), vocab),
        {"BLOCK": block, "MAX_CANDIDATES": MAX_CANDIDATES}, num_warps=16 if block >= 2048 else 4,
    )  # fmt: skip
    slices = min(SLICES, power_of_2(ceil_div(vocab, SLICE)))
    slice_size = ceil_div(ceil_div(vocab, slices), block) * block
    choose = BoundLaunch(
        gumbel_argmax_kernel, (rows, slices),
        (
            logits, temperature, min_p, seed, choice, position, highest, limits, lasts, scores, slice_ids, logits.stride(0), vocab,
            slice_size,
        ),
        {"SLICES": slices, "BLOCK": block}, num_warps=8 if block >= 2048 else 4,
    )  # fmt: skip
    reduce = BoundLaunch(gumbel_argmax_reduce_kernel, (rows,), (scores, slice_ids, best, ids), {"SLICES": slices}, num_warps=1)
    return one_by_one([limit, choose, reduce])


def finite(x: Tensor, row_of_token: Tensor, flags: Tensor) -> Run:
    """The launches that set flags int32 [R] to 1, or to 0 where a row has a token whose numbers in x [T, D] are not all
    finite. row_of_token: int32 [T]."""
    fill = partial(flags.fill_, 1)
    if not len(x):
        return fill
    block = power_of_2(x.shape[1])
    arguments = (x, row_of_token, flags, x.stride(0), x.shape[1])
    check = BoundLaunch(finite_kernel, (len(x),), arguments, {"BLOCK": block}, num_warps=8 if block > 2048 else 4)
    return one_by_one([fill, check])
