"""Sizes that steps are padded to, so that few graphs and few sets of views serve all of them. Pure.

Padding is made of rows of its own, behind the step's, whose tables name page 0 only: nobody reads what they compute. In a step of single
tokens every row of padding has one token; in any other step one row has all of them.
"""

from bisect import bisect_left
from typing import NamedTuple

SMALL_ROWS = (1, 2, 4, 8, 16)
ROWS_STEP, MANY_ROWS, MANY_ROWS_STEP = 8, 256, 32
SEGMENT_TOKENS = (8, 16, 32, 64, 128, 256, 384, 512)
"""Sizes of mixed steps whose ops between two attentions are graphs: larger ones compute for longer than they are launched."""
TOKENS_STEP = 256
LEAST_POSITIONS, POSITIONS_FACTOR = 512, 4


class Bucket(NamedTuple):
    """Sizes of a step, padding included.

    tokens, rows  as in `Sizes`; every row has one selected position, its last
    blocks        of a row's table
    most_q        tokens of one row at most; 1: a step of single tokens, in which tokens = rows
    """

    tokens: int
    rows: int
    blocks: int
    most_q: int

    @property
    def single(self) -> bool:
        """Whether every row has one token."""
        return self.most_q == 1


def row_buckets(most: int) -> tuple[int, ...]:
    """1, 2, 4, 8, 16, then by eights to 256, then by 32, up to the first that is at least `most`."""
    sizes = [*SMALL_ROWS]
    while sizes[-1] < most:
        sizes.append(sizes[-1] + (ROWS_STEP if sizes[-1] < MANY_ROWS else MANY_ROWS_STEP))
    return tuple(sizes[: bisect_left(sizes, most) + 1])


def token_bucket(tokens: int) -> int:
    """The least size of a mixed step for so many tokens."""
    if tokens <= SEGMENT_TOKENS[-1]:
        return SEGMENT_TOKENS[bisect_left(SEGMENT_TOKENS, tokens)]
    return -(-tokens // TOKENS_STEP) * TOKENS_STEP


def block_buckets(positions: int, block_tokens: int) -> tuple[int, ...]:
    """Blocks of a table for 512, 2048, 8192 … positions, at last for `positions`: as attention's grid covers all of a table."""
    sizes, reach = [], LEAST_POSITIONS
    while reach < positions:
        sizes.append(-(-reach // block_tokens))
        reach *= POSITIONS_FACTOR
    return (*sizes, -(-positions // block_tokens))


class Buckets:
    """The buckets of a runner whose steps have at most so many tokens, rows and positions of a row."""

    def __init__(self, tokens: int, rows: int, positions: int, block_tokens: int) -> None:
        self.rows = row_buckets(rows + 1)  # with a row of padding
        self.blocks = block_buckets(max(positions, token_bucket(tokens)), block_tokens)
        self.tokens = max(token_bucket(tokens), self.rows[-1])

    def of(self, counts: list[int], blocks: int) -> Bucket:
        """The bucket of a step whose rows have so many tokens, the longest of them so many blocks."""
        rows, tokens, most_q = len(counts), sum(counts), max(counts)
        reach = self.blocks[bisect_left(self.blocks, blocks)]
        if most_q == 1:
            size = self.rows[bisect_left(self.rows, rows)]
            return Bucket(size, size, reach, 1)
        size = token_bucket(tokens)
        padding = size - tokens
        longest = max(most_q, padding)
        return Bucket(size, self.rows[bisect_left(self.rows, rows + (padding > 0))], reach, 1 << (longest - 1).bit_length())

    @property
    def largest(self) -> Bucket:
        """The bucket that every other fits in."""
        return Bucket(self.tokens, self.rows[-1], self.blocks[-1], 1 << (self.tokens - 1).bit_length())

    def mixed(self, tokens: int) -> Bucket:
        """The least bucket of a mixed step of so many tokens: one row."""
        return Bucket(tokens, self.rows[0], self.blocks[0], 1 << (tokens - 1).bit_length())

    @property
    def single(self) -> tuple[Bucket, ...]:
        """Every bucket of steps of single tokens, the largest first: what the others need of memory is then there."""
        found = [Bucket(rows, rows, blocks, 1) for rows in self.rows for blocks in self.blocks]
        return tuple(sorted(found, reverse=True))

    @property
    def segments(self) -> tuple[int, ...]:
        """Tokens of the mixed steps that have graphs, the largest first."""
        return tuple(size for size in reversed(SEGMENT_TOKENS) if size <= self.tokens)
