"""The kernels in front of a step's first op: ids that earlier steps sampled, changes of block tables, and places of rows that the host does
not know."""

import triton
import triton.language as tl

from ridgeline.compute.cuda.triton.dependent import after_previous

BLOCK = 256
LATE = tl.constexpr(-(1 << 30))
"""Positions from here to 0 count from the one at which the id stands that was sampled last for the row."""


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


@triton.jit(do_not_specialize=["tokens"])
def place_kernel(
    positions, source, newest, row_of_token, kv_len, place, tables, slots, tokens, group_stride, row_stride,
    GROUPS: tl.constexpr, BLOCK_TOKENS: tl.constexpr, VERIFIES: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Each program: `BLOCK` tokens. Whatever is late becomes what it stands for, once.

    positions, source  int32 [tokens]: late ones count from position `newest` of permanent row `source`
    row_of_token       int32 [tokens], kv_len int32 [rows], late where the row is
    place              int32 [tokens], where it `VERIFIES`: the position behind each
    tables, slots      int32 [GROUPS, rows, blocks], int64 [GROUPS, tokens]: places in the cache
    """
    after_previous(PDL)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = tl.load(positions + at, mask=at < tokens, other=0)
    late = found < 0
    owner = tl.load(source + at, mask=late, other=0)
    from_late = tl.load(newest + owner, mask=late, other=0) - LATE
    position = found + from_late
    tl.store(positions + at, position, mask=late)
    if VERIFIES:
        tl.store(place + at, position + 1, mask=late)
    row = tl.load(row_of_token + at, mask=late, other=0)
    length = tl.load(kv_len + row, mask=late, other=0)
    tl.store(kv_len + row, length + from_late, mask=late & (length < 0))
    for group in tl.static_range(GROUPS):
        entry = tables + group * group_stride + owner.to(tl.int64) * row_stride + position // BLOCK_TOKENS
        block = tl.load(entry, mask=late, other=0).to(tl.int64)
        tl.store(slots + group * tokens + at, block * BLOCK_TOKENS + position % BLOCK_TOKENS, mask=late)
