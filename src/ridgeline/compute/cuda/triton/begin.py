"""The kernel in front of a step's first op: ids that earlier steps sampled, and changes of block tables."""

import triton
import triton.language as tl

from ridgeline.compute.cuda.triton.dependent import after_previous

BLOCK = 256


@triton.jit(do_not_specialize=["tokens", "count"])
def begin_kernel(known, source, last, ids, tables, changes, tokens, count, changes_stride, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Each program: `BLOCK` tokens, and `BLOCK` changes.

    known, source  int32 [tokens]: ids, or negative for the one that permanent row `source` sampled last
    last, ids      int32: ids by permanent row, and of the step's tokens
    tables         int32: every entry of all tables
    changes        int32 [2, ≥ count]: places in `tables`, and what comes there. No place twice, unless the same comes there
    """
    after_previous(PDL)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < tokens
    found = tl.load(known + at, mask=mask, other=0)
    sampled = tl.load(last + tl.load(source + at, mask=mask, other=0), mask=mask, other=0)
    tl.store(ids + at, tl.where(found < 0, sampled, found), mask=mask)
    changed = at < count
    place = tl.load(changes + at, mask=changed, other=0).to(tl.int64)
    tl.store(tables + place, tl.load(changes + changes_stride + at, mask=changed, other=0), mask=changed)
