"""Plan and result of a step: the contract between scheduler and executor, in columns with one entry per row.

A plan is a delta against rows that the executor already has. Prefill and decode are not distinguished.
"""

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from ridgeline.core.params import RowParams

if TYPE_CHECKING:
    IntColumn = array[int]
else:
    IntColumn = array

LAST = -1
"""Stands in `Plan.tokens` for the id that was sampled last for the row, which the executor fills in."""
DRAFT = -2
"""Stands in `Plan.tokens` for an id that the draft model drafts in front of the step."""


@dataclass(frozen=True, slots=True)
class NewRow:
    """A sequence that takes a row, after admission or again after a preemption."""

    row: int
    sequence: int
    """Number of the sequence, unique in the life of the engine. Noise is keyed by `params`, never by this."""
    params: RowParams
    ids: tuple[int, ...]
    """All known ids, prompt and outputs."""
    tables: tuple[tuple[int, ...], ...]
    """Block table per KV group; 0 for blocks behind the window, which are never read."""
    slot: int = -1
    """Slot of its adapter; -1: it has none."""


class SlotFill(NamedTuple):
    """An adapter that a slot is filled with before the step computes."""

    slot: int
    digest: bytes


class DraftSpan(NamedTuple):
    """Work of the draft model for a row, in front of the step.

    row     permanent row
    start   absolute, of heads counted from where their context begins; the positions before it are in their own cache. Of a row that is
            `open` the least
    ids     known ids from there on; where it drafts, up to the newest, LAST if that is not known. Of a row that is `open` LAST alone: the
            executor computes those before it that have not been, the last draft that came true, or with heads all of them
    drafts  number of ids that it drafts behind them; 0: it catches up
    blocks  (group, index of the first block, block ids) of that cache, appended to the row's tables there; from 0 on for a new sequence
    """

    row: int
    start: int
    ids: tuple[int, ...]
    drafts: int
    blocks: tuple[tuple[int, int, tuple[int, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """One step. `row[i]` computes `count[i]` tokens from position `start[i]`; `tokens` holds them back to back.

    start    absolute; beyond the end of the row's last step if blocks that others have published were attached
    open     how much farther each row may stand than `start`, by what steps in flight accept of its drafts; empty: all stand there
    tokens   per row known ids, then LAST, or behind a known one drafted ids, all of them DRAFT where the draft model makes them
    sample   number of the row's last positions that sample, ≤ count: 0, 1, or 1 + its drafts
    score    (row index, first, count): prompt positions whose next token is scored, `first` counted from the row's first token
    pool     indices of rows whose text ends in this step: their vectors are results (`RowParams.pooling`)
    spans    what the draft model computes, at most one of each row
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
    """(row, group, index of the first block, block ids) appended to the block tables of earlier rows; 0 as in `NewRow`."""
    copies: tuple[tuple[int, int], ...] = ()
    """(from, to): blocks copied in this order before the step computes, one of each pair on the host; from −n, content n of a tier."""
    score: tuple[tuple[int, int, int], ...] = ()
    fills: tuple[SlotFill, ...] = ()
    pool: tuple[int, ...] = ()
    spans: tuple[DraftSpan, ...] = ()
    open: bytes = b""

    @property
    def drafts(self) -> bool:
        """True if a row has drafts."""
        return self.sample.count(0) + self.sample.count(1) < len(self.sample)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one sampled position: the sampled id's, the k best ids in descending order, and the place of the sampled id in
    that order of all ids, from 1."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    rank: int = 1


class ExpertReads(NamedTuple):
    """Uses and reads of experts that are not all in memory, in a step.

    uses, misses  experts chosen in its layers, each once a layer; those that were not in memory
    bytes         read
    wait          seconds that threads waited for them, all threads together
    guesses, right, useful  experts read before their layer chose; of these those that it chose; of these those that were there by then
    """

    uses: int = 0
    misses: int = 0
    bytes: int = 0
    wait: float = 0.0
    guesses: int = 0
    right: int = 0
    useful: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds of one step in the executor: waiting for its turn, making its inputs, running, and of that in the draft model; and what it
    read of experts, None where all are in memory."""

    queue: float = 0.0
    prepare: float = 0.0
    run: float = 0.0
    draft: float = 0.0
    experts: ExpertReads | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a step, with the rows of its plan.

    sampled   per row n ≤ `Plan.sample[i]` ids, up to and including the first that differs from its draft; none only if the row does not
              sample or its first sampling position is not finite
    finite    1 if keys, values and final hidden states of the row's tokens are finite up to the last returned id; 0 if a position that is
              not was met before the end of verification (ids before it are returned)
    logprobs  per row one per returned id, None for a row that did not ask; None if no row asked
    scores    per entry of `Plan.score` as many as it names; None if there are none
    failures  (row index, reason) of rows that cannot go on for another reason; their `finite` is 0
    vectors   per entry of `Plan.pool` the text's vector, little-endian float32; anything where the row is not finite
    drafted   per entry of `Plan.spans` the ids that the draft model drafted, as many as it names
    forced    (row index, ids) of rows whose grammar leaves no choice of the text behind what they sampled: likely ids of that text
    """

    step: int
    sampled: tuple[tuple[int, ...], ...]
    finite: bytearray
    logprobs: tuple[tuple[TokenLogprobs, ...] | None, ...] | None = None
    timings: Timings = field(default_factory=Timings)
    scores: tuple[tuple[TokenLogprobs, ...], ...] | None = None
    failures: tuple[tuple[int, str], ...] = ()
    vectors: tuple[bytes, ...] = ()
    drafted: tuple[tuple[int, ...], ...] = ()
    forced: tuple[tuple[int, tuple[int, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that share a block table. `window` 0 (kind "full"): every position is kept.

    A block has the same size in every group, so that one pool serves all.
    """

    kind: str
    layers: tuple[int, ...]
    window: int = 0


UNIT_TOKENS: Final = 16


def unit_tokens(block_tokens: int) -> int:
    """Tokens of the units in which blocks are named, and kept by tiers, so that engines with blocks of other sizes find them."""
    return UNIT_TOKENS if block_tokens % UNIT_TOKENS == 0 else block_tokens


@dataclass(frozen=True, slots=True)
class HeadShare:
    """The KV heads that blocks hold: `count` of the `total` heads of the model, from `first` on."""

    first: int
    count: int
    total: int


ONE_HEAD: Final = HeadShare(0, 1, 1)


@dataclass(frozen=True, slots=True)
class KVShape:
    """The paged KV cache: its groups, the tokens per block and the number of blocks. Block 0 is reserved and never allocated."""

    groups: tuple[KVGroup, ...]
    block_tokens: int
    blocks: int
    """Usable blocks, numbered 1 … `blocks`."""
    fingerprint: bytes
    """Hash of weights and KV layout, part of every prefix key."""
    host_blocks: int = 0
    """Blocks of the host tier, numbered `blocks` + 1 …. The device reads its own blocks only; content is copied back first."""
    block_bytes: int = 0
    """Bytes that a copy of a block moves; 0 if no memory is behind it, as in a simulation."""
    shared: bytes = b""
    """Hash of the weights alone, which engines of several numerics that share blocks begin prefix keys with; empty: `fingerprint` does."""
    layout: str = ""
    """Words for all that a content depends on: tiers say them of blocks that are not used."""
    attention_tokens: float = 0.0
    """See `facts.model`: what a token costs by its position, for tiers that choose what to keep."""
    recurrent: bool = False
    """Rows have recurrent states beside their blocks, so that none begins behind blocks that another has computed."""
    heads: HeadShare = ONE_HEAD
    """KV heads of its blocks, in every group. A latent is one, which every executor has."""

    @property
    def root(self) -> bytes:
        """Beginning of all prefix keys: engines of the same root find each other's blocks."""
        return self.shared or self.fingerprint

    @property
    def unit_tokens(self) -> int:
        """Tokens of the units of a block."""
        return unit_tokens(self.block_tokens)
