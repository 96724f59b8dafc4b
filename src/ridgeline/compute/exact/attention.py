"""Attention over KV tiles of fixed size at fixed positions, merged in position order.

What a query gets depends on its own position and on the cache's contents up to it: not on the chunk that it came in, on its
neighbours, on the size of a block or on the number of threads. A key that a query may not see contributes exactly nothing.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.exact.product import TOKENS, multiply
from ridgeline.compute.exact.threads import Team
from ridgeline.compute.ops.definition import Floats, Ints
from ridgeline.compute.ops.elementwise import softcap_in_place

KV_TILE = 128
"""Positions a tile: tile j holds 128·j … 128·j + 127, whatever the block size."""

BLOCK_TILES = 32
"""Query tiles walked together: what they need at a time stays in a core's cache."""

_LOWEST = np.float32(-1e30)
"""The start of a running maximum: finite, so that a query that has seen nothing yet stays free of NaN."""


@dataclass(frozen=True, slots=True)
class _Walk:
    """Query tiles that are walked together: all of one row, or one of each of several rows.

    queries    fp32 [C, KV heads, 16, D]: columns of a tile are (token, head of the KV group), scaled, zero-padded
    positions  [C, 16] of the queries
    rows       [C], or [1] when all tiles share a row
    tokens     (first token, tokens) of each row, to put results back
    """

    queries: Floats
    positions: NDArray[np.int64]
    rows: NDArray[np.int64]
    tokens: tuple[tuple[int, int], ...]


def attention(
    team: Team,
    q: Floats,
    keys: Floats,
    values: Floats,
    tables: Ints,
    cu_q: Ints,
    kv_len: Ints,
    block_tokens: int,
    sinks: Floats | None = None,
    *,
    head_dim: int,
    scale: float,
    window: int,
    softcap: float,
    causal: bool = True,
    value_dim: int = 0,
) -> Floats:
    """q [T, H · D] → [T, H · D]; see `ops/attention.py` for the meaning of every argument."""
    # With a cap the products are already what its tanh takes: score / softcap.
    scaled = (q * np.float32(scale / softcap if softcap else scale)).reshape(len(q), keys.shape[1], -1, head_dim)
    out = np.empty((*scaled.shape[:3], values.shape[2]), np.float32)

    def walk(tiles: _Walk) -> None:
        slots = _Slots(tables[tiles.rows], kv_len[tiles.rows], block_tokens)
        result = _attend(tiles, keys, values, slots, window or 1 << 40, softcap, sinks)
        _scatter(tiles, result, out)

    walks = _walks(scaled, cu_q, kv_len, team.threads)
    if not causal:
        walks = [_seeing_all(each, kv_len) for each in walks]
    team.each(walk, walks)
    return out.reshape(len(q), -1)


def _walks(queries: Floats, cu_q: Ints, kv_len: Ints, threads: int) -> list[_Walk]:
    """Cuts the step into walks: rows of a single tile go together, the others by themselves in blocks of tiles."""
    group = queries.shape[2]
    counts = np.diff(cu_q)
    single = np.flatnonzero((counts > 0) & (counts * group <= TOKENS))
    # Longest first: rows that still have KV tiles to visit then lie side by side, or nearly so.
    single = single[np.argsort(-kv_len[single], kind="stable")]
    size = max(1, min(BLOCK_TILES, -(-len(single) // threads)))
    walks = [_together(queries, cu_q, kv_len, single[at : at + size]) for at in range(0, len(single), size)]
    step = max(1, BLOCK_TILES * TOKENS // group)
    for row in np.flatnonzero(counts * group > TOKENS):
        walks += [_alone(queries, cu_q, kv_len, int(row), int(at), step) for at in range(cu_q[row], cu_q[row + 1], step)]
    return walks


def _together(queries: Floats, cu_q: Ints, kv_len: Ints, rows: NDArray[np.intp]) -> _Walk:
    _, kv_heads, group, width = queries.shape
    tiles = np.zeros((len(rows), kv_heads, TOKENS, width), np.float32)
    positions = np.empty((len(rows), TOKENS), np.int64)
    tokens = []
    for tile, row in enumerate(rows):
        first, count = int(cu_q[row]), int(cu_q[row + 1] - cu_q[row])
        tiles[tile, :, : count * group] = queries[first : first + count].swapaxes(0, 1).reshape(kv_heads, -1, width)
        positions[tile] = _spread(np.arange(kv_len[row] - count, kv_len[row]), group, TOKENS)
        tokens.append((first, count))
    return _Walk(tiles, positions, rows, tuple(tokens))


def _alone(queries: Floats, cu_q: Ints, kv_len: Ints, row: int, first: int, step: int) -> _Walk:
    """At most `step` tokens of one row, from token `first`."""
    _, kv_heads, group, width = queries.shape
    count = min(step, int(cu_q[row + 1]) - first)
    tiles = -(-count * group // TOKENS)
    padded = np.zeros((kv_heads, tiles * TOKENS, width), np.float32)
    padded[:, : count * group] = queries[first : first + count].swapaxes(0, 1).reshape(kv_heads, -1, width)
    start = int(kv_len[row]) - (int(cu_q[row + 1]) - first)
    positions = _spread(np.arange(start, start + count), group, tiles * TOKENS).reshape(tiles, TOKENS)
    by_tile = np.ascontiguousarray(padded.reshape(kv_heads, tiles, TOKENS, width).swapaxes(0, 1))
    return _Walk(by_tile, positions, np.array([row]), ((first, count),))


def _seeing_all(walk: _Walk, kv_len: Ints) -> _Walk:
    """The same queries as if each stood at the end of its row."""
    ends = kv_len[walk.rows].astype(np.int64) - 1
    return replace(walk, positions=np.broadcast_to(ends[:, None], walk.positions.shape).copy())


def _spread(positions: NDArray[np.int64], group: int, size: int) -> NDArray[np.int64]:
    """The position of each column; padding repeats the last one."""
    columns = np.repeat(positions, group)
    return np.concatenate([columns, np.full(size - len(columns), columns[-1])])


@dataclass(frozen=True, slots=True)
class _Slots:
    """Slots of the positions of some rows: tables [rows, P], lengths [rows]."""

    tables: Ints
    lengths: Ints
    block_tokens: int

    def of(self, rows: slice) -> "_Slots":
        """Those of some of the rows."""
        return _Slots(self.tables[rows], self.lengths[rows], self.block_tokens)

    def at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """positions [rows, n] → slots [rows, n]; 0 outside the row."""
        inside = positions < self.lengths[:, None]
        blocks = np.where(inside, positions // self.block_tokens, 0)
        slots = np.take_along_axis(self.tables, blocks, axis=1) * np.int64(self.block_tokens) + positions % self.block_tokens
        return np.where(inside, slots, 0)


def _attend(walk: _Walk, keys: Floats, values: Floats, slots: _Slots, window: int, softcap: float, sinks: Floats | None) -> Floats:
    """[C, KV heads, numbers of a value, 16]: softmax(queries · keysᵀ) · values with a running maximum. Milakov and Gimelshein 2018."""
    shared = len(walk.rows) == 1
    lowest, highest = walk.positions.min(axis=1), walk.positions.max(axis=1)
    first, last = np.maximum(lowest - window + 1, 0) // KV_TILE, highest // KV_TILE
    count, kv_heads = walk.queries.shape[:2]
    top = np.full((count, kv_heads, 1, TOKENS), _LOWEST)
    total = np.zeros((count, kv_heads, 1, TOKENS), np.float32)
    mixed = np.zeros((count, kv_heads, values.shape[2], TOKENS), np.float32)
    base = np.full(count, first.min()) if shared else first
    for step in range(int((last - base).max()) + 1):
        tile = base + step
        # What lies between the first and the last that need this tile visits it too: hidden keys change nothing.
        reached = np.flatnonzero((tile >= first) & (tile <= last))
        live = slice(int(reached[0]), int(reached[-1]) + 1)
        rows = slice(1) if shared else live
        at = tile[live][rows if shared else slice(None), None] * KV_TILE + np.arange(KV_TILE)
        k, v = _gather(keys, values, slots.of(rows), at, walk.positions[live], window)
        scores = multiply(k, walk.queries[live])
        if softcap:
            softcap_in_place(scores, softcap)
        _hide(scores, at, walk.positions[live], window)
        now = np.maximum(top[live], scores.max(axis=2, keepdims=True))
        fade = np.exp(top[live] - now)
        np.exp(np.subtract(scores, now, out=scores), out=scores)
        top[live] = now
        total[live] *= fade
        total[live] += np.add.reduce(scores, axis=2, keepdims=True)
        mixed[live] *= fade
        mixed[live] += np.matmul(v.swapaxes(-1, -2), scores)
    if sinks is not None:
        fade, weights = _sink_weights(sinks, top, shared=shared)
        mixed *= fade
        total = total * fade + weights
    return mixed / total


def _sink_weights(sinks: Floats, top: Floats, *, shared: bool) -> tuple[Floats, Floats]:
    """One score more of each head [H], without a value: (what fades the sums so far, its weight), of the shape of `top`. Columns are
    (token, head of the KV group); those of tiles of one row follow each other."""
    count, kv_heads = top.shape[:2]
    own = sinks.reshape(kv_heads, -1)
    column = np.arange(count)[:, None] * (TOKENS if shared else 0) + np.arange(TOKENS)
    sink = own[:, column % own.shape[1]].swapaxes(0, 1)[:, :, None]
    now = np.maximum(top, sink)
    return np.exp(top - now), np.exp(sink - now)


def _gather(
    keys: Floats, values: Floats, slots: _Slots, at: NDArray[np.int64], positions: NDArray[np.int64], window: int
) -> tuple[Floats, Floats]:
    """K and V [tiles or 1, KV heads, 128, D] of the positions `at`; V is zero wherever no query looks."""
    where = slots.at(at)
    earliest = positions.min(axis=None if len(at) == 1 else 1) - window + 1
    unseen = (at < np.reshape(earliest, (-1, 1))) | (at >= slots.lengths[:, None])
    k, v = keys.take(where, axis=0), values.take(where, axis=0)
    # A hidden key has weight 0, but 0 · NaN is NaN: slots that the row does not own may hold anything.
    v[unseen] = 0
    return k.swapaxes(1, 2), v.swapaxes(1, 2)


def _hide(scores: Floats, at: NDArray[np.int64], positions: NDArray[np.int64], window: int) -> None:
    """Sets the scores [C, KV heads, 128, 16] of keys that a query may not see to -∞, in place."""
    first, last = at[:, 0], at[:, -1]
    touched = np.flatnonzero((last > positions.min(axis=1)) | (first <= positions.max(axis=1) - window))
    if len(touched) == 0:
        return
    key = at[touched if len(at) > 1 else slice(None)][:, None, :, None]
    query = positions[touched][:, None, None, :]
    visible = (key <= query) & (key > query - window)
    scores[touched] = np.where(visible, scores[touched], -np.inf)


def _scatter(walk: _Walk, result: Floats, out: Floats) -> None:
    """Puts [C, KV heads, D, 16] back into out [T, KV heads, group, D]."""
    _, kv_heads, group, width = out.shape
    columns = result.swapaxes(2, 3)
    if len(walk.tokens) == 1:
        columns = columns.swapaxes(0, 1).reshape(1, kv_heads, -1, width)
    for tile, (first, count) in enumerate(walk.tokens):
        mine = columns[tile, :, : count * group].reshape(kv_heads, count, group, width)
        out[first : first + count] = mine.swapaxes(0, 1)
