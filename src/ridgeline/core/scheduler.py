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
from ridgeline.core.kv_cache import KVBlocks
from ridgeline.core.lifecycle import Lifecycle, by_rank
from ridgeline.core.params import Limits
from ridgeline.core.plan import LAST, KVShape, Plan, Result
from ridgeline.core.plan_builder import PlanBuilder
from ridgeline.core.policy import Policy
from ridgeline.core.preemption import Preemptor
from ridgeline.core.sequence import Sequence, State


@dataclass(frozen=True, slots=True)
class InFlightStep:
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
        self.steps_in_flight: deque[InFlightStep] = deque()
        self._events: list[Event] = []
        self._emit = self._events.append
        self.cache = KVBlocks(kv, limits.prefix_caching, self._emit)
        self.lifecycle = Lifecycle(limits, policy, self.cache, self._emit)
        self.preemptor = Preemptor(policy, self.cache, self.lifecycle)
        self._block_tokens = kv.block_tokens
        self.step = 0
        """Number of the next step."""
        self._last: InFlightStep | None = None
        self._blocked_start: tuple[Sequence | None, int] = None, 0

    def take_events(self) -> list[Event]:
        """Events since the last call, in order."""
        events = self._events.copy()
        self._events.clear()
        return events

    @property
    def in_flight(self) -> int:
        """Steps scheduled and not committed."""
        return len(self.steps_in_flight)

    @property
    def idle(self) -> bool:
        """Nothing is open and nothing in flight."""
        return not self.lifecycle.open and not self.steps_in_flight

    def apply(self, commands: Items[Command], now: float) -> None:
        """Commands in the order in which they came. Rejections and closes are told by events."""
        for command in commands:
            match command:
                case Admit(request):
                    self.lifecycle.admit(request, now)
                case Close(request_id, choice, keep, reason):
                    self.lifecycle.close(request_id, choice, keep, reason, now)
                case Abort(request_id):
                    self.lifecycle.abort(request_id, now)

    def schedule(self, now: float) -> Plan | None:
        """The next step, or None when nothing may run now. Never an empty plan."""
        if len(self.steps_in_flight) >= self.limits.depth or self._must_wait():
            return None
        builder = PlanBuilder(self.step, self.limits.token_budget)
        sequences, starts, tokens = builder.sequences, builder.starts, builder.tokens
        step, budget = builder.step, builder.budget
        for sequence in self._candidates(builder):
            position, target = sequence.scheduled, sequence.target
            if target - position == 1 and target <= sequence.fast_path_limit:
                # `PlanBuilder.add` for one token and a sample, written out because every running sequence passes here.
                sequences.append(sequence)
                starts.append(position)
                known = sequence.known
                tokens.append(known[position] if position < len(known) else LAST)
                sequence.scheduled = target
                sequence.target = target + 1
                sequence.in_flight += 1
                sequence.last_step = step
            else:
                self._schedule_one(sequence, builder, now)
            if len(tokens) >= budget:
                break
        if sequences and self.drafter is not None:
            most = min(builder.budget_left, self.limits.max_samples - builder.sample_count, self._prefill_left(builder))
            _add_drafts(self.drafter, builder, most, self.preemptor, self.cache)
        return self._finish_plan(builder, now) if sequences else None

    def _must_wait(self) -> bool:
        """Returns True if no step may be planned before the steps in flight are committed: the newest one is a barrier, or the drafter
        needs their ids. A waiting sequence that could start is not delayed for drafts."""
        if self.drafter is None or not self.steps_in_flight:
            return False
        if self.steps_in_flight[-1].barrier:
            return True
        lifecycle = self.lifecycle
        return not (lifecycle.waiting and lifecycle.rows) and self.drafter.should_wait(lifecycle.running)

    def _candidates(self, builder: PlanBuilder) -> Iterable[Sequence]:
        """Running and waiting sequences in the policy's order; only running ones when no waiting one can start."""
        lifecycle = self.lifecycle
        builder.starts_closed = not lifecycle.waiting or not self.policy.joins(len(lifecycle.running))
        if not builder.starts_closed and not lifecycle.rows:
            builder.starts_closed = not lifecycle.running or self.policy.same_class(lifecycle.waiting[0], lifecycle.running[-1])
        if builder.starts_closed:
            return lifecycle.running
        if not lifecycle.running or lifecycle.running[-1].rank < lifecycle.waiting[0].rank:
            return chain(lifecycle.running, self._queue(builder))
        return merge(tuple(lifecycle.running), self._queue(builder), key=by_rank)

    def _queue(self, builder: PlanBuilder) -> Iterator[Sequence]:
        """Waiting sequences in the policy's order, as long as any may start."""
        for sequence in tuple(self.lifecycle.waiting):
            if builder.starts_closed:
                return
            yield sequence

    def _finish_plan(self, builder: PlanBuilder, now: float) -> Plan:
        last, pool, away = self._last, self.cache.pool, len(self.cache.host.cached)
        same = last is not None and not builder.new_sequences and last.sequences == builder.sequences
        plan = builder.build(self.lifecycle.freed_rows, self.cache.copies, last.plan if last is not None and same else None)
        self.lifecycle.freed_rows.clear()
        self.cache.copies.clear()
        numbers = last.numbers if last is not None and same else tuple([sequence.number for sequence in builder.sequences])
        self._last = InFlightStep(plan, builder.sequences, numbers, bool(builder.drafts))
        self.steps_in_flight.append(self._last)
        self.step += 1
        self._emit(Scheduled(plan.step, now, numbers, plan.count, len(self.lifecycle.waiting), len(pool.free), len(pool.cached), away))
        return plan

    def _schedule_one(self, sequence: Sequence, builder: PlanBuilder, now: float) -> None:
        """Anything but one more token on blocks that are there."""
        if sequence.state is State.WAITING:
            if not builder.starts_closed:
                self._start(sequence, builder, now)
            return
        if sequence.state is not State.RUNNING or sequence.target >= sequence.limit:
            return
        if len(sequence.known) - sequence.scheduled > self._block_tokens and self._is_at_block_boundary(sequence):
            blocker = self._extend_from_prefix_cache(sequence)
            if blocker is not None:
                self.lifecycle.add_wait(sequence, Wait.PREFIX, blocker)
                return
        if sequence.waiting_for:
            self.lifecycle.clear_wait(sequence, Wait.PREFIX)
        wanted = self._tokens_to_schedule(sequence, builder)
        count = self.preemptor.ensure_tokens(sequence, wanted, builder) if wanted else 0
        if count:
            self.cache.allocate(sequence, sequence.scheduled + count)
            builder.add(sequence, count)

    def _tokens_to_schedule(self, sequence: Sequence, builder: PlanBuilder) -> int:
        """Tokens that bring it to its target, as many as the step has left; 0 where its prompt is to be scored and the step may not, or
        where others have had what rows that catch up may have."""
        wanted = min(builder.budget_left, sequence.target - sequence.scheduled)
        if sequence.target - sequence.scheduled > 1:
            wanted = min(wanted, self._prefill_left(builder))
        if sequence.scored < sequence.to_score:
            wanted = min(wanted, sequence.scored - sequence.scheduled + builder.scores_left)
        return wanted

    def _prefill_left(self, builder: PlanBuilder) -> int:
        """Tokens that rows which catch up may still have in the step, from how many rows keep up in it."""
        if builder.prefill_left is None:
            keep_up = [s.target - s.scheduled == 1 and (s.target < s.limit or s.last_step == builder.step) for s in self.lifecycle.running]
            builder.prefill_left = self.limits.prefill_budget(sum(keep_up))
        return builder.prefill_left

    def _is_at_block_boundary(self, sequence: Sequence) -> bool:
        """Nothing in flight and its blocks full: a prefix can go on here. While some are pinned, blocks are taken through `room` only."""
        return not sequence.in_flight and sequence.scheduled == sequence.capacity and not self.lifecycle.pinned

    def _extend_from_prefix_cache(self, sequence: Sequence) -> Sequence | None:
        """A running sequence takes what others have published; returns who is computing its next block, if that is worth waiting for."""
        size, before = self._block_tokens, sequence.capacity
        blocks = self.cache.find_longest_hit(sequence)
        if blocks * size > before:
            if not self.cache.can_attach(sequence, blocks):
                return None
            self.cache.attach_prefix(sequence, blocks)
            fetched = self.cache.restore_from_host(sequence)
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
        lacks_budget = not self._prefill_left(builder) or (sequence.scored < sequence.to_score and not builder.scores_left)
        if lacks_budget or self._is_still_blocked(sequence) or not self.preemptor.ensure_row(sequence, builder):
            builder.starts_closed = True
            return
        hit = self.cache.find_longest_hit(sequence)
        blocker = self._blocker(sequence, hit)
        if blocker is not None:
            sequence.blocked_at = hit
            self.lifecycle.add_wait(sequence, Wait.PREFIX, blocker)
            return
        self.cache.attach_prefix(sequence, hit)
        if not self.preemptor.can_start(sequence, builder):
            self.cache.free(sequence)
            self._blocked_start = sequence, self.cache.pool.available
            builder.starts_closed = True
            return
        fetched = self.cache.restore_from_host(sequence)
        count = self.preemptor.ensure_tokens(sequence, self._tokens_to_schedule(sequence, builder), builder)
        self.lifecycle.clear_wait(sequence, Wait.PREFIX)
        self._emit_prefix_events(sequence, hit, fetched)
        self.lifecycle.start(sequence, now)
        self.cache.index.mark_computing(sequence, hit, (len(sequence.known) - 1) // self._block_tokens)
        self.cache.allocate(sequence, sequence.scheduled + count)
        builder.add(sequence, count, is_new=True)

    def _is_still_blocked(self, sequence: Sequence) -> bool:
        """It was refused before and no block has come since: not worth looking up its prefix again."""
        refused, available = self._blocked_start
        return refused is sequence and self.cache.pool.available <= available and self.preemptor.find_victim(sequence) is None

    def _emit_prefix_events(self, sequence: Sequence, hit: int, fetched: int) -> None:
        tokens, name = hit * self._block_tokens, sequence.request.request_id
        if sequence.cached_tokens < 0:
            sequence.cached_tokens = tokens
        if tokens:
            self._emit(PrefixHit(name, sequence.choice, tokens, fetched))
        if self.cache.index.is_shareable(sequence) and hit < sequence.reusable // self._block_tokens:
            self._emit(PrefixMiss(name, sequence.choice, hit))

    def commit(self, plan: Plan, result: Result, now: float) -> list[Output]:
        """The oldest step in flight is done. Returns the new ids, and the ends that they brought."""
        step = self.steps_in_flight[0]
        if step.plan.step != plan.step or result.step != plan.step:
            raise ValueError(f"step {step.plan.step} is the oldest in step, step {plan.step} was committed with result {result.step}")
        self.steps_in_flight.popleft()
        lengths = bytearray(map(len, result.sampled))
        outputs = commit(step.sequences, step.plan, result, lengths, self.cache, self.lifecycle, now)
        self._emit(_computed(step, lengths, now))
        if self.drafter is not None:
            self.drafter.on_commit(step.sequences, step.plan, result)
        self._emit(StepTimed(plan.step, result.timings))
        return outputs


def _add_drafts(drafter: Drafter, builder: PlanBuilder, most: int, preemptor: Preemptor, cache: KVBlocks) -> None:
    """Lays `most` drafts on, in the policy's order, on rows that compute one known token and have nothing else in flight."""
    fresh = set(builder.new_sequences)
    indices = [
        index
        for index, sequence in enumerate(builder.sequences)
        if sequence.in_flight == 1 and index not in builder.chunks and sequence not in fresh and sequence.target < sequence.limit
    ]
    if most < 1 or not indices:
        return
    rows = [(sequence := builder.sequences[index], sequence.limit - sequence.target) for index in indices]
    for index, (sequence, allowed), ids in zip(indices, rows, drafter.propose(rows, len(builder.tokens), most), strict=True):
        count = preemptor.allocatable_drafts(sequence, min(len(ids), allowed, most))
        if count > 0:
            most -= count
            cache.allocate(sequence, sequence.scheduled + count)
            builder.add_drafts(index, ids[:count])


def _computed(step: InFlightStep, lengths: bytearray, now: float) -> Computed:
    """The event of a committed step whose rows sampled `lengths` ids each."""
    drafted = accepted = 0
    if step.barrier:
        drafts = [(samples - 1, length - 1) for samples, length in zip(step.plan.sample, lengths, strict=True) if samples > 1]
        drafted, accepted = sum([most for most, _ in drafts]), sum([max(0, right) for _, right in drafts])
    return Computed(step.plan.step, now, step.numbers, array("i", list(lengths)), drafted, accepted)
