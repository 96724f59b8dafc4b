"""The next id of each row, as `compute/decoding` chooses it: greedy, or Gumbel-max over what temperature, top-k, min-p and top-p leave.

Three launches: `limits` finds for each row its best id and the least number that the filters leave; `race` lets slices of a row's
vocabulary draw noise, which is a function of seed, choice, position and id; `winners` takes the best slice. Nothing is sorted: thresholds
are found digit by digit in integers that are ordered as fp32 is. Weights and noise are fp64, as the reference's are, and of equal numbers
the lowest ids stay.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ridgeline.compute.cuda.triton.launch import ceil_div, power_of_2

BLOCK: Final = 32768 if triton.knobs.runtime.interpret else 2048
"""Numbers of a row that a program takes at a time: the interpreter takes as long for many."""
STAGES: Final = tl.constexpr(3)
"""Blocks on their way at a time: a program alone on its row would wait for each of them."""
LISTED: Final = 8192
"""Candidates of top-p that are listed before their masses are summed; of more, every pass reads the whole row."""
SLICES: Final = 16
SLICE: Final = BLOCK
"""At most so many programs share a row, each of which has at least so many ids."""
LIMITS_BYTES: Final = 4 + 4 + 4 + 4
_LOWEST: Final = tl.constexpr(-2147483648)


@triton.jit
def _keys(numbers):
    """fp32 → int32 in the same order: 0 and -0 are equal, NaN is above everything."""
    bits = (numbers + 0.0).to(tl.int32, bitcast=True)
    return tl.where(numbers != numbers, 0x7FFFFFFF, bits ^ ((bits >> 31) & 0x7FFFFFFF))


@triton.jit
def _digit(key, SHIFT: tl.constexpr, BITS: tl.constexpr):
    """BITS bits of a key, the most significant ones without their sign: digits are in the keys' order."""
    return ((key ^ _LOWEST) >> SHIFT) & ((1 << BITS) - 1)


@triton.jit
def _begins(key, prefix, SHIFT: tl.constexpr):
    """Whether the bits from SHIFT on are those of `prefix`; there are none from 32 on."""
    return key == key if SHIFT == 32 else ((key ^ prefix) >> SHIFT) == 0


@triton.jit
def _best(logits, vocab, BLOCK: tl.constexpr):
    """The lowest id of the largest number of a row."""
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
    """(key of the k-th largest number of a row, the last id that counts among its equals)."""
    at = tl.arange(0, BLOCK)
    digits = tl.arange(0, 256)
    limit = tl.full((), _LOWEST, tl.int32)
    missing = k
    equals = k
    for place in tl.static_range(4):
        counts = tl.zeros((256,), tl.int32)
        for start in tl.range(0, vocab, BLOCK, num_stages=STAGES):
            key = _keys(tl.load(logits + start + at, mask=start + at < vocab, other=0.0).to(tl.float32))
            mask = (start + at < vocab) & _begins(key, limit, 32 - 8 * place)
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
def _kept(key, ids, limit, last):
    """Whether filters that end at `last` of those equal to `limit` leave a number."""
    return (key > limit) | ((key == limit) & (ids <= last))


@triton.jit
def _last_of_mass(logits, vocab, highest, temperature, limit, last, found, missing, BLOCK: tl.constexpr):
    """The last id of those equal to `found` that a mass still missing needs; `limit` and `last` end the filters before it."""
    at = tl.arange(0, BLOCK)
    final = vocab * 0
    seen = vocab * 0
    for start in tl.range(0, vocab, BLOCK, num_stages=STAGES):
        numbers = tl.load(logits + start + at, mask=start + at < vocab, other=float("-inf")).to(tl.float32)
        key = _keys(numbers)
        equal = (start + at < vocab) & (key == found) & _kept(key, start + at, limit, last)
        if tl.max(equal.to(tl.int32), axis=0) > 0:
            rank = seen + tl.cumsum(equal.to(tl.int32), axis=0) - 1
            weight = tl.exp(_scaled(numbers, highest, temperature))
            final = tl.maximum(final, tl.max(tl.where(equal & (rank * weight < missing), start + at, 0), axis=0))
            seen += tl.sum(equal.to(tl.int32), axis=0)
    return final


@triton.jit
def _top_p(logits, vocab, highest, temperature, least, limit, last, p, keys, weights, BLOCK: tl.constexpr, LISTED: tl.constexpr):
    """(limit, last id) of the smallest set of likeliest numbers with a mass of p, of those that the filters before it leave.

    keys int32, weights fp64 [LISTED]: scratch of the row
    """
    PART: tl.constexpr = BLOCK // 4  # sixteen sums of each lie in registers
    at = tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), tl.float64)
    for start in tl.range(0, vocab, BLOCK, num_stages=STAGES):
        numbers = tl.load(logits + start + at, mask=start + at < vocab, other=float("-inf")).to(tl.float32)
        scaled = _scaled(numbers, highest, temperature)
        kept = (start + at < vocab) & (scaled >= least) & _kept(_keys(numbers), start + at, limit, last)
        sums += tl.where(kept, tl.exp(scaled), 0.0)
    total = tl.sum(sums, axis=0)
    missing = p * total
    # Numbers below an equal share of the mass that may be left out are not needed: all of them together are less than that mass.
    share = tl.log((1.0 - p) * total / vocab) - 1e-9
    count = vocab * 0
    for start in tl.range(0, vocab, BLOCK, num_stages=STAGES):
        numbers = tl.load(logits + start + at, mask=start + at < vocab, other=float("-inf")).to(tl.float32)
        scaled = _scaled(numbers, highest, temperature)
        key = _keys(numbers)
        able = (start + at < vocab) & (scaled >= tl.maximum(least, share)) & _kept(key, start + at, limit, last)
        if tl.max(able.to(tl.int32), axis=0) > 0:
            place = count + tl.cumsum(able.to(tl.int32), axis=0) - 1
            tl.store(keys + place, key, mask=able & (place < LISTED))
            tl.store(weights + place, tl.exp(scaled), mask=able & (place < LISTED))
            count += tl.sum(able.to(tl.int32), axis=0)
    tl.debug_barrier()
    listed = count <= LISTED
    end = tl.where(listed, count, vocab)
    digits = tl.arange(0, 16)
    few = tl.arange(0, PART)
    found = tl.full((), _LOWEST, tl.int32)
    for place in tl.static_range(8):
        masses = tl.zeros((16, PART), tl.float64)
        for start in range(0, end, PART):
            there = start + few < end
            if listed:
                key = tl.load(keys + start + few, mask=there, other=0)
                weight = tl.load(weights + start + few, mask=there, other=0.0)
            else:
                numbers = tl.load(logits + start + few, mask=there, other=float("-inf")).to(tl.float32)
                scaled = _scaled(numbers, highest, temperature)
                key = _keys(numbers)
                weight = tl.where(_kept(key, start + few, limit, last) & (scaled >= least), tl.exp(scaled), 0.0)
            mine = there & _begins(key, found, 32 - 4 * place)
            digit = _digit(key, 28 - 4 * place, 4)
            masses += tl.where(mine[None, :] & (digit[None, :] == digits[:, None]), weight[None, :], 0.0)
        mass = tl.sum(masses, axis=1)
        above = tl.sum(tl.where(digits[:, None] > digits[None, :], mass[:, None], 0.0), axis=0)
        enough = above + mass >= missing
        chosen = tl.max(tl.where(enough, digits, 0), axis=0)
        found = found ^ (chosen << (28 - 4 * place))
        missing -= tl.sum(tl.where(digits == chosen, above, 0.0), axis=0)
    return found, _last_of_mass(logits, vocab, highest, temperature, limit, last, found, missing, BLOCK)


@triton.jit
def limits_kernel(
    logits, temperatures, top_ks, top_ps, min_ps, best, highest, limits, lasts, keys, weights, stride, vocab,
    BLOCK: tl.constexpr, LISTED: tl.constexpr,
):  # fmt: skip
    """One program a row: its best id, the largest logit, and where the filters end. A row without filters keeps every id."""
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
                keys + row.to(tl.int64) * LISTED, weights + row.to(tl.int64) * LISTED, BLOCK, LISTED,
            )  # fmt: skip
    tl.store(limits + row, limit)
    tl.store(lasts + row, last)


@triton.jit
def race_kernel(
    logits, temperatures, min_ps, seeds, choices, positions, highest, limits, lasts, scores, ids, stride, vocab, slice_size,
    SLICES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program: the best score of one slice of a row, and its lowest id. A slice without candidates has the score -inf."""
    row, slice_number = tl.program_id(0), tl.program_id(1)
    logits += row.to(tl.int64) * stride
    quads = tl.arange(0, BLOCK // 4)
    at = tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), float("-inf"), tl.float64)
    winners = tl.zeros((BLOCK,), tl.int32)
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
            kept = (start + at < end) & (scaled >= least) & _kept(_keys(numbers), start + at, limit, last)
            if tl.max(kept.to(tl.int32), axis=0) > 0:
                counter = (start // 4 + quads).to(tl.uint32)
                zero = counter * 0
                one, two, three, four = tl.philox(seed, counter, zero + position, zero + choice, zero)
                words = tl.interleave(tl.interleave(one, three), tl.interleave(two, four))
                uniform = (words.to(tl.float64) + 0.5) * (1.0 / 4294967296.0)
                score = scaled - tl.log(-tl.log(uniform))
                better = kept & (score > top)
                top, winners = tl.where(better, score, top), tl.where(better, start + at, winners)
    largest_score = tl.max(top, axis=0)
    tl.store(scores + row * SLICES + slice_number, largest_score)
    tl.store(ids + row * SLICES + slice_number, tl.min(tl.where(top == largest_score, winners, vocab), axis=0))


@triton.jit
def winners_kernel(scores, slice_ids, best, ids, SLICES: tl.constexpr):
    """One program a row: the id of the best slice; the best id where no slice has a candidate, which is how greedy rows come here."""
    row = tl.program_id(0)
    at = row * SLICES + tl.arange(0, SLICES)
    score = tl.load(scores + at)
    largest = tl.max(score, axis=0)
    winner = tl.min(tl.where(score == largest, tl.load(slice_ids + at), 0x7FFFFFFF), axis=0)
    tl.store(ids + row, tl.where(largest == float("-inf"), tl.load(best + row), winner))


@triton.jit
def finite_kernel(x, row_of_token, flags, x_stride, width, BLOCK: tl.constexpr):
    """One program a token: lowers its row's flag where a number is not finite. Programs that do write the same."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    numbers = tl.load(x + token * x_stride + at, mask=at < width, other=0.0).to(tl.float32)
    strange = tl.max((numbers != numbers).to(tl.int32) | (tl.abs(numbers) == float("inf")).to(tl.int32), axis=0)
    if strange > 0:
        tl.store(flags + tl.load(row_of_token + token), 0)


def scratch_bytes(rows: int) -> int:
    """What `sample` needs beside its arguments."""
    return rows * (LISTED * 12 + SLICES * 12 + LIMITS_BYTES)


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, seed: Tensor, choice: Tensor, position: Tensor,
    ids: Tensor, scratch: Tensor,
) -> None:  # fmt: skip
    """logits [R, V] of any floats → ids int32 [R].

    temperature, top_p, min_p  fp64 [R], as `core.params.Sampling` has them     top_k  int32 [R]
    seed, choice  int64 [R]     position  int32 [R]: absolute position of the token that is sampled
    scratch  uint8, `scratch_bytes`, aligned to 8 bytes
    """
    rows, vocab = logits.shape
    if not rows:
        return
    scratch = scratch[: scratch_bytes(rows)]
    sizes = [8 * LISTED, 8 * SLICES, 4 * LISTED, 4 * SLICES, 4, 4, 4, 4]
    kinds = [torch.float64, torch.float64, torch.int32, torch.int32, torch.int32, torch.float32, torch.int32, torch.int32]
    parts = [part.view(kind) for part, kind in zip(scratch.split([rows * size for size in sizes]), kinds, strict=True)]
    weights, scores, keys, slice_ids, best, highest, limits, lasts = parts
    block = min(max(16, power_of_2(vocab)), BLOCK)
    limits_kernel[(rows,)](
        logits, temperature, top_k, top_p, min_p, best, highest, limits, lasts, keys, weights, logits.stride(0), vocab,
        BLOCK=block, LISTED=LISTED, num_warps=16 if block >= 2048 else 4,
    )  # fmt: skip
    slices = min(SLICES, power_of_2(ceil_div(vocab, SLICE)))
    slice_size = ceil_div(ceil_div(vocab, slices), block) * block
    race_kernel[(rows, slices)](
        logits, temperature, min_p, seed, choice, position, highest, limits, lasts, scores, slice_ids, logits.stride(0), vocab, slice_size,
        SLICES=slices, BLOCK=block, num_warps=8 if block >= 2048 else 4,
    )  # fmt: skip
    winners_kernel[(rows,)](scores, slice_ids, best, ids, SLICES=slices, num_warps=1)


def finite(x: Tensor, row_of_token: Tensor, flags: Tensor) -> None:
    """Sets flags [R] to 0 where a row has a token whose number in x [T, D] is not finite; others stay as the caller set them."""
    if len(x):
        block = power_of_2(x.shape[1])
        finite_kernel[(len(x),)](x, row_of_token, flags, x.stride(0), x.shape[1], BLOCK=block, num_warps=8 if block > 2048 else 4)
