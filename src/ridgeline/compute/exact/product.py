"""Products with 16 tokens at a time, always in the same BLAS call: the bits of a token depend on that token alone.

A product is written weights · tokensᵀ, so that the tokens lie along the side of BLAS's register tile that 16 fills exactly.
The other way round, OpenBLAS treats some of the 16 differently from others (measured: positions 6 … 15 differ).
"""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.exact.threads import Team
from ridgeline.compute.ops.definition import Floats, Ints
from ridgeline.compute.ops.experts import by_expert, route_logits, rows_of

TOKENS = 16
"""Tokens a product. Absent ones are zeros."""

PIECE_ROWS = 512
"""Weight rows a product: enough to be fast, few enough that a piece stays in a core's cache and threads share evenly."""


class Matrix(Protocol):
    """A weight as the runner sees it: fp32, or codes that become fp32 a tile at a time; the tiles are the same for both."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def tiles(self) -> Iterator[tuple[int, Floats]]:
        """(first row, fp32 [rows, K]) over all rows; a tile may be overwritten when the next one is taken."""
        ...

    def rows(self, ids: NDArray[np.integer]) -> Floats:
        """fp32 [len(ids), K]."""
        ...


class Experts(Protocol):
    """One matrix per expert, or per head."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def part(self, number: int) -> Matrix:
        """The matrix [N, K] of one expert of [E, N, K]."""
        ...


def multiply(weight: Floats, tokens: Floats, out: Floats | None = None) -> Floats:
    """weight […, N, K], tokens […, 16, K] → […, N, 16]: a column a token."""
    return np.matmul(weight, tokens.swapaxes(-1, -2), out=out)


def linear(team: Team, x: Floats, weight: Matrix) -> Floats:
    """x [T, K], weight [N, K] → x · weightᵀ [T, N]."""
    count, width = len(x), weight.shape[0]
    out = np.empty((count, width), np.float32)
    tiles = -(-count // TOKENS)
    padded = np.zeros((tiles, TOKENS, x.shape[1]), np.float32)
    padded.reshape(-1, x.shape[1])[:count] = x
    if count == 0:
        return out
    for start, rows in weight.tiles():

        def piece(first: int, start: int = start, rows: Floats = rows) -> None:
            product = multiply(rows[first : first + PIECE_ROWS], padded)
            columns = out[:, start + first : start + first + product.shape[1]]
            for tile in range(tiles):
                part = columns[tile * TOKENS : (tile + 1) * TOKENS]
                part[:] = product[tile].T[: len(part)]

        team.each(piece, range(0, len(rows), PIECE_ROWS))
    return out


def embed(ids: Ints, table: Matrix) -> Floats:
    """ids [T] or [1, T], table [V, D] → [T, D]."""
    return table.rows(ids.reshape(-1))


def route(team: Team, x: Floats, weight: Matrix, bias: Floats | None = None, **said: Any) -> Any:
    """x [T, D], weight [E, D] → ids and weights [T, k] of the experts that are chosen; `said` as `ops/experts.py` has it."""
    return route_logits(linear(team, x, weight), bias, **said)


def linear_heads(team: Team, x: Floats, weight: Experts) -> Floats:
    """x [T, H · K], weight [H, N, K] → [T, H · N]: `linear` of each head's numbers with its matrix."""
    heads, outputs, inputs = weight.shape
    out = np.empty((len(x), heads, outputs), np.float32)
    for head in range(heads):
        out[:, head] = linear(team, x[:, head * inputs : (head + 1) * inputs], weight.part(head))
    return out.reshape(len(x), heads * outputs)


def linear_experts(team: Team, x: Floats, experts: Ints, weight: Experts, bias: Floats | None = None) -> Floats:
    """x [T, K] or [T · k, K], experts [T, k], weight [E, N, K] → [T · k, N] in (token, choice) order.

    `linear` of each expert's tokens, whose bits do not depend on who else chose it.
    """
    out = np.empty((experts.size, weight.shape[1]), np.float32)
    for expert, places in by_expert(experts):
        out[places] = linear(team, x[rows_of(x, experts, places)], weight.part(expert))
    return out if bias is None else out + bias[experts.reshape(-1)]
