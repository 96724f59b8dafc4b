"""One choice of a request while it is open: the request's value, and where its computation stands."""

from enum import IntEnum
from typing import Any

from ridgeline.core.events import Wait
from ridgeline.core.params import Admitted


class State(IntEnum):
    """WAITING has no row; RUNNING has one; ENDED is over for the engine (its front end may still owe a close); CLOSED is over."""

    WAITING = 0
    RUNNING = 1
    ENDED = 2
    CLOSED = 3


class Sequence:
    """`computed ≤ scheduled ≤ reach`, where `reach` = known ids + ids that steps in flight will sample at least.

    known      prompt and outputs, ids
    ahead      drafted positions behind `scheduled` in the step in flight: blocks cover them, nothing counts on them
    capacity   positions covered by the blocks in `tables`
    steady     while `reach` is not beyond it, one more token and a sample need no decision at all
    released   per group: leading blocks that have been let go, behind its window
    new_blocks     (group, first block, block ids) appended to tables since the row was last planned
    limit      the most ids it may ever know
    rank       its place in the policy's order, smaller runs first
    keys       prefix keys of the full blocks of `known`, made on demand, as is `identity`
    published  leading blocks offered to the prefix cache (or found there); `publish_at` is where the next one ends
    in_flight  steps in flight that carry it; `last_step` is the newest of them
    blocked_at the block that it waits for, while it waits for a prefix
    scored     leading prompt positions whose next token's log-probability has been planned, never to be planned again; `to_score` of them
               are asked for
    """

    __slots__ = (
        "__weakref__",
        "blocked_at",
        "cached_tokens",
        "capacity",
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
        "limit",
        "message",
        "new_blocks",
        "number",
        "overtaken",
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
        "state",
        "stop_ids",
        "tables",
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
        self.limit = self.prompt_tokens + request.max_tokens
        self.stop_ids = request.stop_ids
        self.rank: tuple[int, ...] = ()
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
        self.in_flight = 0
        self.last_step = -1
        self.state = State.WAITING
        self.waiting_for: set[Wait] = set()
        self.blocked_at = 0
        self.preemptions = 0
        self.overtaken = 0
        self.cached_tokens = -1
        self.message: str | None = None
        self.draft_state: Any = None

    def set_capacity(self, positions: int) -> None:
        """Its blocks target so far now."""
        self.capacity = positions
        self.fast_path_limit = min(positions, self.limit - 1)

    @property
    def reusable(self) -> int:
        """Leading positions that it may take over from others: one known id is left to compute, and every position that is to be scored."""
        most = len(self.known) - 1
        return most if self.scored >= self.to_score else min(self.scored, most)

    @property
    def outputs(self) -> int:
        """Ids sampled and committed so far."""
        return len(self.known) - self.prompt_tokens

    @property
    def promised(self) -> int:
        """Ids that steps in flight will sample at least."""
        return self.target - len(self.known)
