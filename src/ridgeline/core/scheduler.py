"""The scheduler: one law, no phases. A step spends a token budget to let what is scheduled catch up with what is known or promised.

Owns the steps in flight and the order of decisions. Time is passed in; nothing here reads a clock, draws a number or touches an array.
"""

from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass
from heapq import merge
from itertools import chain

from ridgeline.core.commands import Abort, Admit, Close, Command, Output
from ridgeline.core.commit import commit
from ridgeline.core.drafts.drafter import Drafter
from ridgeline.core.events import Computed, Event, PrefixHit, PrefixMiss, Scheduled, StepTimed, Wait
from ridgeline.core.kv_cache import Cache
from ridgeline.core.lifecycle import Lifecycle, by_rank
from ridgeline.core.params import Limits
from ridgeline.core.plan import LAST, KVShape, Plan, Result
from ridgeline.core.plan_builder import PlanBuilder
from ridgeline.core.policy import Policy
from ridgeline.core.preemption import Room
from ridgeline.core.sequence import Sequence, State


@dataclass(frozen=True, slots=True)
class Flight:
    """A step between `schedule` and `commit`: the sequences of its rows, in the plan's order, and their numbers. `barrier`: it drafts, so
    that nothing is planned behind it."""

    plan: Plan
    sequences: list[Sequence]
    numbers: tuple[int, ...]
    barrier: bool = False


class Scheduler:
    """Decides what every step computes. `apply`, `schedule` and `commit` are called by one loop, never at the same time."""

    def __init__(self, limits: Limits, kv: KVShape, policy: Policy, drafter: Drafter | None = None) -> None:
        self.limits = limits
        self.policy = policy
        self.drafter = drafter
        self.flights: deque[Flight] = deque()
        self._events: list[Event] = []
        self._emit = self._events.append
        self.cache = Cache(kv, limits.prefix_caching, self._emit)
        self.life = Lifecycle(limits, policy, self.cache, self._emit)
        self.room = Room(policy, self.cache, self.life)
        self._block_tokens = kv.block_tokens
        self.step = 0
        """Number of the next step."""
        self._last: Flight | None = None
        self._refused: tuple[Sequence | None, int] = None, 0

    def take_events(self) -> list[Event]:
        """Events since the last call, in order."""
        events = self._events.copy()
        self._events.clear()
        return events

    @property
    def in_flight(self) -> int:
        """Steps scheduled and not committed."""
        return len(self.flights)

    @property
    def idle(self) -> bool:
        """Nothing is open and nothing in flight."""
        return not self.life.open and not self.flights

    def apply(self, commands: Items[Command], now: float) -> None:
        """Commands in the order in which they came. Rejections and closes are told by events."""
        for command in commands:
            match command:
                case Admit(request):
                    self.life.admit(request, now)
                case Close(request_id, choice, keep, reason):
                    self.life.close(request_id, choice, keep, reason, now)
                case Abort(request_id):
                    self.life.abort(request_id, now)

    def schedule(self, now: float) -> Plan | None:
        """The next step, or None when nothing may run now. Never an empty plan."""
        if len(self.flights) >= self.limits.depth or (self.drafter is not None and self.flights and self._holds(self.drafter)):
            return None
        builder = PlanBuilder(self.step, self.limits.token_budget)
        sequences, starts, tokens = builder.sequences, builder.starts, builder.tokens
        step, budget = builder.step, builder.budget
        for sequence in self._candidates(builder):
            position, reach = sequence.scheduled, sequence.reach
            if reach - position == 1 and reach <= sequence.steady:
                # `PlanBuilder.add` for one token and a sample, written out because every running sequence passes here.
                sequences.append(sequence)
                starts.append(position)
                known = sequence.known
                tokens.append(known[position] if position < len(known) else LAST)
                sequence.scheduled = reach
                sequence.reach = reach + 1
                sequence.in_flight += 1
                sequence.last_step = step
            else:
                self._advance(sequence, builder, now)
            if len(tokens) >= budget:
                break
        if sequences and self.drafter is not None:
            most = min(builder.left, self.limits.most_samples - builder.samples, self._prefill_left(builder))
            _draft(self.drafter, builder, most, self.room, self.cache)
        return self._launch(builder, now) if sequences else None

    def _holds(self, drafter: Drafter) -> bool:
        """Steps in flight are waited for: one drafts, or the next one shall and needs to know what they sample. Who could start is not
        held up for that."""
        if self.flights[-1].barrier:
            return True
        life = self.life
        return not (life.waiting and life.rows) and drafter.waits(life.running)

    def _candidates(self, builder: PlanBuilder) -> Iterable[Sequence]:
        """Running and waiting sequences in the policy's order; only running ones when no waiting one can start."""
        life = self.life
        builder.closed = not life.waiting or not self.policy.joins(len(life.running))
        if not builder.closed and not life.rows:
            builder.closed = not life.running or self.policy.same_class(life.waiting[0], life.running[-1])
        if builder.closed:
            return life.running
        if not life.running or life.running[-1].rank < life.waiting[0].rank:
            return chain(life.running, self._queue(builder))
        return merge(tuple(life.running), self._queue(builder), key=by_rank)

    def _queue(self, builder: PlanBuilder) -> Iterator[Sequence]:
        """Waiting sequences in the policy's order, as long as any may start."""
        for sequence in tuple(self.life.waiting):
            if builder.closed:
                return
            yield sequence

    def _launch(self, builder: PlanBuilder, now: float) -> Plan:
        last, pool, away = self._last, self.cache.pool, len(self.cache.host.cached)
        same = last is not None and not builder.fresh and last.sequences == builder.sequences
        plan = builder.freeze(self.life.freed_rows, self.cache.copies, last.plan if last is not None and same else None)
        self.life.freed_rows.clear()
        self.cache.copies.clear()
        numbers = last.numbers if last is not None and same else tuple([sequence.number for sequence in builder.sequences])
        self._last = Flight(plan, builder.sequences, numbers, bool(builder.drafts))
        self.flights.append(self._last)
        self.step += 1
        self._emit(Scheduled(plan.step, now, numbers, plan.count, len(self.life.waiting), len(pool.free), len(pool.cached), away))
        return plan

    def _advance(self, sequence: Sequence, builder: PlanBuilder, now: float) -> None:
        """Anything but one more token on blocks that are there."""
        if sequence.state is State.WAITING:
            if not builder.closed:
                self._start(sequence, builder, now)
            return
        if sequence.state is not State.RUNNING or sequence.reach >= sequence.limit:
            return
        if len(sequence.known) - sequence.scheduled > self._block_tokens and self._stands_at_blocks_edge(sequence):
            blocker = self._catch_up(sequence)
            if blocker is not None:
                self.life.wait(sequence, Wait.PREFIX, blocker)
                return
        if sequence.waiting_for:
            self.life.clear(sequence, Wait.PREFIX)
        wanted = self._wanted(sequence, builder)
        count = self.room.for_tokens(sequence, wanted, builder) if wanted else 0
        if count:
            self.cache.grow(sequence, sequence.scheduled + count)
            builder.add(sequence, count)

    def _wanted(self, sequence: Sequence, builder: PlanBuilder) -> int:
        """Tokens that bring it to its reach, as many as the step has left; 0 where its prompt is to be scored and the step may not, or
        where others have had what rows that catch up may have."""
        wanted = min(builder.left, sequence.reach - sequence.scheduled)
        if sequence.reach - sequence.scheduled > 1:
            wanted = min(wanted, self._prefill_left(builder))
        if sequence.scored < sequence.to_score:
            wanted = min(wanted, sequence.scored - sequence.scheduled + builder.scores_left)
        return wanted

    def _prefill_left(self, builder: PlanBuilder) -> int:
        """Tokens that rows which catch up may still have in the step, from how many rows keep up in it."""
        if builder.prefill_left is None:
            keep_up = [s.reach - s.scheduled == 1 and (s.reach < s.limit or s.last_step == builder.step) for s in self.life.running]
            builder.prefill_left = self.limits.prefill_budget(sum(keep_up))
        return builder.prefill_left

    def _stands_at_blocks_edge(self, sequence: Sequence) -> bool:
        """Nothing in flight and its blocks full: a prefix can go on here. While some are pinned, blocks are taken through `room` only."""
        return not sequence.in_flight and sequence.scheduled == sequence.capacity and not self.life.pinned

    def _catch_up(self, sequence: Sequence) -> Sequence | None:
        """A running sequence takes what others have published; returns who is computing its next block, if that is worth waiting for."""
        size, before = self._block_tokens, sequence.capacity
        blocks = self.cache.longest_hit(sequence)
        if blocks * size > before:
            if not self.cache.fits(sequence, blocks):
                return None
            self.cache.adopt(sequence, blocks)
            fetched = self.cache.fetch(sequence)
            if not sequence.preemptions:
                sequence.cached_tokens += sequence.capacity - before
            self._emit(PrefixHit(sequence.request.request_id, sequence.choice, sequence.capacity - before, fetched))
        return self._blocker(sequence, blocks)

    def _blocker(self, sequence: Sequence, block: int) -> Sequence | None:
        """The sequence that computes this one's block, if one does and this one need not compute it itself."""
        if (block + 1) * self._block_tokens > sequence.reusable:
            return None
        return self.cache.index.blocker(sequence, block)

    def _start(self, sequence: Sequence, builder: PlanBuilder, now: float) -> None:
        """A waiting sequence becomes resident if a row and blocks are there. The first that fails closes the step to those behind it."""
        if sequence.waiting_for and (sequence.waiting_for != {Wait.PREFIX} or self._blocker(sequence, sequence.blocked_at) is not None):
            return
        unscorable = sequence.scored < sequence.to_score and not builder.scores_left
        if unscorable or self._still_refused(sequence) or not self._prefill_left(builder) or not self.room.for_row(sequence, builder):
            builder.closed = True
            return
        hit = self.cache.longest_hit(sequence)
        blocker = self._blocker(sequence, hit)
        if blocker is not None:
            sequence.blocked_at = hit
            self.life.wait(sequence, Wait.PREFIX, blocker)
            return
        self.cache.adopt(sequence, hit)
        if not self.room.for_start(sequence, builder):
            self.cache.release(sequence)
            self._refused = sequence, self.cache.pool.available
            builder.closed = True
            return
        fetched = self.cache.fetch(sequence)
        count = self.room.for_tokens(sequence, self._wanted(sequence, builder), builder)
        self.life.clear(sequence, Wait.PREFIX)
        self._report_hit(sequence, hit, fetched)
        self.life.start(sequence, now)
        self.cache.index.announce(sequence, hit, (len(sequence.known) - 1) // self._block_tokens)
        self.cache.grow(sequence, sequence.scheduled + count)
        builder.add(sequence, count, fresh=True)

    def _still_refused(self, sequence: Sequence) -> bool:
        """It was refused before and no block has come since: not worth looking up its prefix again."""
        refused, available = self._refused
        return refused is sequence and self.cache.pool.available <= available and self.room.victim(sequence) is None

    def _report_hit(self, sequence: Sequence, hit: int, fetched: int) -> None:
        tokens, name = hit * self._block_tokens, sequence.request.request_id
        if sequence.cached_tokens < 0:
            sequence.cached_tokens = tokens
        if tokens:
            self._emit(PrefixHit(name, sequence.choice, tokens, fetched))
        if self.cache.index.shares(sequence) and hit < sequence.reusable // self._block_tokens:
            self._emit(PrefixMiss(name, sequence.choice, hit))

    def commit(self, plan: Plan, result: Result, now: float) -> list[Output]:
        """The oldest step in flight is done. Returns the new ids, and the ends that they brought."""
        flight = self.flights[0]
        if flight.plan.step != plan.step or result.step != plan.step:
            raise ValueError(f"step {flight.plan.step} is the oldest in flight, step {plan.step} was committed with result {result.step}")
        self.flights.popleft()
        lengths = bytearray(map(len, result.sampled))
        outputs = commit(flight.sequences, flight.plan, result, lengths, self.cache, self.life, now)
        self._emit(_computed(flight, lengths, now))
        if self.drafter is not None:
            self.drafter.committed(flight.sequences, flight.plan, result)
        self._emit(StepTimed(plan.step, result.timings))
        return outputs


def _draft(drafter: Drafter, builder: PlanBuilder, most: int, room: Room, cache: Cache) -> None:
    """Lays `most` drafts on, in the policy's order, on rows that compute one known token and have nothing else in flight."""
    fresh = set(builder.fresh)
    indices = [
        index
        for index, sequence in enumerate(builder.sequences)
        if sequence.in_flight == 1 and index not in builder.chunks and sequence not in fresh and sequence.reach < sequence.limit
    ]
    if most < 1 or not indices:
        return
    rows = [(sequence := builder.sequences[index], sequence.limit - sequence.reach) for index in indices]
    for index, (sequence, allowed), ids in zip(indices, rows, drafter.propose(rows, len(builder.tokens), most), strict=True):
        count = room.for_drafts(sequence, min(len(ids), allowed, most))
        if count > 0:
            most -= count
            cache.grow(sequence, sequence.scheduled + count)
            builder.draft(index, ids[:count])


def _computed(flight: Flight, lengths: bytearray, now: float) -> Computed:
    """The event of a committed step whose rows sampled `lengths` ids each."""
    drafted = accepted = 0
    if flight.barrier:
        drafts = [(samples - 1, length - 1) for samples, length in zip(flight.plan.sample, lengths, strict=True) if samples > 1]
        drafted, accepted = sum([most for most, _ in drafts]), sum([max(0, right) for _, right in drafts])
    return Computed(flight.plan.step, now, flight.numbers, array("i", list(lengths)), drafted, accepted)
