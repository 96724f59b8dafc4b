"""Helpers of several formats: half-precision fields, small integers packed into bytes, and the groups that blocks are unpacked into."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Integers = NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class Groups:
    """Integers of a matrix [N, K], or of N blocks of K weights, and what scales them:

        weight[n, k] = (scales[n, k // span]·factors[n, k // size])·(codes[n, k] - zero) - mins[n, k // span]·offsets[n, k // size]

    where every operation is one in fp32. A span is what integer kernels add up before they scale it; span and size follow from the shapes.

    codes    [N, K], of at most 9 bits with their sign
    scales   fp32 [N, K / span]
    zero     of every code; 0 where codes are not uint8
    factors  [N, K / size], whole numbers of at most 8 bits; None: 1, and size is span
    mins     fp32 [N, K / span]; None: 0
    offsets  [N, K / size], whole numbers of at most 8 bits; None: 1
    """

    codes: Integers
    scales: Floats
    zero: int = 0
    factors: Integers | None = None
    mins: Floats | None = None
    offsets: Integers | None = None

    @property
    def span(self) -> int:
        """Weights under one fp32 scale."""
        return self.codes.shape[1] // self.scales.shape[1]

    @property
    def size(self) -> int:
        """Weights of a group: those under one factor."""
        return self.span if self.factors is None else self.codes.shape[1] // self.factors.shape[1]

    @property
    def integers(self) -> NDArray[np.int32]:
        """The integers that kernels add up: factor times code less zero, int32 [N, K]."""
        codes = self.codes.astype(np.int32) - np.int32(self.zero)
        return codes if self.factors is None else codes * self.factors.astype(np.int32).repeat(self.size, axis=1)

    @property
    def group_scales(self) -> Floats:
        """Scale times factor, fp32 [N, K / size]."""
        return _spread(self.scales, self.factors)

    @property
    def group_mins(self) -> Floats:
        """Minimum times offset, fp32 [N, K / size]."""
        return np.zeros_like(self.group_scales) if self.mins is None else _spread(self.mins, self.offsets)

    def reshape(self, count: int) -> "Groups":
        """The same numbers in `count` rows."""
        codes, scales, factors, mins, offsets = (
            None if part is None else np.ascontiguousarray(part).reshape(count, -1)
            for part in (self.codes, self.scales, self.factors, self.mins, self.offsets)
        )
        assert codes is not None and scales is not None
        return Groups(codes, scales, self.zero, factors, mins, offsets)

    def write(self, out: Floats) -> None:
        """The weights into `out`, fp32 [N, K] contiguous.

        The zero is taken from the codes, as formats have it: a code of zero is zero whatever the scale's sign.
        """
        out[...] = (self.codes - np.uint8(self.zero)).view(np.int8) if self.zero else self.codes
        grouped = out.reshape(len(out), -1, self.size)
        grouped *= self.group_scales[..., None]
        if self.mins is not None:
            grouped -= self.group_mins[..., None]


def _spread(floats: Floats, integers: Integers | None) -> Floats:
    """floats [n, spans] times integers [n, groups], each span's with those of its groups."""
    if integers is None:
        return floats
    n, spans = floats.shape
    products: Floats = floats[..., None] * integers.reshape(n, spans, -1).astype(np.float32)
    return products.reshape(n, -1)


def halves(blocks: Bytes, start: int) -> Floats:
    """The fp16 field at byte `start` of every block: blocks [n, bytes] → fp32 [n, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view(np.float16).astype(np.float32)


def fields(packed: Bytes, width: int) -> Bytes:
    """Fields of `width` bits: packed [n, a, b] → [n, a, 8 / width, b]; field j is bits width·j … of a byte.

    What formats store next to each other is b bytes whose first fields are b consecutive weights, then b whose second
    fields are, and so on.
    """
    n, a, b = packed.shape
    count = 8 // width
    split = np.empty((n, a, count, b), np.uint8)
    for j in range(count):
        np.right_shift(packed, np.uint8(width * j), out=split[:, :, j])
    split &= np.uint8((1 << width) - 1)
    return split
