"""Verification of drafts: how many of the ids that a row's positions have sampled stand, which is decided where they were sampled.

Ids are sampled at all positions at once, each as if the drafts before it were right. Those up to the first that differs from its draft are
what single steps would have sampled; behind it nothing counts. `compute/decoding/sampler.py` walks as far, and no further.
"""

import triton
import triton.language as tl
from torch import Tensor

from ridgeline.compute.cuda.triton.dependent import after_previous
from ridgeline.compute.cuda.triton.launch import BoundLaunch, power_of_2


@triton.jit
def verify_kernel(
    sampled, ids, finite_tokens, cu_q, samples, targets, last, finite, counts, BLOCK: tl.constexpr, PDL: tl.constexpr
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
    newest = tl.load(sampled + first + count - 1, mask=count > 0, other=0)
    tl.store(last + tl.load(targets + row), newest, mask=count > 0)


def verify(
    sampled: Tensor, ids: Tensor, finite_tokens: Tensor, cu_q: Tensor, samples: Tensor, targets: Tensor, last: Tensor, finite: Tensor,
    counts: Tensor, most: int,
) -> BoundLaunch:  # fmt: skip
    """The launch that compares ids with drafts, for rows of at most `most` tokens.

    sampled, ids    int32 [T]: ids sampled at the positions, and those of the step's tokens, the drafts among them
    finite_tokens   int32 [≥ T]: 0 where a token's final hidden state is not finite
    cu_q            int32 [R + 1]: first token of each row, and the end
    samples         int32 [R]: how many of the row's last positions sample, the last of them behind all drafts
    targets, last   int64 [R], int32: place in `last`, counted from its first number, of the last id that stands; it stays where none does
    finite          int32 [R], becomes 1, or 0 where a token is not finite up to the last position whose id would stand
    counts          int32 [R], becomes the number of ids that stand
    """
    arguments = (sampled, ids, finite_tokens, cu_q, samples, targets, last, finite, counts)
    return BoundLaunch(verify_kernel, (len(counts),), arguments, {"BLOCK": power_of_2(most)}, num_warps=1)
