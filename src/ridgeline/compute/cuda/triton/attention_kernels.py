"""The kernel of paged attention: prefill, decode, mixed steps and verification, its splits and their merge.

A token's result is a fold over tiles of fixed size at fixed positions of its own sequence: tiles within a split, then splits in order. No
bit depends on which program computes a split, or merges them. Scores are in units of log2 e, so that exp2 serves.
"""

import triton
import triton.language as tl

from ridgeline.compute.cuda.triton.dependent import after_previous
from ridgeline.compute.cuda.triton.formulas import from_fp8, tanh


@triton.jit
def merge_states(top, total, sums, split_top, split_total, split_sums):
    """(greatest score, sum of weights, weighted values) of the splits so far and the next split, merged.

    Both may be empty. Products and sums are written as fma, so that no compiler contracts them differently.
    """
    greatest = tl.maximum(top, split_top)
    reference = tl.where(greatest == float("-inf"), 0.0, greatest)
    before, now = tl.exp2(top - reference), tl.exp2(split_top - reference)
    joined = tl.fma(split_total, now, total * before)
    return greatest, joined, tl.fma(split_sums, tl.broadcast_to(now[:, None], split_sums.shape), sums * before[:, None])


@triton.jit
def with_sink(top, total, sums, sink):
    """(sum of weights, weighted values) once a head's sink, a score without a value, has joined the splits."""
    greatest = tl.maximum(top, sink * 1.4426950408889634)
    before = tl.exp2(top - greatest)
    joined = total * before + tl.exp2(sink * 1.4426950408889634 - greatest)
    return joined, sums * before[:, None]


@triton.jit
def load_tile(numbers, scales, place, scale_place, seen, inside, KIND: tl.constexpr, NATIVE: tl.constexpr, dtype: tl.constexpr):
    """Keys or values of a tile [TILE, D] as operands of a product, and their scales [TILE] where they are int8."""
    found = tl.load(numbers + place, mask=seen[:, None] & inside[None, :], other=0)
    factors = tl.load(scales + scale_place, mask=seen, other=0.0) if KIND == "int8" else 1.0
    if KIND == "fp8":
        operands = from_fp8(found, NATIVE).to(dtype)
    elif found.dtype == dtype:
        operands = found
    else:
        operands = found.to(tl.float32).to(dtype)
    return operands, factors


@triton.jit
def attend(
    q, q_rest, keys, values, key_scales, value_scales, table, block_stride, scale_stride, kv_head, position, first, begin, end, scale, cap,
    HEAD: tl.constexpr, VALUE: tl.constexpr, KV_HEADS: tl.constexpr, BLOCK_TOKENS: tl.constexpr, WINDOW: tl.constexpr, SPLIT: tl.constexpr,
    CAPPED: tl.constexpr, KIND: tl.constexpr, NATIVE: tl.constexpr, FOLD: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, REST: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Queries [BLOCK_M, BLOCK_D] at `position` [BLOCK_M] over keys first ≤ k < end, in tiles from `begin` on, a multiple of TILE.

    REST: of a latent, whose first VALUE numbers are values too and are read once; `q_rest` [BLOCK_M, REST] has the queries' others. 0:
    keys and values are apart.
    """
    at, within, rest = tl.arange(0, BLOCK_D), tl.arange(0, TILE), VALUE + tl.arange(0, REST if REST else 16)
    inside = at < VALUE
    top, total = tl.full([BLOCK_M], float("-inf"), tl.float32), tl.zeros([BLOCK_M], tl.float32)
    sums = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    all_top, all_total, all_sums = top, total, sums
    for start in tl.range(begin, end, TILE):
        if FOLD:  # noqa: SIM102  (FOLD is known when the kernel is compiled)
            if start % SPLIT == 0:
                all_top, all_total, all_sums = merge_states(all_top, all_total, all_sums, top, total, sums)
                top, total = tl.full([BLOCK_M], float("-inf"), tl.float32), tl.zeros([BLOCK_M], tl.float32)
                sums = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        key = start + within
        seen = (key >= first) & (key < end)
        block_id = tl.load(table + key // BLOCK_TOKENS, mask=seen, other=0).to(tl.int64)
        record = (block_id * block_stride + (key % BLOCK_TOKENS) * (KV_HEADS * HEAD) + kv_head * HEAD)[:, None]
        scale_place = block_id * scale_stride + (key % BLOCK_TOKENS) * KV_HEADS + kv_head
        k, k_scale = load_tile(keys, key_scales, record + at[None, :], scale_place, seen, inside, KIND, NATIVE, q.dtype)
        score = tl.dot(q, tl.trans(k), input_precision="tf32x3")
        if REST:
            k_rest, _ = load_tile(keys, key_scales, record + rest[None, :], scale_place, seen, rest < HEAD, KIND, NATIVE, q.dtype)
            score = tl.dot(q_rest, tl.trans(k_rest), score, input_precision="tf32x3")
        score = score * scale
        if KIND == "int8":
            score = score * k_scale[None, :]
        if CAPPED:
            score = cap * tanh(score)
        visible = key[None, :] <= position[:, None]
        if WINDOW:
            visible = visible & (key[None, :] > position[:, None] - WINDOW)
        score = tl.where(visible & seen[None, :], score, float("-inf"))
        greatest = tl.maximum(top, tl.max(score, axis=1))
        reference = tl.where(greatest == float("-inf"), 0.0, greatest)
        decay = tl.exp2(top - reference)
        weight = tl.exp2(score - reference[:, None])
        total = tl.fma(total, decay, tl.sum(weight, axis=1))
        if REST:
            v, v_scale = k, k_scale
        else:
            v, v_scale = load_tile(values, value_scales, record + at[None, :], scale_place, seen, inside, KIND, NATIVE, q.dtype)
        if KIND == "int8":
            weight = weight * v_scale[None, :]
        sums = tl.dot(weight.to(q.dtype), v, sums * decay[:, None], input_precision="tf32x3")
        top = greatest
    if FOLD:
        top, total, sums = merge_states(all_top, all_total, all_sums, top, total, sums)
    return top, total, sums


@triton.jit
def row_of_query_block(cu_q, rows, query_block, BLOCK_Q: tl.constexpr):
    """The row whose queries query block `query_block` holds: row r begins with query block cu_q[r] // BLOCK_Q + r."""
    low, high = 0, rows - 1
    while low < high:
        middle = (low + high + 1) // 2
        before = tl.load(cu_q + middle) // BLOCK_Q + middle <= query_block
        low, high = tl.where(before, middle, low), tl.where(before, high, middle - 1)
    return low


@triton.jit
def write_result(out, place, top, total, sums, sinks, head, is_row, mask, SINKS: tl.constexpr):
    """Weighted means of values [BLOCK_M, D] to `out`; zeros where there were no keys."""
    if SINKS:
        total, sums = with_sink(top, total, sums, tl.load(sinks + head, mask=is_row, other=0.0))
    result = sums / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(out + place, result.to(out.dtype.element_ty), mask=mask)


@triton.jit
def merged_splits(
    partial, partial_sums, place, at, is_row, mask, begin, end, VALUE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Splits begin ≤ n < end of the queries whose partial results begin at `place` [BLOCK_M], merged in order."""
    top, total = tl.full([BLOCK_M], float("-inf"), tl.float32), tl.zeros([BLOCK_M], tl.float32)
    sums = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for split in tl.range(begin, end, num_stages=4 if BLOCK_M * BLOCK_D <= 2048 else 2):
        split_top = tl.load(partial_sums + (place + split) * 2, mask=is_row, other=float("-inf"))
        split_total = tl.load(partial_sums + (place + split) * 2 + 1, mask=is_row, other=0.0)
        split_sums = tl.load(partial + (place + split)[:, None] * VALUE + at[None, :], mask=mask, other=0.0)
        top, total, sums = merge_states(top, total, sums, split_top, split_total, split_sums)
    return top, total, sums


@triton.jit
def queries_of_program(cu_q, rows, ONE_BLOCK: tl.constexpr, TOKENS: tl.constexpr, BLOCK_Q: tl.constexpr):
    """(row, its block of queries, its first query, its queries, False where the launch or the row has no such block)."""
    if ONE_BLOCK:
        row, query_block = tl.program_id(0), 0
        query = tl.load(cu_q + row)
    else:
        number = tl.num_programs(0) - 1 - tl.program_id(0)  # the last tokens of a prompt have most keys: they begin first
        row = row_of_query_block(cu_q, rows, number, BLOCK_Q)
        query = tl.load(cu_q + row)
        query_block = number - (query // BLOCK_Q + row)
    count = tl.load(cu_q + row + 1) - query
    is_mine = query_block * BLOCK_Q < count
    if TOKENS == "one":
        is_mine = count == 1
    if TOKENS == "several":
        is_mine = is_mine & (count > 1)
    return row, query_block, query, count, is_mine


@triton.jit
def load_queries(place, is_row, HEAD: tl.constexpr, VALUE: tl.constexpr, BLOCK_D: tl.constexpr, REST: tl.constexpr):
    """Queries at `place` [BLOCK_M, 1]: their first VALUE numbers [BLOCK_M, BLOCK_D] and, over a latent, the others [BLOCK_M, REST]."""
    at = tl.arange(0, BLOCK_D)
    first = tl.load(place + at[None, :], mask=is_row[:, None] & (at < VALUE)[None, :], other=0.0)
    others = first
    if REST:
        rest = VALUE + tl.arange(0, REST)
        others = tl.load(place + rest[None, :], mask=is_row[:, None] & (rest < HEAD)[None, :], other=0.0)
    return first, others


@triton.jit
def is_last(counter, programs):
    """True in the last of so many programs to ask, which sees what all have stored; the counter is zero again then.

    All threads have stored before one of them counts, which releases their stores; the last to count acquires those of all.
    """
    tl.debug_barrier()
    last = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == programs - 1
    if last:
        tl.store(counter, 0)
    return last


@triton.jit(do_not_specialize=["rows", "splits"])
def attention_kernel(
    q, keys, values, key_scales, value_scales, sinks, tables, table_row, cu_q, kv_len, out, partial, partial_sums, counters,
    rows, splits, scale, cap, q_stride, out_stride, table_stride, block_stride, scale_stride,
    GROUP: tl.constexpr, PARTS: tl.constexpr, HEAD: tl.constexpr, VALUE: tl.constexpr, KV_HEADS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, WINDOW: tl.constexpr, SPLIT: tl.constexpr, CAPPED: tl.constexpr, KIND: tl.constexpr,
    NATIVE: tl.constexpr, ONE_BLOCK: tl.constexpr, FOLD: tl.constexpr, PARTIAL: tl.constexpr, TOKENS: tl.constexpr, SINKS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, REST: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Each program: BLOCK_M // GROUP tokens of a row times GROUP query heads, one of PARTS parts of those of a KV head, and all of their
    keys. TOKENS: "any" number of a row; of "one" or "several" only such rows, as another launch has the others.

    PARTIAL: only the splits n, n + p, n + 2p … of p programs. Their results go to `partial`, of row r at r ("one") or of token t at t;
    the program that ends last merges them all. `counters` is zero between launches.
    """
    after_previous(PDL)
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    kv_head = tl.program_id(1) // PARTS
    row, query_block, query, count, is_mine = queries_of_program(cu_q, rows, ONE_BLOCK, TOKENS, BLOCK_Q)
    length = tl.load(kv_len + row)
    if is_mine:
        line = tl.arange(0, BLOCK_M)
        token, head = query_block * BLOCK_Q + line // GROUP, tl.program_id(1) * GROUP + line % GROUP
        is_row = (line < BLOCK_Q * GROUP) & (token < count)
        position = length - count + token
        at = tl.arange(0, BLOCK_D)
        mask = is_row[:, None] & (at < VALUE)[None, :]
        heads = (query + token).to(tl.int64)
        queries, others = load_queries(q + (heads * q_stride + head * HEAD)[:, None], is_row, HEAD, VALUE, BLOCK_D, REST)
        lowest = length - count + query_block * BLOCK_Q
        first = tl.maximum(lowest - (WINDOW - 1), 0) if WINDOW else 0
        end = tl.minimum(lowest + BLOCK_Q, length)
        table = tables + tl.load(table_row + row).to(tl.int64) * table_stride
        target = (heads * out_stride + head * VALUE)[:, None] + at[None, :]
        if PARTIAL:
            begin_split, end_split = first // SPLIT, tl.cdiv(end, SPLIT)
            programs = tl.maximum(1, tl.minimum(tl.num_programs(2), end_split - begin_split))
            place = ((row + line * 0 if TOKENS == "one" else heads).to(tl.int64) * (KV_HEADS * PARTS * GROUP) + head) * splits
            if tl.program_id(2) < programs:
                for split in tl.range(begin_split + tl.program_id(2), end_split, programs, num_stages=1):
                    begin = tl.maximum(first // TILE * TILE, split * SPLIT)
                    top, total, sums = attend(
                        queries, others, keys, values, key_scales, value_scales, table, block_stride, scale_stride, kv_head, position,
                        first, begin, tl.minimum(end, split * SPLIT + SPLIT), scale, cap,
                        HEAD, VALUE, KV_HEADS, BLOCK_TOKENS, WINDOW, SPLIT, CAPPED, KIND, NATIVE, False, BLOCK_M, BLOCK_D, REST, TILE,
                    )  # fmt: skip
                    tl.store(partial + (place + split)[:, None] * VALUE + at[None, :], sums, mask=mask)
                    tl.store(partial_sums + (place + split) * 2, top, mask=is_row)
                    tl.store(partial_sums + (place + split) * 2 + 1, total, mask=is_row)
                if is_last(counters + tl.program_id(0) * (KV_HEADS * PARTS) + tl.program_id(1), programs):
                    top, total, sums = merged_splits(
                        partial, partial_sums, place, at, is_row, mask, begin_split, end_split, VALUE, BLOCK_M, BLOCK_D
                    )
                    write_result(out, target, top, total, sums, sinks, head, is_row, mask, SINKS)
        else:
            top, total, sums = attend(
                queries, others, keys, values, key_scales, value_scales, table, block_stride, scale_stride, kv_head, position,
                first, first // TILE * TILE, end, scale, cap,
                HEAD, VALUE, KV_HEADS, BLOCK_TOKENS, WINDOW, SPLIT, CAPPED, KIND, NATIVE, FOLD, BLOCK_M, BLOCK_D, REST, TILE,
            )  # fmt: skip
            write_result(out, target, top, total, sums, sinks, head, is_row, mask, SINKS)
