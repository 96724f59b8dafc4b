"""KV blocks reserved for what running sequences will still need: their prompts and a quantile of the outputs that others had.

A sequence starts if at every end to come the blocks suffice: until then each running one grows by a token per step, and what has ended has
freed its blocks (Gong et al. 2025, past-future scheduling). Integers throughout: a replay starts the same.
"""

from typing import Final

from ridgeline.core.plan import KVShape
from ridgeline.core.sequence import Sequence

BUCKETS: Final = 248
"""Buckets of lengths: exact below 16, then eight per octave, up to 2³¹."""
QUANTILE: Final = 35
"""Percent of those with as many outputs so far that have no more than is reserved. What ends early pays for what ends late, and a
preemption costs less than an empty row: a quantile above the median saves the last preemptions at the price of throughput."""
MIN_SAMPLES: Final = 8
SAMPLES_PER_TABLE: Final = 16
MEMORY: Final = 1_024
"""Samples after which all count half."""


def _bucket(outputs: int) -> int:
    octave = max(0, outputs.bit_length() - 4)
    return (octave << 3) + (outputs >> octave)


def _longest(bucket: int) -> int:
    """The longest length in a bucket."""
    octave = max(0, (bucket >> 3) - 1)
    return ((bucket - (octave << 3) + 1) << octave) - 1


class OutputLengths:
    """Lengths of the outputs of sequences that have closed."""

    def __init__(self) -> None:
        self._counts = [0] * BUCKETS
        self._samples = 0
        self._table = [0] * BUCKETS
        """Expected length by the bucket of the outputs so far, 0 where too few had more."""

    @property
    def is_known(self) -> bool:
        """True once enough sequences have closed; nothing is reserved before."""
        return self._samples >= SAMPLES_PER_TABLE

    def add(self, outputs: int) -> None:
        """Counts a closed sequence."""
        self._counts[_bucket(outputs)] += 1
        self._samples += 1
        if self._samples % MEMORY == 0:
            self._counts = [count >> 1 for count in self._counts]
        if self._samples % SAMPLES_PER_TABLE == 0:
            self._fill_table()

    def _fill_table(self) -> None:
        longer, above, quantile = 0, 0, BUCKETS - 1
        for bucket in range(BUCKETS - 1, -1, -1):
            longer += self._counts[bucket]
            while quantile > bucket and 100 * (above + self._counts[quantile]) <= (100 - QUANTILE) * longer:
                above += self._counts[quantile]
                quantile -= 1
            self._table[bucket] = _longest(quantile) if longer >= MIN_SAMPLES else 0

    def expected(self, outputs: int) -> int:
        """The length that a sequence with `outputs` outputs so far is expected to reach, above them: twice as many where few had more."""
        return max(outputs + 1, self._table[_bucket(outputs)] or 2 * outputs)

    def remaining(self, sequence: Sequence) -> int:
        """Further tokens that the sequence is expected to have, at most those that it may have."""
        known = len(sequence.known)
        outputs = known - sequence.prompt_tokens
        return min(max(self.expected(outputs), sequence.request.min_tokens) - outputs, sequence.limit - known)


class Reservation:
    """Decides whether blocks suffice for what running sequences will still need."""

    def __init__(self, shape: KVShape, lengths: OutputLengths) -> None:
        self._lengths = lengths
        self._size = size = shape.block_tokens
        self._full = sum([not group.window for group in shape.groups])
        self._windows = [-(-(group.window - 1) // size) + 1 for group in shape.groups if group.window]
        """Blocks of each group with a window, at most."""

    def most_to_come(self, sequence: Sequence) -> int:
        """Blocks that a sequence takes beyond those of its full-attention groups, in the worst case: it reaches its limit. Its windows
        count in full, whatever they hold: others may come to share their blocks."""
        blocks = -(-(sequence.limit - 1) // self._size)
        return self._full * (blocks - sequence.capacity // self._size) + sum([min(blocks, most) for most in self._windows])

    def will_fit(self, sequences: list[Sequence], available: int) -> bool:
        """True if `available` blocks are enough until all of the sequences have ended: as outputs are expected, or in the worst case."""
        return self._is_likely_to_fit(sequences, available) or sum(map(self.most_to_come, sequences)) <= available

    def _is_likely_to_fit(self, sequences: list[Sequence], available: int) -> bool:
        if not self._lengths.is_known:
            return True
        size, full, windows, remaining_of = self._size, self._full, self._windows, self._lengths.remaining
        ends, half = list[tuple[int, int, int]](), size // 2
        for sequence in sequences:
            known, capacity, remaining = len(sequence.known), sequence.capacity, remaining_of(sequence)
            ends.append((remaining, known - capacity + half, capacity - min(capacity, max(0, sequence.cached_tokens))))
            for most in windows:
                covered = min(known, capacity)
                if covered < most * size:
                    available -= min(most, -(-(known + remaining) // size)) - -(-covered // size)
        if not full:
            return available >= 0
        ends.sort()
        free, alive, owed = available * size // full, len(ends), sum([owes for _, owes, _ in ends])
        for remaining, owes, holds in ends:
            if owed + alive * remaining > free:
                return False
            owed -= owes
            free += holds
            alive -= 1
        return True
