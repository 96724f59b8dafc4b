"""The start-up self-test of the arithmetic: does a token's result depend on that token alone, on this machine?

Owns no fix: where a BLAS fails it, the runner still computes, and says that its answers may depend on the batch.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ridgeline.compute.exact.attention import KV_TILE, attention
from ridgeline.compute.exact.product import PIECE_ROWS, TOKENS, multiply
from ridgeline.compute.exact.threads import Team, one_blas_thread
from ridgeline.compute.ops.definition import Floats, floats

_LENGTH = 67
"""Numbers in an array that elementwise functions are tried on: whole vector registers, and a remainder of each kind."""


@dataclass(frozen=True, slots=True)
class Exactness:
    """`failures` names what was not equal bit for bit; none means that the runner is exact here."""

    failures: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """True where chunk size, batch, cache hits and threads cannot change a bit."""
        return not self.failures


@dataclass(frozen=True, slots=True)
class HeadShape:
    """One attention: query heads, KV heads, head dimension, cap on scores (0: none), numbers of a value (0: those of a key)."""

    heads: int
    kv_heads: int
    head_dim: int
    softcap: float = 0.0
    value_dim: int = 0


def check_exactness(matrices: Iterable[tuple[int, ...]], attentions: Iterable[HeadShape], team: Team) -> Exactness:
    """Tries products with weights of the shapes `matrices` (outputs, inputs), attentions, and numpy's functions and sums."""
    with one_blas_thread() as held, np.errstate(all="ignore"):
        failures = [] if held else ["the number of BLAS threads cannot be held to one"]
        failures += [f"a product with {n} x {k} weights" for n, k in _pieces(matrices) if not _product_is_exact(n, k, team)]
        failures += [f"attention with {shape}" for shape in attentions if not _attention_is_exact(shape, team)]
        failures += [f"numpy's {f.__name__}" for f in (np.exp, np.tanh, np.sqrt) if not _function_is_exact(f)]
        failures += [] if _sums_are_exact() else ["numpy's sums"]
    return Exactness(tuple(failures))


def _pieces(matrices: Iterable[tuple[int, ...]]) -> list[tuple[int, int]]:
    """All (rows, columns) that one BLAS call of `product.linear` can have."""
    pieces = {(piece, columns) for rows, columns in matrices for piece in (min(rows, PIECE_ROWS), rows % PIECE_ROWS) if piece}
    return sorted(pieces)


def _product_is_exact(rows: int, columns: int, team: Team) -> bool:
    """One token at each of the 16 positions, among random, huge, zero and undefined neighbours, on every thread."""
    weight, token = floats(1, rows, columns), floats(2, columns)
    alone = np.zeros((TOKENS, columns), np.float32)
    alone[0] = token
    expected = multiply(weight, alone)[:, 0].copy()
    equal = [False] * TOKENS

    def at(position: int) -> None:
        tile = floats(3 + position, TOKENS, columns, size=1e6)
        tile[(position + 3) % TOKENS] = np.nan
        tile[position] = token
        equal[position] = np.array_equal(multiply(weight, tile)[:, position], expected)

    team.each(at, range(TOKENS))
    return all(equal)


def _attention_is_exact(shape: HeadShape, team: Team) -> bool:
    """Forty tokens at once, some alone, and some in chunks, across the edges of KV tiles."""
    length, cached = KV_TILE + 62, KV_TILE + 22
    q = floats(7, length - cached, shape.heads * shape.head_dim)
    widths = (shape.head_dim, shape.value_dim or shape.head_dim)
    keys, values = (floats(seed, length, shape.kv_heads, width) for seed, width in zip((8, 9), widths, strict=True))
    table = np.zeros((1, 1), np.int32)

    def of(first: int, last: int, window: int) -> Floats:
        cu_q, kv_len = np.array([0, last - first], np.int32), np.array([cached + last], np.int32)
        attributes = {"head_dim": shape.head_dim, "scale": shape.head_dim**-0.5, "window": window, "softcap": shape.softcap}
        return attention(team, q[first:last], keys, values, table, cu_q, kv_len, length, **attributes)

    for window in (0, 40):
        whole = of(0, len(q), window)
        for first, last in ((0, 1), (5, 6), (0, 7), (7, 24), (39, 40)):
            if not np.array_equal(of(first, last, window), whole[first:last]):
                return False
    return True


def _function_is_exact(function: Callable[[Floats], Floats]) -> bool:
    values = np.abs(floats(4, _LENGTH, size=3.0))
    return all(np.array_equal(function(part), function(values)[window]) for window, part in _windows(values))


def _windows(values: Floats) -> Iterator[tuple[slice, Floats]]:
    for start in range(_LENGTH):
        for end in (start + 1, start + 3, _LENGTH):
            window = slice(start, min(end, _LENGTH))
            yield window, values[window].copy()


def _sums_are_exact() -> bool:
    """A row's sum, and attention's sum over keys, whatever stands beside them."""
    rows, tiles = floats(5, 33, 257), floats(6, 5, 2, KV_TILE, TOKENS)
    by_row, by_key = np.add.reduce(rows, axis=1), np.add.reduce(tiles, axis=2)
    return all(np.array_equal(np.add.reduce(rows[i : i + 1].copy(), axis=1)[0], by_row[i]) for i in range(len(rows))) and all(
        np.array_equal(np.add.reduce(tiles[i : i + 1, j : j + 1].copy(), axis=2)[0, 0], by_key[i, j]) for i in range(5) for j in range(2)
    )
