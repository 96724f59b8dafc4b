"""The start-up self-test of the arithmetic: does a token's result depend on that token alone, on this machine?

Owns no fix: where a BLAS fails it, the runner still computes, and says that its answers may depend on the batch.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ridgeline.compute.exact.attention import KV_TILE
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
        """Whether chunk size, batch, cache hits and threads cannot change a bit."""
        return not self.failures


def check_exactness(shapes: Iterable[tuple[int, ...]], team: Team) -> Exactness:
    """Tries products with weights of `shapes` (outputs, inputs), attention's two products, and elementwise functions."""
    with one_blas_thread() as held, np.errstate(all="ignore"):
        failures = [] if held else ["the number of BLAS threads cannot be held to one"]
        failures += [f"a product with {n} x {k} weights" for n, k in _pieces(shapes) if not _product_is_exact(n, k, team)]
        failures += [f"numpy's {f.__name__}" for f in (np.exp, np.tanh, np.sqrt) if not _function_is_exact(f)]
        failures += [] if _sums_are_exact() else ["numpy's sums"]
    return Exactness(tuple(failures))


def _pieces(shapes: Iterable[tuple[int, ...]]) -> list[tuple[int, int]]:
    """Every (rows, columns) that one BLAS call of `product.linear` can have, and attention's."""
    pieces = {(KV_TILE, 256), (256, KV_TILE)}
    for rows, columns in shapes:
        pieces |= {(piece, columns) for piece in (min(rows, PIECE_ROWS), rows % PIECE_ROWS) if piece}
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
