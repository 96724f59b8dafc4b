"""Plan and result: the only contract between thinking and computing. Columns, not objects.

A plan is a delta against rows that the executor already has. No field names a phase.
"""

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ridgeline.core.params import RowParams

if TYPE_CHECKING:
    IntColumn = array[int]
else:
    IntColumn = array

LAST = -1
"""In `Plan.tokens`: the id sampled last for the row."""


@dataclass(frozen=True, slots=True)
class NewRow:
    """A sequence that becomes resident: after admission, or again after a preemption."""

    row: int
    sequence: int
    """Stable number of the sequence in the engine's life (the noise key is `params`, never this)."""
    params: RowParams
    ids: tuple[int, ...]
    """All known ids, prompt and outputs: the request as a value."""
    tables: tuple[tuple[int, ...], ...]
    """Per KV group the block table: ids of the sequence's blocks 0, 1, …; behind the window 0, which is never read."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One step. `row[i]` computes `count[i]` tokens from position `start[i]`; `tokens` holds them back to back.

    start    absolute; beyond the end of the row's last step when it takes over blocks that others have published
    tokens   of each row known ids, then LAST, or ids drafted by the host behind a known one
    sample   how many of the row's last positions sample, ≤ count: 0, 1, or 1 + the number of its drafts
    score    (row index, first, count): prompt positions whose next token is to be scored, `first` counted from the row's first token
    """

    step: int
    row: IntColumn
    start: IntColumn
    count: IntColumn
    tokens: IntColumn
    sample: bytearray
    new_rows: tuple[NewRow, ...] = ()
    freed_rows: tuple[int, ...] = ()
    blocks: tuple[tuple[int, int, int, tuple[int, ...]], ...] = ()
    """(row, group, index of the first block, block ids) appended to tables of rows that are already resident; 0 as in `NewRow`."""
    copies: tuple[tuple[int, int], ...] = ()
    """(from, to): whole blocks copied, one after the other, before the step computes; one of the two is a block of the host."""
    score: tuple[tuple[int, int, int], ...] = ()

    @property
    def drafts(self) -> bool:
        """A row has drafts: the step is a barrier, nothing is planned behind it until it is committed."""
        return self.sample.count(0) + self.sample.count(1) < len(self.sample)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one sampled position: the sampled id's, and the k best ids in descending order."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds of one step as the executor saw it: waiting for its turn, making its inputs, running."""

    queue: float = 0.0
    prepare: float = 0.0
    run: float = 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """Outcome of a step, row for row as in the plan.

    sampled   ids of row i, n ≤ `Plan.sample[i]`: up to and including the first that differs from its draft; none only where the row does
              not sample, or where its first sampling position is not finite
    finite    1 where the row's numbers are finite: keys, values and final hidden states of its tokens up to the last returned sample; 0
              where a position that is not finite was met before the walk ended (ids before it are still returned)
    logprobs  of row i one per returned id, None where the row did not ask; None when no row asked
    scores    per entry of `Plan.score` as many as it names; None when there are none
    """

    step: int
    sampled: tuple[tuple[int, ...], ...]
    finite: bytearray
    logprobs: tuple[tuple[TokenLogprobs, ...] | None, ...] | None = None
    timings: Timings = field(default_factory=Timings)
    scores: tuple[tuple[TokenLogprobs, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that share a block table. `window` 0 means that every position is kept (kind "full").

    Groups are cut so that a block has the same size in each: one pool serves all.
    """

    kind: str
    layers: tuple[int, ...]
    window: int = 0


@dataclass(frozen=True, slots=True)
class KVShape:
    """The paged KV cache as thinking sees it: groups, blocks, and the tokens in a block. Block 0 is reserved and never handed out."""

    groups: tuple[KVGroup, ...]
    block_tokens: int
    blocks: int
    """Usable blocks, numbered 1 … `blocks`."""
    fingerprint: bytes
    """Identity of weights and KV layout: part of every prefix key."""
    host_blocks: int = 0
    """Blocks of host memory behind those, numbered `blocks` + 1 …: they keep content for the device, which computes with its own alone."""
    block_bytes: int = 0
    """Bytes that a copy of a block moves; 0 where there is no memory behind it."""
