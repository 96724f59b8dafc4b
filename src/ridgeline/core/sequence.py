"""One choice of a request while it is open, and the state of its computation."""

from enum import IntEnum
from typing import Any

from ridgeline.core.commands import Delivered
from ridgeline.core.events import Wait
from ridgeline.core.params import Admitted


class State(IntEnum):
    """WAITING has no row, RUNNING has one. ENDED: the engine is done, the front end has not closed it yet. CLOSED: it is over."""

    WAITING = 0
    RUNNING = 1
    ENDED = 2
    CLOSED = 3


class Sequence:
    """The state of one choice. `computed ≤ scheduled ≤ target`.

    known      ids of prompt and output
    computed   leading positions whose K and V are in the cache
    scheduled  leading positions that are computed or that a step in flight computes
    target     known ids + ids that steps in flight will sample at least (`promised`): as far as can be scheduled
    drafted    drafted positions behind `scheduled` in steps in flight: they have blocks, and nothing counts on them
    capacity   positions covered by the blocks in `tables`
    fast_path_limit  a decode with `target` up to here needs no decision: it has a block and stays below the limit
    tables     block table per KV group
    released   per group: leading blocks that were freed behind its window
    new_blocks (group, first block, block ids) appended to tables since the row was last planned
    limit      the most ids that it may ever know; with `pooling` one more than it has, since no id ends it
    pooling    None: it samples; else it ends behind its prompt, with a vector
    rank       its place in the policy's order, smaller runs first
    latest_start  microsecond at which it must begin for its first token to come in time (`core.slack`), under the slo policy
    can_be_late  it ranks later, once, if it misses that
    tag        its place among those of all tenants (`core.fairness`); `charge` is what the tenant was charged with for it
    keys       prefix keys of the full blocks of `known`, made on demand, as is `identity`
    published  leading blocks published in the prefix cache, or found there; the next one is full at position `publish_at`
    slot       of its adapter, from its start until its row is free; -1: none
    in_flight  steps in flight with a row of it; `last_step` is the newest of them
    overtaken  sequences that started before it although it was ready
    passed_from  starts of sequences until it began to wait for a slot for its adapter
    blocked_at the block that it waits for, while it waits for a prefix
    scored     leading prompt positions whose next token's log-probability is planned; `to_score` of them are asked for
    draft_state  owned by the drafter
    """

    __slots__ = (
        "__weakref__",
        "blocked_at",
        "cached_tokens",
        "can_be_late",
        "capacity",
        "charge",
        "choice",
        "computed",
        "draft_state",
        "drafted",
        "fast_path_limit",
        "identity",
        "in_flight",
        "keys",
        "known",
        "last_step",
        "latest_start",
        "limit",
        "message",
        "new_blocks",
        "number",
        "overtaken",
        "passed_from",
        "pooling",
        "preemptions",
        "prompt_tokens",
        "publish_at",
        "published",
        "rank",
        "released",
        "request",
        "row",
        "scheduled",
        "scored",
        "slot",
        "state",
        "stop_ids",
        "tables",
        "tag",
        "target",
        "to_score",
        "waiting_for",
    )

    def __init__(self, request: Admitted, choice: int, number: int, groups: int) -> None:
        self.request = request
        self.choice = choice
        self.number = number
        self.known = list(request.prompt)
        self.prompt_tokens = len(request.prompt)
        self.pooling = request.pooling
        self.limit = self.prompt_tokens + max(1, request.max_tokens)
        self.stop_ids = request.stop_ids
        self.rank: tuple[int, ...] = ()
        self.latest_start = 0
        self.can_be_late = False
        self.tag = 0
        self.charge = 0
        self.computed = 0
        self.scheduled = 0
        self.drafted = 0
        self.target = self.prompt_tokens
        self.scored = 0
        self.to_score = 0 if choice or request.prompt_logprobs is None else self.prompt_tokens - 1
        self.capacity = 0
        self.fast_path_limit = 0
        self.tables: list[list[int]] = [[] for _ in range(groups)]
        self.released = [0] * groups
        self.new_blocks: list[tuple[int, int, tuple[int, ...]]] = []
        self.keys: list[bytes] = []
        self.identity = b""
        self.published = 0
        self.publish_at = 0
        self.row = -1
        self.slot = -1
        self.in_flight = 0
        self.last_step = -1
        self.state = State.WAITING
        self.waiting_for: set[Wait] = set()
        self.blocked_at = 0
        self.preemptions = 0
        self.overtaken = 0
        self.passed_from = 0
        self.cached_tokens = -1
        self.message: str | None = None
        self.draft_state: Any = None

    def continue_behind(self, delivered: Delivered) -> None:
        """Gives a new sequence what an engine before has delivered of it. It is then as behind a preemption, and counts as preempted if it
        had run."""
        self.known += delivered.ids
        self.target = len(self.known)
        self.scored = min(delivered.scored, self.to_score)
        if delivered.cached_tokens is not None:
            self.cached_tokens = delivered.cached_tokens
            self.preemptions = 1

    def set_capacity(self, positions: int) -> None:
        """Sets the number of positions that its blocks cover."""
        self.capacity = positions
        self.fast_path_limit = 0 if self.pooling else min(positions, self.limit - 1) - self.drafted

    def draft(self, positions: int) -> None:
        """So many more drafted positions are in flight, or fewer."""
        self.drafted += positions
        self.fast_path_limit -= positions

    @property
    def reusable(self) -> int:
        """Leading positions that may come from the prefix cache: all but the last known one, and none that is still to be scored or that
        the sequence's vector is made of."""
        if self.pooling is not None and self.pooling.needs_all:
            return 0
        most = len(self.known) - 1
        return most if self.scored >= self.to_score else min(self.scored, most)

    @property
    def outputs(self) -> int:
        """Number of committed output ids."""
        return len(self.known) - self.prompt_tokens

    @property
    def promised(self) -> int:
        """Number of ids that steps in flight will sample at least."""
        return self.target - len(self.known)
