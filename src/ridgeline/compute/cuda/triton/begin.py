"""The kernel in front of a step's first op: ids that earlier steps sampled, and changes of block tables."""

import triton
import triton.language as tl

from ridgeline.compute.cuda.triton.dependent import after_previous

BLOCK = 256


@triton.jit(do_not_specialize=["tokens", "count"])
def begin_kernel(
    known, source, handed, ids, tables, changes, tokens, count, handed_stride, changes_stride, BLOCK: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """Each program: `BLOCK` tokens, and `BLOCK` changes.

    known, source  int32 [tokens]: ids, or −1 − n for entry n of what is kept for permanent row `source`
    handed, ids    int32: ids kept by permanent row, and those of the step's tokens
    tables         int32: every entry of all tables
    changes        int32 [2, ≥ count]: places in `tables`, and what comes there. No place twice, unless the same comes there
    """
    after_previous(PDL)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < tokens
    found = tl.load(known + at, mask=mask, other=0)
    late = mask & (found < 0)
    kept = tl.load(handed + tl.load(source + at, mask=late, other=0) * handed_stride - 1 - found, mask=late, other=0)
    tl.store(ids + at, tl.where(late, kept, found), mask=mask)
    changed = at < count
    place = tl.load(changes + at, mask=changed, other=0).to(tl.int64)
    tl.store(tables + place, tl.load(changes + changes_stride + at, mask=changed, other=0), mask=changed)
