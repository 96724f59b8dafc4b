"""The scheduler: continuous batching with chunked prefill and no separate phases. A step spends its token budget to move the scheduled
position of each sequence towards its target, in the policy's order.

Owns the steps in flight and the order of decisions. Deterministic: time is passed in, and no random number is drawn.
"""

from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Items
from heapq import merge
from itertools import chain, compress
from typing import Final

from ridgeline.core.commands import (
    Abort,
    AdapterReady,
    Admit,
    BlocksFetched,
    Close,
    Command,
    GrammarReady,
    Output,
    PinAdapter,
    SetKnob,
    TellBlocks,
)
from ridgeline.core.commit import InFlightStep, commit
from ridgeline.core.drafts.drafter import Drafter
from ridgeline.core.events import Computed, Event, PrefixHit, PrefixMiss, Scheduled, StepTimed, Wait
from ridgeline.core.kv_blocks import KVBlocks
from ridgeline.core.laying import lay_drafts, tell_outlook
from ridgeline.core.lifecycle import Lifecycle, by_rank
from ridgeline.core.pace import Pace
from ridgeline.core.params import Limits
from ridgeline.core.plan import LAST, KVShape, Plan, Result
from ridgeline.core.plan_builder import PlanBuilder
from ridgeline.core.policy import Policy
from ridgeline.core.preemption import Preemptor
from ridgeline.core.sequence import Sequence, State
from ridgeline.core.step_time import UNBOUNDED

OUTLOOK_STEPS: Final = 64
"""Steps between two words about speculation."""
_LOOKED_AT = frozenset({Wait.PREFIX, Wait.SLOT})
"""Reasons to wait that nobody clears: a sequence is looked at again in every step."""


class Scheduler:
    """Decides what each step computes. `apply`, `schedule` and `commit` are called by one loop, never concurrently.

    pace  the prefill budget follows it; None: that of `limits` stays
    """

    def __init__(self, limits: Limits, kv: KVShape, policy: Policy, drafter: Drafter | None = None, pace: Pace | None = None) -> None:
        self.limits = limits if pace is None else pace.limited(limits)
        self.policy = policy
        self.drafter = self._own_drafter = drafter
        self._draft_depth = UNBOUNDED
        """Drafts of a row, where that is fewer than the drafter's own bound."""
        self.pace = pace
        self.steps_in_flight: deque[InFlightStep] = deque()
        self._events: list[Event] = []
        self._emit = self._events.append
        self.cache = KVBlocks(kv, limits.prefix_caching, self._emit)
        self.lifecycle = Lifecycle(limits, policy, self.cache, self._emit, pace)
        self.preemptor = Preemptor(policy, self.cache, self.lifecycle)
        self._block_tokens = kv.block_tokens
        self._max_samples = limits.max_samples
        self.step = 0
        """Number of the next step."""
        self._last: InFlightStep | None = None
        self._blocked_start: tuple[Sequence | None, int, int] = None, 0, 0
        """The sequence that could not start, the fewest available blocks since, and how many others ran."""

    def take_events(self) -> list[Event]:
        """Returns the events since the last call, in order."""
        events = self._events.copy()
        self._events.clear()
        return events

    @property
    def idle(self) -> bool:
        """True if no request is open and no step in flight."""
        return not self.lifecycle.open and not self.steps_in_flight

    def apply(self, commands: Items[Command], now: float) -> None:
        """Applies commands in the order in which they came. Rejections and closes are reported as events."""
        for command in commands:
            match command:
                case Admit():
                    self.lifecycle.admit(command.request, now, command.delivered, command.fetching)
                case Close(request_id, choice, keep, reason):
                    self.lifecycle.close(request_id, choice, keep, reason, now)
                case Abort(request_id):
                    self.lifecycle.abort(request_id, now)
                case GrammarReady(digest, error):
                    self.lifecycle.on_ready(Wait.GRAMMAR, digest, error, now)
                case AdapterReady(digest, error):
                    self.lifecycle.on_ready(Wait.ADAPTER, digest, error, now)
                case BlocksFetched():
                    self.lifecycle.on_fetched(command)
                case PinAdapter(digest, is_pinned):
                    self.lifecycle.adapters.pin(digest, is_pinned)
                case TellBlocks():
                    self.cache.news.begin()
                case SetKnob("step_ms", value) if self.pace is not None:
                    self.pace.target = value / 1e3
                    self.limits = self.pace.limited(self.limits)
                case SetKnob("num_speculative_tokens", value):
                    self._draft_depth = value
                    self.drafter = self._own_drafter if value else None

    def schedule(self, now: float) -> Plan | None:
        """Returns the plan of the next step, or None if nothing can run now. A plan is never empty."""
        if len(self.steps_in_flight) >= self.limits.depth or self._must_wait():
            return None
        builder = PlanBuilder(self.step, self.limits.token_budget)
        sequences, starts, tokens = builder.sequences, builder.starts, builder.tokens
        step, budget = builder.step, builder.budget
        for sequence in self._candidates(builder):
            position, target = sequence.scheduled, sequence.target
            if target - position == 1 and target <= sequence.fast_path_limit:
                # `PlanBuilder.add` for one token that samples, inlined: every decoding row takes this path in every step.
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
        if not sequences:
            return None
        if self._own_drafter is not None:
            builder.open = bytes([sequence.drafted for sequence in sequences])
        if self.drafter is not None:
            lay_drafts(self.drafter, builder, self.preemptor, self._draft_depth, self._max_samples, self._prefill_left(builder))
        return self._finish_plan(builder, now)

    def _must_wait(self) -> bool:
        """Returns True if no step may be planned before the steps in flight are committed: the newest one is a barrier, or the drafter
        needs their ids. A waiting sequence that could start is not delayed for drafts."""
        if not self.steps_in_flight:
            return False
        if self.steps_in_flight[-1].is_barrier:
            return True
        if self.drafter is None:
            return False
        lifecycle = self.lifecycle
        return not (lifecycle.waiting and lifecycle.rows) and self.drafter.should_wait(lifecycle.running)

    def _candidates(self, builder: PlanBuilder) -> Iterable[Sequence]:
        """Returns running and waiting sequences in the policy's order; only running ones if no waiting one can start."""
        lifecycle = self.lifecycle
        if not lifecycle.waiting:
            builder.starts_closed = True
        elif not self.policy.joins(len(lifecycle.running)):
            builder.close_starts("order")
        elif not lifecycle.rows and (not lifecycle.running or self.policy.same_class(lifecycle.waiting[0], lifecycle.running[-1])):
            builder.close_starts("rows")
        if builder.starts_closed:
            return lifecycle.running
        if not lifecycle.running or lifecycle.running[-1].rank < lifecycle.waiting[0].rank:
            return chain(lifecycle.running, self._queue(builder))
        return merge(tuple(lifecycle.running), self._queue(builder), key=by_rank)

    def _queue(self, builder: PlanBuilder) -> Iterator[Sequence]:
        """Yields waiting sequences in the policy's order, until starts are closed."""
        for sequence in tuple(self.lifecycle.waiting):
            if builder.starts_closed:
                return
            yield sequence

    def _finish_plan(self, builder: PlanBuilder, now: float) -> Plan:
        last, pool, on_host = self._last, self.cache.pool, len(self.cache.host.cached)
        same = last is not None and not builder.new_sequences and last.sequences == builder.sequences
        fills = self.lifecycle.adapters.fills
        plan = builder.build(self.lifecycle.freed_rows, self.cache.copies, last.plan if last is not None and same else None, fills)
        fills.clear()
        self.lifecycle.freed_rows.clear()
        self.cache.copies.clear()
        numbers = last.numbers if last is not None and same else tuple([sequence.number for sequence in builder.sequences])
        self._last = InFlightStep(plan, builder.sequences, numbers, builder.drafted, builder.ahead)
        self.steps_in_flight.append(self._last)
        self.step += 1
        lack = builder.lack or ("budget" if self.lifecycle.waiting and not builder.budget_left else "")
        self._emit(Scheduled(
            plan.step, now, numbers, plan.count, len(self.lifecycle.waiting), len(pool.free), len(pool.cached), on_host, lack,
            sum(builder.starts),
        ))  # fmt: skip
        return plan

    def _schedule_one(self, sequence: Sequence, builder: PlanBuilder, now: float) -> None:
        """Schedules anything but the decode of one token within the blocks that the sequence has."""
        if sequence.state is State.WAITING:
            if not builder.starts_closed:
                self._start(sequence, builder, now)
            return
        if sequence.state is not State.RUNNING or sequence.target + sequence.drafted >= sequence.limit:
            return
        if len(sequence.known) - sequence.scheduled > self._block_tokens and self._is_at_block_boundary(sequence):
            blocker = self._extend_from_prefix_cache(sequence)
            if blocker is not None:
                self.lifecycle.add_wait(sequence, Wait.PREFIX, blocker)
                return
        if sequence.waiting_for:
            self.lifecycle.clear_wait(sequence, Wait.PREFIX)
        count = self._tokens_to_schedule(sequence, builder)
        if count:
            count = self.preemptor.ensure_tokens(sequence, count, builder)
        if count:
            self.cache.allocate(sequence, sequence.scheduled + sequence.drafted + count)
            builder.add(sequence, count)

    def _tokens_to_schedule(self, sequence: Sequence, builder: PlanBuilder) -> int:
        """Returns the tokens up to the sequence's target, as many as the step has left; 0 if its prompt is to be scored and the step can
        score no more, or if the prefill budget is spent."""
        missing = sequence.target - sequence.scheduled
        count = min(builder.budget_left, missing)
        if missing > 1:
            count = min(count, self._prefill_left(builder))
        if sequence.scored < sequence.to_score:
            count = min(count, sequence.scored - sequence.scheduled + builder.scores_left)
        return count

    def _prefill_left(self, builder: PlanBuilder) -> int:
        """Returns the tokens that prefilling rows may still have in the step, which depends on the number of its decoding rows."""
        if builder.prefill_left is None:
            running, itl_tokens = self.lifecycle.running, None
            decode_rows = len(running)
            if builder.chunks or len(builder.sequences) < decode_rows or self.lifecycle.itl_rows:
                decodes = [s.target - s.scheduled == 1 and (s.target < s.limit or s.last_step == builder.step) for s in running]
                decode_rows = sum(decodes)
                if self.lifecycle.itl_rows and self.pace is not None:
                    itl_tokens = self.pace.tokens_within([s.request.itl_ms for s in compress(running, decodes)])
            builder.prefill_left = self.limits.prefill_budget(decode_rows, itl_tokens)
        return builder.prefill_left

    def _is_at_block_boundary(self, sequence: Sequence) -> bool:
        """True if cached blocks can be attached: nothing is in flight and all blocks are full. While any sequence is pinned, blocks are
        taken through the preemptor alone."""
        return not sequence.in_flight and sequence.scheduled == sequence.capacity and not self.lifecycle.pinned

    def _extend_from_prefix_cache(self, sequence: Sequence) -> Sequence | None:
        """Attaches blocks that others have published to a running sequence. Returns the sequence that computes its next block, if that is
        worth waiting for."""
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
        """Returns the sequence that computes this block, if one does and `sequence` need not compute it itself."""
        if (block + 1) * self._block_tokens > sequence.reusable:
            return None
        return self.cache.index.blocker(sequence, block)

    def _start(self, sequence: Sequence, builder: PlanBuilder, now: float) -> None:
        """Starts a waiting sequence if there are a row and blocks. The first one that fails closes the step to those behind it."""
        waits = sequence.waiting_for
        if not waits <= _LOOKED_AT or (Wait.PREFIX in waits and self._blocker(sequence, sequence.blocked_at) is not None):
            return
        if sequence.request.adapter is not None and not self.lifecycle.has_slot(sequence, sequence.request.adapter):
            is_near = self.preemptor.free_slot(sequence, builder)
            if is_near or self.lifecycle.starts - sequence.passed_from >= self.limits.rows:
                builder.close_starts("adapter slot")
            return
        lacks_budget = not self._prefill_left(builder) or (sequence.scored < sequence.to_score and not builder.scores_left)
        lacks_blocks = False
        if sequence.pooling is not None and sequence.pooling.whole:
            lacks_budget = sequence.target > min(builder.budget_left, self._prefill_left(builder))
            lacks_blocks = not self.preemptor.has_blocks_for_all(sequence)
        if lacks_budget or lacks_blocks or self._is_still_blocked(sequence):
            builder.close_starts("budget" if lacks_budget else "blocks")
            return
        if not self.preemptor.ensure_row(sequence, builder):
            builder.close_starts("rows")
            return
        hit = self.cache.find_longest_hit(sequence)
        blocker = self._blocker(sequence, hit)
        if blocker is not None:
            sequence.blocked_at = hit
            self.lifecycle.add_wait(sequence, Wait.PREFIX, blocker)
            return
        self.cache.attach_prefix(sequence, hit)
        fetched = self.lifecycle.brought.pop(sequence.request.request_id)
        hit, from_tier = (hit, 0) if fetched is None else self.cache.attach_brought(sequence, hit, fetched.blocks)
        if not self.preemptor.can_start(sequence, builder):
            self.cache.free(sequence)
            self._blocked_start = sequence, self.cache.pool.available, len(self.lifecycle.running)
            builder.close_starts("blocks")
            return
        restored = self.cache.restore_from_host(sequence)
        count = self.preemptor.ensure_tokens(sequence, self._tokens_to_schedule(sequence, builder), builder)
        self.lifecycle.clear_wait(sequence, Wait.PREFIX)
        self._emit_prefix_events(sequence, hit, restored, from_tier, fetched.tier if from_tier and fetched else "")
        self.lifecycle.start(sequence, now)
        self.cache.index.mark_computing(sequence, hit, (len(sequence.known) - 1) // self._block_tokens)
        self.cache.allocate(sequence, sequence.scheduled + count)
        builder.add(sequence, count, is_new=True)

    def _is_still_blocked(self, sequence: Sequence) -> bool:
        """True if the sequence could not start before and no block has been freed since: its prefix is not looked up again."""
        blocked, available, running = self._blocked_start
        if blocked is not sequence or self.cache.pool.available > available or len(self.lifecycle.running) < running:
            return False
        if self.preemptor.find_victim(sequence) is not None:
            return False
        self._blocked_start = sequence, self.cache.pool.available, running
        return True

    def _emit_prefix_events(self, sequence: Sequence, hit: int, restored: int, from_tier: int, tier: str) -> None:
        tokens, name = hit * self._block_tokens, sequence.request.request_id
        if sequence.cached_tokens < 0:
            sequence.cached_tokens = tokens
        if tokens:
            self._emit(PrefixHit(name, sequence.choice, tokens, restored, from_tier, tier))
        if self.cache.index.is_shareable(sequence) and hit < sequence.reusable // self._block_tokens:
            self._emit(PrefixMiss(name, sequence.choice, hit))

    def commit(self, plan: Plan, result: Result, now: float) -> list[Output]:
        """Commits the oldest step in flight. Returns new ids, and the ends of sequences that they bring."""
        step = self.steps_in_flight[0]
        if step.plan.step != plan.step or result.step != plan.step:
            raise ValueError(f"step {step.plan.step} is the oldest in step, step {plan.step} was committed with result {result.step}")
        self.steps_in_flight.popleft()
        lengths = bytearray(map(len, result.sampled))
        outputs = commit(step, result, lengths, self.cache, self.lifecycle, now)
        self._emit(_computed(step, lengths, now))
        if self.drafter is not None:
            self.drafter.on_commit(step.sequences, step.plan, result)
            if not plan.step % OUTLOOK_STEPS and self.lifecycle.running:
                tell_outlook(self.drafter, self.lifecycle.running, plan.step, now, self._emit)
        self._emit(StepTimed(plan.step, result.timings))
        if self.pace is not None and result.timings.run > 0:
            self.limits = self.pace.on_commit(step, result.timings.run, now, self.limits, self._emit)
        return outputs


def _computed(step: InFlightStep, lengths: bytearray, now: float) -> Computed:
    """Makes the event of a committed step whose rows sampled `lengths` ids each."""
    accepted = sum(lengths) - len(lengths) + lengths.count(0) if step.drafted else 0  # of a row's ids all but the last are drafts
    return Computed(step.plan.step, now, step.numbers, array("i", list(lengths)), step.drafted, accepted)
