"""Verification of drafts: how many of the ids that a row's positions have sampled stand, which is decided where they were sampled.

Ids are sampled at all positions at once, each as if the drafts before it were right. Those up to the first that differs from its draft are
what single steps would have sampled; behind it nothing counts. `compute/decoding/sampler.py` walks as far, and no further.
"""

import triton
import triton.language as tl
from torch import Tensor

from ridgeline.compute.cuda.triton.dependent import after_previous
from ridgeline.compute.cuda.triton.launch import BoundLaunch, ceil_div, power_of_2

ROWS = 128  # of a program that keeps ids


@triton.jit
def verify_kernel(
    sampled, ids, finite_tokens, cu_q, samples, kv_len, targets, kept, positions, finite, counts, width,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program per row, which has at most `BLOCK` tokens."""
    after_previous(PDL)
    row = tl.program_id(0)
    start, end = tl.load(cu_q + row), tl.load(cu_q + row + 1)
    first = end - tl.load(samples + row)
    at = start + tl.arange(0, BLOCK)
    inside = at < end
    not_finite = tl.min(tl.where(inside & (tl.load(finite_tokens + at, mask=inside, other=1) == 0), at, end), axis=0)
    is_draft = at + 1 < end
    drafts, found = tl.load(ids + at + 1, mask=is_draft, other=0), tl.load(sampled + at, mask=is_draft, other=0)
    stop = tl.min(tl.where(is_draft & (at >= first) & (found != drafts), at, end - 1), axis=0)
    count = tl.maximum(tl.minimum(stop + 1, not_finite) - first, 0)
    tl.store(counts + row, count)
    tl.store(finite + row, (not_finite > stop).to(tl.int32))
    target, newest = tl.load(targets + row), first + tl.maximum(count, 1) - 1
    tl.store(kept + target, tl.load(sampled + newest, mask=count > 0, other=0), mask=count > 0)
    tl.store(kept + target + width - 1, tl.load(ids + newest, mask=count > 0, other=0), mask=count > 0)
    tl.store(positions + target // width, tl.load(kv_len + row) - end + newest + 1)


def verify(
    sampled: Tensor, ids: Tensor, finite_tokens: Tensor, cu_q: Tensor, samples: Tensor, kv_len: Tensor, targets: Tensor, kept: Tensor,
    positions: Tensor, finite: Tensor, counts: Tensor, most: int,
) -> BoundLaunch:  # fmt: skip
    """The launch that compares ids with drafts, for rows of at most `most` tokens.

    sampled, ids    int32 [T]: ids sampled at the positions, and those of the step's tokens, the drafts among them
    finite_tokens   int32 [≥ T]: 0 where a token's final hidden state is not finite
    cu_q            int32 [R + 1]: first token of each row, and the end
    samples         int32 [R]: how many of the row's last positions sample, the last of them behind all drafts
    kv_len          int32 [R]: positions of each row, its tokens included
    targets, kept   int64 [R], int32 [rows, width]: place in `kept`, counted from its first number, of a row's last id that stands; the last
                    number of its row becomes the id before that one. Both stay where none stands
    positions       int32 [rows] beside `kept`: becomes the position of the last id that stands, or the least where none does
    finite          int32 [R], becomes 1, or 0 where a token is not finite up to the last position whose id would stand
    counts          int32 [R], becomes the number of ids that stand
    """
    arguments = (sampled, ids, finite_tokens, cu_q, samples, kv_len, targets, kept, positions, finite, counts, kept.shape[1])
    return BoundLaunch(verify_kernel, (len(counts),), arguments, {"BLOCK": power_of_2(most)}, num_warps=1)


@triton.jit(do_not_specialize=["rows"])
def keep_kernel(sampled, kv_len, targets, kept, positions, rows, width, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Each program: `BLOCK` rows."""
    after_previous(PDL)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < rows
    target = tl.load(targets + at, mask=inside, other=0)
    tl.store(kept + target, tl.load(sampled + at, mask=inside, other=0), mask=inside)
    tl.store(positions + target // width, tl.load(kv_len + at, mask=inside, other=0), mask=inside)


def keep(sampled: Tensor, kv_len: Tensor, targets: Tensor, kept: Tensor, positions: Tensor) -> BoundLaunch:
    """The launch that keeps what a step without drafts has sampled: int32 [R] an id of each row. The others as `verify` has them."""
    arguments = (sampled, kv_len, targets, kept, positions, len(sampled), kept.shape[1])
    return BoundLaunch(keep_kernel, (ceil_div(len(sampled), ROWS),), arguments, {"BLOCK": ROWS})
