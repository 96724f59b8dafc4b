"""Attention over the paged cache: exact however a sequence is cut, stored and mixed with others."""

import numpy as np
import pytest

from ridgeline.compute.exact.attention import attention
from ridgeline.compute.exact.threads import Team
from ridgeline.compute.ops.attention import attention as definition
from ridgeline.compute.ops.attention import kv_write
from ridgeline.compute.ops.definition import floats

LENGTH, HEADS, KV_HEADS, WIDTH = 420, 6, 2, 16
Q = floats(1, LENGTH, HEADS * WIDTH)
K, V = floats(2, LENGTH, KV_HEADS * WIDTH), floats(3, LENGTH, KV_HEADS * WIDTH)


class Paged:
    """Two sequences in one cache: ours, and a stranger of another length; the rest of the cache is NaN."""

    def __init__(self, block_tokens: int, threads: int = 1) -> None:
        self.block_tokens, self.team = block_tokens, Team(threads)
        blocks = -(-LENGTH // block_tokens)
        block_ids = np.random.default_rng(4).permutation(np.arange(1, 2 * blocks + 1)).astype(np.int32)
        self.tables = np.stack([block_ids[:blocks], block_ids[blocks:]])
        self.keys = np.full(((2 * blocks + 1) * block_tokens, KV_HEADS, WIDTH), np.nan, np.float32)
        self.values = self.keys.copy()
        self.write(1, floats(5, 200, KV_HEADS * WIDTH), floats(6, 200, KV_HEADS * WIDTH), 0)

    def write(self, row: int, k: np.ndarray, v: np.ndarray, start: int) -> None:
        at = np.arange(start, start + len(k))
        slots = self.tables[row, at // self.block_tokens].astype(np.int64) * self.block_tokens + at % self.block_tokens
        kv_write(k, v, self.keys, self.values, slots)

    def chunk(self, start: int, end: int, window: int, *, stranger: int, softcap: float = 0.0) -> np.ndarray:
        """Our queries start … end; `stranger` tokens of the other row run in the same step, before ours."""
        self.write(0, K[start:end], V[start:end], start)
        q = np.concatenate([floats(7, stranger, HEADS * WIDTH), Q[start:end]])
        cu_q, kv_len = np.array([0, stranger, len(q)], np.int32), np.array([200, end], np.int32)
        tables = self.tables[::-1].copy()
        own = {"head_dim": WIDTH, "scale": WIDTH**-0.5, "window": window, "softcap": softcap}
        out = attention(self.team, q, self.keys, self.values, tables, cu_q, kv_len, self.block_tokens, **own)
        return out[stranger:]


@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (1, 0.0), (5, 0.0), (128, 0.0), (130, 0.0), (300, 0.0), (130, 0.7)])
def test_exact(window: int, softcap: float) -> None:
    whole = Paged(16).chunk(0, LENGTH, window, stranger=0, softcap=softcap)
    assert np.isfinite(whole).all()
    for block_tokens, threads, size, stranger in [
        (1, 1, 1, 3),
        (4, 2, 5, 1),
        (16, 3, 127, 40),
        (24, 1, 128, 1),
        (16, 2, 33, 0),
        (7, 1, 419, 9),
    ]:
        paged = Paged(block_tokens, threads)
        size = max(size, 30) if window not in (0, 130) else size  # token by token twice is enough
        pieces = [paged.chunk(at, min(at + size, LENGTH), window, stranger=stranger, softcap=softcap) for at in range(0, LENGTH, size)]
        assert np.array_equal(np.concatenate(pieces), whole)


@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (5, 0.0), (130, 0.0), (130, 0.7)])
def test_equals_the_reference(window: int, softcap: float) -> None:
    paged = Paged(16)
    ours = paged.chunk(0, LENGTH, window, stranger=0, softcap=softcap)
    cu_q, kv_len = np.array([0, LENGTH], np.int32), np.array([LENGTH], np.int32)
    own = {"head_dim": WIDTH, "scale": WIDTH**-0.5, "window": window}
    theirs = definition(Q, paged.keys, paged.values, paged.tables[:1], cu_q, kv_len, 16, **own, softcap=softcap)
    assert np.abs(ours - theirs).max() < 1e-5 * np.abs(theirs).max()
    if softcap:
        plain = definition(Q, paged.keys, paged.values, paged.tables[:1], cu_q, kv_len, 16, **own, softcap=0.0)
        assert np.abs(ours - plain).max() > 1e-2 * np.abs(theirs).max()


@pytest.mark.parametrize("window", [1, 5, 128, 129])
def test_edge_of_the_window(window: int) -> None:
    """The key `window - 1` behind is seen, the one `window` behind is not."""
    for distance, seen in [(window - 1, True), (window, False)]:
        paged = Paged(4)
        before = paged.chunk(0, 300, window, stranger=0)[299]
        at = 299 - distance
        paged.values[paged.tables[0, at // 4] * 4 + at % 4] = np.nan
        after = attention(
            paged.team,
            Q[299:300],
            paged.keys,
            paged.values,
            paged.tables[:1],
            np.array([0, 1], np.int32),
            np.array([300], np.int32),
            4,
            head_dim=WIDTH,
            scale=WIDTH**-0.5,
            window=window,
            softcap=0.0,
        )[0]
        assert np.isnan(after).all() == seen
        assert np.array_equal(before, after) != seen


@pytest.mark.parametrize("window", [0, 130, 300])
@pytest.mark.parametrize("threads", [1, 2])
def test_rows_that_need_different_tiles(window: int, threads: int) -> None:
    """Rows of one token walk together although their KV tiles begin and end apart."""
    lengths = [420, 300, 257, 129, 128, 1, 385, 384, 256, 5]
    paged = Paged(4)
    paged.write(0, K, V, 0)

    def run(rows: list[int], team: Team) -> np.ndarray:
        tables, kv_len = paged.tables[[0] * len(rows)], np.array([lengths[row] for row in rows], np.int32)
        q, cu_q = Q[[lengths[row] - 1 for row in rows]], np.arange(len(rows) + 1, dtype=np.int32)
        return attention(team, q, paged.keys, paged.values, tables, cu_q, kv_len, 4, head_dim=WIDTH, scale=0.25, window=window, softcap=0.0)

    together = run(list(range(len(lengths))), Team(threads))
    assert np.array_equal(together, np.concatenate([run([row], Team()) for row in range(len(lengths))]))
    whole = Paged(16).chunk(0, LENGTH, window, stranger=0)
    assert np.array_equal(together, whole[[length - 1 for length in lengths]])
