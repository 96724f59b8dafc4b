"""Sizes that steps are padded to, so that few graphs and few sets of views serve all of them. Pure.

Padding is on block 0 only, and its results are not read. In a decode step it is rows of one token each; in any other step its tokens belong
to no sequence.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.graph import StepInputs

SMALL_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
ROWS_STEP = 32
"""Up to some 180 rows a product takes as long as its weights are read: a few rows of padding cost little."""
SEGMENT_TOKENS = (128, 256, 512)
"""Sizes of mixed steps whose ops between two attentions are graphs. Smaller ones take as long; larger ones compute for longer than they
are launched."""
TOKENS_STEP = 256
LEAST_POSITIONS, POSITIONS_FACTOR = 2048, 4


class Bucket(NamedTuple):
    """Sizes of a step, padding included.

    tokens, rows  as in `Sizes`
    blocks        width of the block tables
    max_q         most tokens of a row; 1: a decode step, in which tokens = rows
    verifies      every position is selected and samples, beside drafts that may stand there; else the last one of each row
    """

    tokens: int
    rows: int
    blocks: int
    max_q: int
    verifies: bool = False

    @property
    def is_decode(self) -> bool:
        """True where every row has one token."""
        return self.max_q == 1

    @property
    def selected(self) -> int:
        """Selected positions, as in `Sizes`."""
        return self.tokens if self.verifies else self.rows


def row_buckets(most: int) -> tuple[int, ...]:
    """1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, then by 32, and at last `most` itself."""
    sizes = [*SMALL_ROWS]
    while sizes[-1] < most:
        sizes.append(sizes[-1] + ROWS_STEP)
    return (*sizes[: bisect_left(sizes, most)], most)


def token_bucket(tokens: int, most: int) -> int:
    """The least size of a mixed step for so many tokens, where a step has `most`."""
    size = next((size for size in SEGMENT_TOKENS if tokens <= size), -(-tokens // TOKENS_STEP) * TOKENS_STEP)
    return min(size, most)


def block_buckets(positions: int, block_tokens: int) -> tuple[int, ...]:
    """Widths of a block table for 2048, 8192 … positions, at last for `positions`: the splits of attention depend on the width."""
    sizes, reach = [], LEAST_POSITIONS
    while reach < positions:
        sizes.append(-(-reach // block_tokens))
        reach *= POSITIONS_FACTOR
    return (*sizes, -(-positions // block_tokens))


class Buckets:
    """The buckets of a runner whose steps have at most so many tokens, rows and positions of a row.

    drafts   most that a row verifies in a step, 0 without speculation
    backlog  instead of these: most ids beside its last one that a row computes in a step that is one graph too
    """

    def __init__(self, tokens: int, rows: int, positions: int, block_tokens: int, drafts: int = 0, backlog: int = 0) -> None:
        self.tokens, self._block_tokens = max(tokens, rows), block_tokens
        self._decode_rows = row_buckets(rows)
        self._verifies, few = drafts > 0, max(drafts, backlog)
        self._verified, most = 1 + few, min(self.tokens, SEGMENT_TOKENS[-1])
        self._verified_rows = tuple(size for size in self._decode_rows if few and size * self._verified <= most)
        self.rows = (*self._decode_rows, rows + 1)  # with a row of padding, which mixed steps alone have
        self.blocks = block_buckets(max(positions, self.tokens), block_tokens)

    def of(self, counts: Sequence[int], blocks: int) -> Bucket:
        """The bucket of a step whose rows have so many tokens, the longest of them so many blocks."""
        return self.padded(sum(counts), len(counts), max(counts), blocks)

    def of_step(self, inputs: StepInputs, more: NDArray[np.int32] | int = 0) -> Bucket:
        """The bucket of a step, whose rows may have so many positions `more` [R]."""
        tokens, rows = len(inputs.ids), len(inputs.kv_len)
        max_q = 1 if tokens == rows else int(np.diff(inputs.cu_q).max())
        return self.padded(tokens, rows, max_q, -(-int((inputs.kv_len + more).max()) // self._block_tokens))

    def padded(self, tokens: int, rows: int, max_q: int, blocks: int) -> Bucket:
        """The bucket of a step of so many tokens and rows, a row of which has at most `max_q` tokens and `blocks` blocks."""
        reach = self.blocks[bisect_left(self.blocks, blocks)]
        if max_q == 1:
            size = self._decode_rows[bisect_left(self._decode_rows, rows)]
            return Bucket(size, size, reach, 1)
        if max_q <= self._verified and rows <= self.most_verified:
            return self._verification(self._verified_rows[bisect_left(self._verified_rows, rows)], reach)
        size = token_bucket(tokens, self.tokens)
        return Bucket(size, self.rows[bisect_left(self.rows, rows + (size > tokens))], reach, 1 << (max_q - 1).bit_length())

    def _verification(self, rows: int, blocks: int) -> Bucket:
        """A step in which so many rows have a token and all drafts. What they have fewer belongs to a row of padding."""
        return Bucket(rows * self._verified, rows + 1, blocks, 1 << (self._verified - 1).bit_length(), self._verifies)

    @property
    def most_verified(self) -> int:
        """Most rows of a step that verifies drafts and is one graph."""
        return max(self._verified_rows, default=0)

    @property
    def largest(self) -> Bucket:
        """The bucket that every other fits in."""
        return Bucket(self.tokens, self.rows[-1], self.blocks[-1], 1 << (self.tokens - 1).bit_length())

    @property
    def selected(self) -> int:
        """Most selected positions of a step."""
        return max(bucket.selected for bucket in (self.largest, *self.verification[:1]))

    def smallest_mixed(self, tokens: int) -> Bucket:
        """The least bucket of a mixed step of so many tokens: one row."""
        return Bucket(tokens, self.rows[0], self.blocks[0], 1 << (tokens - 1).bit_length())

    @property
    def decode(self) -> tuple[Bucket, ...]:
        """Every bucket of decode steps, the largest first: the others then find their memory in the pool."""
        found = [Bucket(rows, rows, blocks, 1) for rows in self._decode_rows for blocks in self.blocks]
        return tuple(sorted(found, reverse=True))

    @property
    def verification(self) -> tuple[Bucket, ...]:
        """Every bucket of steps that verify drafts, or have a backlog, and are one graph, the largest first."""
        found = [self._verification(rows, blocks) for rows in self._verified_rows for blocks in self.blocks]
        return tuple(sorted(found, reverse=True))

    @property
    def segments(self) -> tuple[int, ...]:
        """Tokens of the mixed steps that have graphs, the largest first."""
        return tuple(sorted({token_bucket(size, self.tokens) for size in SEGMENT_TOKENS}, reverse=True))

    @property
    def mixed_tokens(self) -> tuple[int, ...]:
        """Tokens of all mixed steps, ascending."""
        every = (*SEGMENT_TOKENS, *range(SEGMENT_TOKENS[-1], self.tokens + TOKENS_STEP, TOKENS_STEP))
        return tuple(sorted({token_bucket(min(size, self.tokens), self.tokens) for size in every}))

    @property
    def compiled(self) -> tuple[Bucket, ...]:
        """Mixed steps for which every attention kernel is compiled: small and large, few and many tokens per row, few and many rows, short
        and long."""
        found = set()
        for tokens in (*self.segments, self.tokens):
            for max_q in (1 << power for power in range(1, (tokens - 1).bit_length() + 1)):
                fitting = [rows for rows in self.rows if tokens <= rows * max_q and rows <= tokens]
                found |= {Bucket(tokens, rows, blocks, max_q) for rows in (*fitting[:1], *fitting[-1:]) for blocks in self.blocks}
        return tuple(sorted(found))
