"""The protocol between the engine loop and what computes: numpy, C++, CUDA, or a simulator."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from ridgeline.core.drafts.model import DraftCache
from ridgeline.core.params import Adapter, Grammar, Pooling
from ridgeline.core.plan import KVShape, Plan, Result
from ridgeline.core.step_time import StepSeconds
from ridgeline.errors import Finding


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """Facts about an executor that scheduling needs before the first plan.

    vocab          ids that may be sampled or sent: every id anywhere is below it; padded rows of the logits are beyond
    max_model_len  positions that fit the model and the KV cache, whichever is less
    rows           sequences that can be resident at once
    seconds        time of a step, measured after warm-up; None where it is unknown
    tokens         of a step at most
    price          (tokens, samples, seconds) of steps in which a row verifies drafts, measured after warm-up; empty where it is unknown
    samples        positions of a step that sample at most, drafts among them; 0: one per row
    has_grammars   True where rows may follow grammars
    drafts         cache and price of the draft model; None: there is none
    timed          (rows, tokens of each, seconds) of the steps of which `seconds` was made
    pooling        how the model's description makes a vector of a text; None: this runner makes none
    width          numbers of a vector
    generates      False: the model has no head, and texts have vectors alone
    findings       problems of the model's header and weights
    adapter_slots  adapters that the rows of a step may have; 0: rows have none
    """

    kv: KVShape
    vocab: int
    max_model_len: int
    rows: int
    runner: str
    weights_bytes: int
    kv_bytes: int
    seconds: StepSeconds | None = None
    tokens: int = 512
    price: tuple[tuple[int, int, float], ...] = ()
    samples: int = 0
    has_grammars: bool = False
    pooling: Pooling | None = None
    width: int = 0
    generates: bool = True
    findings: tuple[Finding, ...] = ()
    adapter_slots: int = 0
    timed: tuple[tuple[int, int, float], ...] = ()
    drafts: DraftCache | None = None


@dataclass(frozen=True, slots=True)
class Ticket:
    """A submitted plan. Tickets are collected in the order of submission."""

    plan: Plan


class Grammars(Protocol):
    """Compiles grammars, off the engine's loop. Once one is ready, rows may follow it."""

    def warm_up(self) -> None:
        """Begins to prepare for the first grammar; returns at once."""
        ...

    def compile(self, grammar: Grammar) -> None:
        """Starts to compile the grammar, unless it has been compiled; returns at once. `take` reports it in both cases."""
        ...

    def take(self) -> list[tuple[bytes, str | None]]:
        """Returns digests of the grammars that became ready since the last call, each with its error if it cannot be followed."""
        ...

    @property
    def pending(self) -> bool:
        """True while `take` has something to report, or will have."""
        ...

    def fileno(self) -> int:
        """A file descriptor that can be read while `take` has something to report."""
        ...


class Adapters(Protocol):
    """Reads adapters into host memory, off the engine's loop. Once one is there, a plan may fill a slot with it."""

    def load(self, adapter: Adapter) -> None:
        """Asks for the adapter. `take` reports it once it is there, also where it has been all the time."""
        ...

    def begin(self, in_use: Collection[bytes]) -> None:
        """Begins to read what has been asked for, as far as there is room; returns at once.

        in_use  digests that open sequences name: these are kept, others make room
        """
        ...

    def take(self) -> list[tuple[bytes, str | None]]:
        """Returns digests of the adapters that became ready since the last call, each with its error if it cannot be used."""
        ...

    @property
    def pending(self) -> bool:
        """True while one is being read, or has been."""
        ...

    def fileno(self) -> int:
        """A file descriptor that can be read while `take` has something to report that has been read."""
        ...


class BlockContents(Protocol):
    """Contents of KV blocks as bytes, for tiers that keep them; each has `KVShape.block_bytes`.

    staged  number → content that the copies of a plan may name, which takes it away when it is submitted
    runs    in a content, each of which has as many bytes of every token of the block, in order: those of a head of K or V of a layer, so
            that a share of the heads is a choice of runs, whatever order the cache has; 0: it cannot be cut
    types   KV type → bytes of a head of a token, of contents that can be made this cache's, its own first; empty: its own alone
    """

    staged: dict[int, bytes]

    @property
    def types(self) -> dict[str, int]:
        """See above."""
        ...

    def converted(self, content: bytes, type: str) -> bytes:
        """A content whose numbers have another type, with those of this cache. Called by any thread."""
        ...

    @property
    def runs(self) -> int:
        """See above."""
        ...

    def read(self, block_id: int) -> bytes:
        """The content of a published block of the device. Called between a commit and the next plan, while others may be in flight."""
        ...

    def touch(self, block_ids: Sequence[int]) -> None:
        """Has the system give the memory of free blocks before a step writes them. Called while no step is in flight."""
        ...


class Executor(Protocol):
    """Executes plans in order. At most as many plans are in flight as the depth it was built for."""

    @property
    def adapters(self) -> Adapters | None:
        """Reads adapters that rows have; None where they have none."""
        ...

    @property
    def grammars(self) -> Grammars | None:
        """Compiles grammars that rows follow; None where they cannot."""
        ...

    @property
    def blocks(self) -> BlockContents | None:
        """Contents of its blocks; None where only it can reach them."""
        ...

    @property
    def trace(self) -> Callable[[str, int], None] | None:
        """Called with a path and a number of steps it tells in a new file what the next so many steps do, op by op, once they have run;
        with 0 it ends the file with the steps that it has. Returns at once; raises OSError. None where nothing is computed."""
        ...

    @property
    def info(self) -> ExecutorInfo: ...

    def submit(self, plan: Plan) -> Ticket:
        """Enqueues the plan and returns at once, without waiting for the device."""
        ...

    def collect(self, ticket: Ticket) -> Result:
        """Waits for the result of the oldest submitted plan; raises if that is not the ticket's."""
        ...

    def beat(self) -> int:
        """A number that changes while a step is computed, in the middle of a long one too. Any thread may ask, at any time."""
        ...

    def close(self) -> None:
        """Frees the executor's resources. Safe to call twice."""
        ...
