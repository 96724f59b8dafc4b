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

FROM_ROW = -1
"""In `Plan.start`: where the row stands. In `Plan.tokens`: the last id sampled for the row."""


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
    """Per KV group the pages of blocks 0, 1, …; a block behind the window has page 0, which is never read."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One step. `row[i]` computes `count[i]` tokens from position `start[i]`; `tokens` holds them back to back.

    start    absolute, or FROM_ROW; ahead of where a resident row stands when it takes over blocks that others have published
    select   indices into the T tokens whose logits are needed, in ascending order: where rows sample, and where prompts are scored
    sample   1 where the row samples one token at the end of its tokens (its last index is then in `select`)
    needs_commit  1 where no further token of the row may be planned before this step has been committed
    """

    step: int
    row: IntColumn
    start: IntColumn
    count: IntColumn
    tokens: IntColumn
    select: IntColumn
    sample: bytearray
    needs_commit: bytearray
    new_rows: tuple[NewRow, ...] = ()
    freed_rows: tuple[int, ...] = ()
    blocks: tuple[tuple[int, int, int, tuple[int, ...]], ...] = ()
    """(row, group, index of the first block, pages) appended to tables of rows that are already resident; page 0 as in `NewRow`."""
    copies: tuple[tuple[int, int], ...] = ()
    """(from, to): whole pages copied, one after the other, before the step computes; one of the two is a page of the host."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one sampled position: the sampled id's, and the k best ids in descending order."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds of one step as the executor saw it: waiting for its turn, copying inputs and outputs, running."""

    queue: float = 0.0
    copy: float = 0.0
    run: float = 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """What a step computed, row for row as in the plan."""

    step: int
    sampled: tuple[tuple[int, ...], ...]
    """Ids sampled for row i: empty where it does not sample."""
    finite: bytearray
    """1 where the row's numbers are finite: of all its tokens of this step, sampled or not, those that keys and values are made from, and
    the final hidden states of those that sample."""
    logprobs: tuple[TokenLogprobs | None, ...] | None = None
    """For each row the sampled token's; None when no row asked."""
    timings: Timings = field(default_factory=Timings)
    prompt_logprobs: tuple[tuple[TokenLogprobs, ...], ...] | None = None
    """For each row those of the tokens behind its selected positions at which it does not sample; None when there are none."""


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that share a block table. `window` 0 means that every position is kept (kind "full").

    Groups are cut so that a page has the same size in each: one pool serves all.
    """

    kind: str
    layers: tuple[int, ...]
    window: int = 0


@dataclass(frozen=True, slots=True)
class KVShape:
    """The paged KV cache as thinking sees it: groups, pages, and the tokens in a block. Page 0 is reserved and never handed out."""

    groups: tuple[KVGroup, ...]
    block_tokens: int
    pages: int
    """Usable pages, numbered 1 … pages."""
    fingerprint: bytes
    """Identity of weights and KV layout: part of every prefix key."""
    host_pages: int = 0
    """Pages of host memory behind those, numbered pages + 1 …: they keep blocks for the device, which computes with its own alone."""
    page_bytes: int = 0
    """What a copy of a page moves; 0 where pages are of no memory."""
