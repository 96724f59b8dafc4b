"""Matrices of adapters in codes of 8 bits, as native kernels read them; see LoraPair in csrc/runtime/ops.def."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.ops.lora_codes import CODE_SPAN, CodedMatrix

ROWS: Final = 16
QUAD: Final = 4
"""A quad: 4 columns of 16 rows, 64 bytes; ranks are the rows of A and the columns of B."""
SCALES_BYTES: Final = 4 * ROWS
ZERO: Final = 128
"""Of codes without a sign."""

Bytes = NDArray[np.uint8]


def a_bytes(rank: int, width: int) -> int:
    """Bytes of A [rank, width]."""
    return _blocks(rank, ROWS) * (SCALES_BYTES * _blocks(width, CODE_SPAN) + ROWS * QUAD * _blocks(width, QUAD))


def b_bytes(rank: int, width: int) -> int:
    """Bytes of B [rank, width]."""
    scales = _blocks(rank, ROWS) * SCALES_BYTES * _blocks(width, CODE_SPAN)
    return scales + ROWS * QUAD * _blocks(width, ROWS) * _blocks(rank, QUAD)


def put_a(target: Bytes, matrix: CodedMatrix) -> None:
    """Spans of columns, [rank / 16] of scales and quads each, into a target that is zero."""
    rank, width = matrix.shape
    rows = _blocks(rank, ROWS)
    for first, spans, here in _spans(width):
        quads = _blocks(here, QUAD)
        record = SCALES_BYTES + ROWS * QUAD * quads
        own, target = target[: spans * rows * record].reshape(spans, rows, record), target[spans * rows * record :]
        own[:, :, :SCALES_BYTES] = _scales(matrix, first, spans, rows)
        codes = _filled(matrix, first, spans * here, rows * ROWS, spans * quads * QUAD).reshape(rows, ROWS, spans, quads, QUAD)
        own[:, :, SCALES_BYTES:].reshape(spans, rows, quads, ROWS, QUAD)[...] = codes.transpose(2, 0, 3, 1, 4)


def put_b(target: Bytes, matrix: CodedMatrix) -> None:
    """Spans of outputs, [rank / 16] of scales and then quads, into a target that is zero."""
    rank, width = matrix.shape
    rows, quads = _blocks(rank, ROWS), _blocks(rank, QUAD)
    for first, spans, here in _spans(width):
        blocks = _blocks(here, ROWS)
        record = rows * SCALES_BYTES + blocks * quads * ROWS * QUAD
        own, target = target[: spans * record].reshape(spans, record), target[spans * record :]
        own[:, : rows * SCALES_BYTES].reshape(spans, rows, SCALES_BYTES)[...] = _scales(matrix, first, spans, rows)
        codes = _filled(matrix, first, spans * here, quads * QUAD, spans * blocks * ROWS).reshape(quads, QUAD, spans, blocks, ROWS)
        own[:, rows * SCALES_BYTES :].reshape(spans, blocks, quads, ROWS, QUAD)[...] = codes.transpose(2, 3, 0, 4, 1)


def _spans(width: int) -> list[tuple[int, int, int]]:
    """(first column, spans, columns of each): all whole spans, then a last one."""
    whole, rest = divmod(width, CODE_SPAN)
    return [each for each in ((0, whole, CODE_SPAN), (whole * CODE_SPAN, 1, rest)) if each[1] and each[2]]


def _scales(matrix: CodedMatrix, first: int, spans: int, rows: int) -> Any:
    """Scales of some spans as bytes [spans, rows, SCALES_BYTES]."""
    scales = np.zeros((spans, rows * ROWS), np.float32)
    scales[:, : len(matrix.scales)] = matrix.scales[:, first // CODE_SPAN :][:, :spans].T
    return scales.view(np.uint8).reshape(spans, rows, SCALES_BYTES)


def _filled(matrix: CodedMatrix, first: int, columns: int, rank: int, width: int) -> Bytes:
    """Codes of some columns without a sign, padded to [rank, width]."""
    padded = np.full((rank, width), ZERO, np.uint8)
    codes = matrix.codes[:, first : first + columns]
    np.bitwise_xor(codes.view(np.uint8), ZERO, out=padded[: len(codes), :columns])
    return padded


def _blocks(count: int, size: int) -> int:
    return -(-count // size)
