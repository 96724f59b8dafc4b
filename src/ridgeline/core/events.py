"""The whole truth, once: what the core did, as typed values. Metrics, ledger, recorder and tests are folds over them.

One columnar event a step (`Scheduled`, `Computed`); the rest per request. The core never reads its own events.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from ridgeline.core.plan import IntColumn, Timings


class Wait(StrEnum):
    """Reasons for which a sequence cannot be scheduled although it is at the front: `waiting_for` holds these."""

    PREFIX = "prefix"
    DRAIN = "drain"


class Finish(StrEnum):
    """Reasons for which a sequence ended, as the client reads them."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Admitted:
    request_id: str
    time: float
    prompt_tokens: int
    choices: int


@dataclass(frozen=True, slots=True)
class Waiting:
    request_id: str
    choice: int
    reason: Wait
    blocker: str | None
    """Request id of the one waited for, where there is one."""


@dataclass(frozen=True, slots=True)
class Ready:
    request_id: str
    choice: int
    reason: Wait


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Columns of one plan: sequence numbers and how many tokens each computes."""

    step: int
    time: float
    sequences: tuple[int, ...]
    count: IntColumn
    waiting: int
    free_blocks: int
    cached_blocks: int
    host_blocks: int = 0
    """Blocks of the host that hold something."""


@dataclass(frozen=True, slots=True)
class Computed:
    """Columns of one committed step: sequence numbers and how many ids each sampled. `accepted` of `drafted` ids were right."""

    step: int
    time: float
    sequences: tuple[int, ...]
    sampled: IntColumn
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Started:
    """A choice got its row: links the sequence number to the request. `resumed` after a preemption."""

    request_id: str
    choice: int
    sequence: int
    time: float
    resumed: bool


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """`tokens` need not be computed; those of `from_host` of them are copied back from the host."""

    request_id: str
    choice: int
    tokens: int
    from_host: int = 0


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


class Evicted(NamedTuple):
    """Content of a published block is forgotten. One for every block, so made cheaply, as are `Moved` and `Published`."""

    block_id: int


class Moved(NamedTuple):
    """Content of a published block is in block `to` from this plan on. Blocks of the host have greater numbers than the device's."""

    block_id: int
    to: int

    @property
    def out(self) -> bool:
        """True if it left the device."""
        return self.to > self.block_id


class Published(NamedTuple):
    block_id: int
    group: int
    key: bytes


@dataclass(frozen=True, slots=True)
class EndedProvisionally:
    request_id: str
    choice: int
    reason: Finish


@dataclass(frozen=True, slots=True)
class Usage:
    """Counted from ids, once. `cached_tokens` are prompt tokens taken from the prefix cache."""

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
class StepTimed:
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
    | Evicted
    | Moved
    | Published
    | EndedProvisionally
    | Closed
    | Rejected
    | StepTimed
)
