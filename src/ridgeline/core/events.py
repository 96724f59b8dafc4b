"""Events: the actions of the core as typed values, from which metrics, recordings and tests are derived.

Per step one event with a column per row when it is planned (`Scheduled`) and one when it is committed (`Computed`); the others are per
request or block. What there is of every step or block is a named tuple, which takes a third of a dataclass's time to make. The core never
reads its own events.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

from ridgeline.core.plan import IntColumn, Timings


class Wait(StrEnum):
    """Reasons for which a sequence cannot be scheduled although its turn has come (`Sequence.waiting_for`): another sequence computes a
    block of its prefix, steps in flight still use its row, its grammar is being compiled, its adapter is being read, others use all
    slots for adapters, or a tier is asked for blocks of its prompt."""

    PREFIX = "prefix"
    DRAIN = "drain"
    GRAMMAR = "grammar"
    ADAPTER = "adapter"
    SLOT = "adapter slot"
    KV_FETCH = "kv fetch"


Lack = Literal["", "rows", "blocks", "budget", "order", "adapter slot"]
"""Reason why the first waiting sequence has no row in a step: all are taken, too few blocks are free, prompts before it have the step's
budget, the policy starts none beside those that run; or nothing, or none waits."""


class Finish(StrEnum):
    """Reasons for the end of a sequence, as clients read them."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request enters the queue, or goes on with its open `choices` in a new engine. `arrived`: when it reached the front end, on the
    engine's clock, at most `time`; `ttft_ms`, `itl_ms`: its own targets, 0 where it names none."""

    request_id: str
    time: float
    prompt_tokens: int
    choices: int
    arrived: float
    tenant: str = ""
    max_tokens: int = 0
    ttft_ms: int = 0
    itl_ms: int = 0


@dataclass(frozen=True, slots=True)
class Waiting:
    request_id: str
    choice: int
    reason: Wait
    blocker: str | None
    """Request id of the sequence waited for, if there is one."""


@dataclass(frozen=True, slots=True)
class Ready:
    request_id: str
    choice: int
    reason: Wait


class Scheduled(NamedTuple):
    """A planned step: per row the sequence number and the tokens it computes; then the state of queue and block pools."""

    step: int
    time: float
    sequences: tuple[int, ...]
    count: IntColumn  # type: ignore[assignment]  # a tuple has a method of that name, which nobody calls
    waiting: int
    free_blocks: int
    cached_blocks: int
    host_blocks: int = 0
    """Cached blocks of the host tier."""
    lack: Lack = ""
    positions: int = 0
    """Positions that the rows' queries attend from: the sum of where each row starts."""


class Computed(NamedTuple):
    """A committed step: per row the sequence number and the ids it sampled. `accepted` of `drafted` ids were right."""

    step: int
    time: float
    sequences: tuple[int, ...]
    sampled: IntColumn
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Idle:
    """No step is in flight, and none can be planned before the next command: the state of the block pools until then."""

    time: float
    free_blocks: int
    cached_blocks: int
    host_blocks: int = 0


@dataclass(frozen=True, slots=True)
class Started:
    """A choice takes a row; links the sequence number to the request. `resumed`: after a preemption, or the end of an engine."""

    request_id: str
    choice: int
    sequence: int
    time: float
    resumed: bool


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """`tokens` need not be computed; `from_host` of them are copied back from the host tier, `from_tier` were brought by another one."""

    request_id: str
    choice: int
    tokens: int
    from_host: int = 0
    from_tier: int = 0
    tier: str = ""


@dataclass(frozen=True, slots=True)
class PrefixMiss:
    request_id: str
    choice: int
    first_missing_block: int


@dataclass(frozen=True, slots=True)
class Preempted:
    request_id: str
    choice: int
    by: str
    why: str


class Published(NamedTuple):
    """Blocks have content that other prompts may use, until they are evicted. Told where somebody has asked (`TellBlocks`), and of one KV
    group. `digests`: the first `DIGEST_BYTES` of each block's key, in order."""

    block_ids: tuple[int, ...]
    digests: bytes


class Evicted(NamedTuple):
    """The content of a published block is lost."""

    block_id: int


class Moved(NamedTuple):
    """The content of a published block is in block `to` from this plan on. Host blocks have greater numbers than device blocks."""

    block_id: int
    to: int

    @property
    def out(self) -> bool:
        """True if the content left the device."""
        return self.to > self.block_id


@dataclass(frozen=True, slots=True)
class TierUsed:
    """Work of a tier since the last such event, in blocks: brought, kept, found to be other than their names say, not kept since it
    failed or could not keep up; calls that failed; of the blocks that it brought those of another KV type or share of the heads; and calls
    that found its blocks to be of another layout."""

    tier: str
    fetched: int = 0
    kept: int = 0
    bad: int = 0
    dropped: int = 0
    failures: int = 0
    converted: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class EndedProvisionally:
    request_id: str
    choice: int
    reason: Finish


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one choice, counted once from its ids. `cached_tokens`: prompt tokens taken from the prefix cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Closed:
    request_id: str
    choice: int
    reason: Finish
    usage: Usage
    time: float
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    request_id: str
    message: str
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class StepLate:
    """A step with decoding rows that took `seconds`, a quarter longer than `--step-ms` or more."""

    step: int
    time: float
    seconds: float
    decode_rows: int
    prefill_tokens: int


@dataclass(frozen=True, slots=True)
class Drafting:
    """The outlook of speculation for the `rows` that decode, told now and then: of those that offer drafts (`offers`) the mean chance that
    the first is right, the mean number of drafts that are worth their time, and the share by which one more token makes the step longer."""

    step: int
    time: float
    rows: int
    offers: int
    chance: float
    depth: float
    token_cost: float


class StepTimed(NamedTuple):
    step: int
    timings: Timings


Event = (
    Admitted
    | Waiting
    | Ready
    | Scheduled
    | Computed
    | Started
    | PrefixHit
    | PrefixMiss
    | Preempted
    | Published
    | Evicted
    | Moved
    | EndedProvisionally
    | Closed
    | Rejected
    | StepTimed
    | Drafting
    | StepLate
    | TierUsed
    | Idle
)
