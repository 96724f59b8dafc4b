"""The life cycle of sequences: waiting, running, preempted, ended, closed.

One function per transition, idempotent where a client can repeat it. The scheduler decides which sequence runs.
"""

from bisect import insort
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from itertools import takewhile
from operator import attrgetter

from ridgeline.core.adapters import AdapterSlots
from ridgeline.core.admission import rejection_reason, whole_text_reason
from ridgeline.core.brought import Brought
from ridgeline.core.commands import BlocksFetched, Delivered
from ridgeline.core.events import Admitted as AdmittedEvent
from ridgeline.core.events import Closed, EndedProvisionally, Event, Finish, Preempted, Ready, Rejected, Started, Usage, Wait, Waiting
from ridgeline.core.fairness import FairShares
from ridgeline.core.kv_blocks import KVBlocks
from ridgeline.core.pace import Pace
from ridgeline.core.params import Adapter, Admitted, Limits
from ridgeline.core.policy import Policy
from ridgeline.core.reservation import OutputLengths
from ridgeline.core.sequence import Sequence, State
from ridgeline.core.slack import Slack, late_by

by_rank = attrgetter("rank")
RETRY_SECONDS = (1.0, 60.0)
"""Bounds of Retry-After for a rejected request: the time until a place in the queue should be free."""


class Lifecycle:
    """Open sequences in the policy's order, and the free rows.

    waiting, running  sorted by rank; an ended sequence is in neither
    pinned            running sequences that were preempted as often as is allowed
    open              request id → choice → its sequence, until it is closed
    unstarted         ids of requests of which no choice has run yet: the queue that `max_waiting` bounds
    itl_rows          running sequences with an `itl_ms` of their own
    adapters          which adapters lie in the executor's slots
    starts            of sequences so far
    brought           what tiers have brought of prompts, until they start
    lengths           of outputs of closed sequences, from which blocks are reserved
    rows, freed_rows  free rows; those of them that the executor has not been told of
    """

    def __init__(self, limits: Limits, policy: Policy, cache: KVBlocks, emit: Callable[[Event], None], pace: Pace | None = None) -> None:
        self.limits = limits
        self.policy = policy
        self.cache = cache
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.pinned: list[Sequence] = []
        self.open: dict[str, dict[int, Sequence]] = {}
        self.unstarted: set[str] = set()
        self.rows = list(range(limits.rows - 1, -1, -1))
        self.freed_rows: list[int] = []
        self.itl_rows = 0
        self.starts = 0
        self.lengths = OutputLengths()
        self.brought = Brought(cache.unused)
        self.adapters = AdapterSlots(limits.adapter_slots)
        self._numbers = 0
        self._starts: deque[float] = deque(maxlen=32)
        self._shares = FairShares(limits.rows, cache.shape.blocks * cache.shape.block_tokens // len(cache.shape.groups))
        self._slack = Slack(pace) if policy.has_targets else None
        self._emit = emit

    def admit(self, request: Admitted, now: float, delivered: Items[Delivered] = (), fetching: bool = False) -> None:
        """Queues every choice of the request, or those of a continuation; or rejects the request. `fetching`: as in `Admit`."""
        rejection = self._rejection(request, is_new=not delivered)
        if rejection is not None:
            self._emit(Rejected(request.request_id, *rejection))
            return
        arrived = now if request.arrived is None else min(now, request.arrived)
        begun = delivered or [Delivered(choice) for choice in range(request.choices)]
        self._emit(AdmittedEvent(
            request.request_id, now, len(request.prompt), len(begun), arrived, request.tenant, request.max_tokens, request.ttft_ms,
            request.itl_ms,
        ))  # fmt: skip
        self.open[request.request_id] = {}
        self.unstarted.add(request.request_id)
        for part in begun:
            sequence = Sequence(request, part.choice, self._numbers, len(self.cache.shape.groups))
            sequence.continue_behind(part)
            self._numbers += 1
            sequence.tag, sequence.charge = self._shares.tag(request, part.choice)
            if self._slack is not None:
                sequence.latest_start, sequence.can_be_late = self._slack.latest_start(request, self._shares.lead(sequence.tag))
            sequence.rank = self.policy.rank(sequence)
            self.open[request.request_id][part.choice] = sequence
            insort(self.waiting, sequence, key=by_rank)
            if request.sampling.grammar is not None:
                self.add_wait(sequence, Wait.GRAMMAR, None)
            if request.adapter is not None:
                self.adapters.name(request.adapter, 1)
                self.add_wait(sequence, Wait.ADAPTER, None)
            if fetching:
                self.add_wait(sequence, Wait.KV_FETCH, None)
        if self._slack is not None:
            self._demote_late(self._slack.now)

    def _demote_late(self, now: int) -> None:
        """Ranks later, once, each sequence that has not started and has missed its latest start."""
        overdue = takewhile(lambda sequence: sequence.latest_start < now, self.waiting)
        for sequence in [each for each in overdue if each.can_be_late and each.request.request_id in self.unstarted]:
            self.waiting.remove(sequence)
            sequence.can_be_late = False
            sequence.latest_start += late_by(sequence.request)
            sequence.rank = self.policy.rank(sequence)
            insort(self.waiting, sequence, key=by_rank)

    def on_ready(self, reason: Wait, digest: bytes, error: str | None, now: float) -> None:
        """Ends the wait of sequences for a grammar, or for an adapter; if it cannot be used, the sequences too."""
        for sequence in [each for each in self.waiting if reason in each.waiting_for]:
            request = sequence.request
            awaited = request.sampling.grammar if reason is Wait.GRAMMAR else request.adapter
            if awaited is None or awaited.digest != digest:
                continue
            if error is None:
                self.clear_wait(sequence, reason)
            else:
                sequence.message = error
                self._stop(sequence)
                self._close(sequence, Finish.ERROR, 0, now)

    def on_fetched(self, fetched: BlocksFetched) -> None:
        """Ends the wait of a request for tiers. What they have brought is used when its first choice starts."""
        choices = self.open.get(fetched.request_id, {})
        self.brought.put(fetched)
        if not any(Wait.KV_FETCH in sequence.waiting_for for sequence in choices.values()):
            self.brought.drop(fetched.request_id)
        for sequence in choices.values():
            self.clear_wait(sequence, Wait.KV_FETCH)

    def _rejection(self, request: Admitted, is_new: bool) -> tuple[str, float | None] | None:
        if request.request_id in self.open:
            return f"request id {request.request_id} is in use", None
        if is_new and len(self.unstarted) >= self.limits.max_waiting:
            message = f"{len(self.unstarted)} requests are waiting, the limit is {self.limits.max_waiting}; try again later"
            return message, self._retry_after()
        if request.adapter is not None and not self.limits.adapter_slots:
            return "this engine takes no adapters; start it with --enable-lora", None
        reason = rejection_reason(self.cache.shape, self.limits.max_model_len, len(request.prompt), request.max_tokens)
        if reason is None and request.pooling is not None and request.pooling.whole:
            reason = whole_text_reason(self.limits.token_budget, len(request.prompt))
        return (reason, None) if reason else None

    def _retry_after(self) -> float:
        """Returns the seconds until a place in the queue should be free, at the rate of the last starts."""
        starts, (low, high) = self._starts, RETRY_SECONDS
        return min(high, max(low, (starts[-1] - starts[0]) / (len(starts) - 1))) if len(starts) > 1 else low

    def is_pinned(self, sequence: Sequence) -> bool:
        """True if the sequence was preempted as often as is allowed: once it runs again, it runs to its end."""
        return sequence.preemptions >= self.limits.max_preemptions

    def add_wait(self, sequence: Sequence, reason: Wait, blocker: Sequence | None) -> None:
        """Notes a reason for which the sequence cannot be scheduled."""
        if reason not in sequence.waiting_for:
            sequence.waiting_for.add(reason)
            self._emit(Waiting(sequence.request.request_id, sequence.choice, reason, blocker.request.request_id if blocker else None))

    def clear_wait(self, sequence: Sequence, reason: Wait) -> None:
        """Removes the reason."""
        if reason in sequence.waiting_for:
            sequence.waiting_for.discard(reason)
            self._emit(Ready(sequence.request.request_id, sequence.choice, reason))

    def has_slot(self, sequence: Sequence, adapter: Adapter) -> bool:
        """True if there is a slot for the waiting sequence's adapter; notes that it waits for one where there is none. Others start in its
        place then, as many as there are rows, so that slots become free at last."""
        if self.adapters.has_room(adapter):
            self.clear_wait(sequence, Wait.SLOT)
            return True
        if Wait.SLOT not in sequence.waiting_for:
            self.add_wait(sequence, Wait.SLOT, None)
            sequence.passed_from = self.starts
        return False

    def start(self, sequence: Sequence, now: float) -> None:
        """Gives the sequence a row; the caller has checked that one is free."""
        for other in self.waiting:
            if other is sequence:
                break
            if not other.waiting_for:
                other.overtaken += 1
        self.waiting.remove(sequence)
        insort(self.running, sequence, key=by_rank)
        if self.is_pinned(sequence):
            self.pinned.append(sequence)
        if sequence.request.request_id in self.unstarted:
            self.unstarted.remove(sequence.request.request_id)
            self._starts.append(now)
        self.itl_rows += sequence.request.itl_ms > 0
        self._shares.on_start(sequence.tag if self._slack is None else min([each.tag for each in (sequence, *self.waiting)]))
        if sequence.request.adapter is not None:
            sequence.slot = self.adapters.take(sequence.request.adapter)
        self.starts += 1
        sequence.row = self.rows.pop()
        sequence.state = State.RUNNING
        sequence.overtaken = 0
        self._emit(Started(sequence.request.request_id, sequence.choice, sequence.number, now, resumed=sequence.preemptions > 0))

    def preempt(self, victim: Sequence, by: Sequence, why: str) -> None:
        """Puts a running sequence back to the queue with nothing computed. Ids that steps in flight sample for it still count."""
        self.running.remove(victim)
        self.itl_rows -= victim.request.itl_ms > 0
        self.cache.free(victim)
        victim.state = State.WAITING
        victim.preemptions += 1
        victim.waiting_for.discard(Wait.PREFIX)
        insort(self.waiting, victim, key=by_rank)
        self._emit(Preempted(victim.request.request_id, victim.choice, by.request.request_id, why))
        if victim.in_flight:
            self.add_wait(victim, Wait.DRAIN, None)
        else:
            self._free_row(victim)

    def on_drained(self, sequence: Sequence) -> None:
        """Frees the row of a sequence that does not run any more, once its last step in flight is committed."""
        self._free_row(sequence)
        self.clear_wait(sequence, Wait.DRAIN)

    def _free_row(self, sequence: Sequence) -> None:
        if sequence.row >= 0:
            self.rows.append(sequence.row)
            self.freed_rows.append(sequence.row)
            sequence.row = -1
            if sequence.request.adapter is not None:
                self.adapters.release(sequence.request.adapter)
                sequence.slot = -1

    def end(self, sequence: Sequence, reason: Finish, now: float) -> None:
        """Ends a sequence. In the two-phase close the end is provisional until the front end closes it, except after an error."""
        self._stop(sequence)
        if sequence.request.two_phase and reason is not Finish.ERROR:
            self._emit(EndedProvisionally(sequence.request.request_id, sequence.choice, reason))
        else:
            self._close(sequence, reason, sequence.outputs, now)

    def close(self, request_id: str, choice: int, keep: int, reason: Finish, now: float) -> None:
        """Closes an open choice, of which the first `keep` outputs count. An unknown or closed one is ignored."""
        sequence = self.open.get(request_id, {}).get(choice)
        if sequence is not None:
            self._stop(sequence)
            self._close(sequence, reason, max(0, min(keep, sequence.outputs)), now)

    def abort(self, request_id: str, now: float) -> None:
        """Closes every open choice of the request, whatever its state."""
        for sequence in list(self.open.get(request_id, {}).values()):
            self._stop(sequence)
            self._close(sequence, Finish.ABORT, sequence.outputs, now)

    def _stop(self, sequence: Sequence) -> None:
        """Takes the sequence out of waiting or running. Its blocks and row are freed, or held until its steps in flight are committed."""
        if sequence.state is State.RUNNING:
            self.running.remove(sequence)
            self.itl_rows -= sequence.request.itl_ms > 0
            if sequence in self.pinned:
                self.pinned.remove(sequence)
        elif sequence.state is State.WAITING:
            self.waiting.remove(sequence)
        else:
            return
        self.cache.free(sequence)
        sequence.state = State.ENDED
        sequence.target = len(sequence.known)
        sequence.waiting_for.clear()
        if not sequence.in_flight:
            self._free_row(sequence)

    def _close(self, sequence: Sequence, reason: Finish, keep: int, now: float) -> None:
        request = sequence.request
        sequence.state = State.CLOSED
        choices = self.open[request.request_id]
        del choices[sequence.choice]
        if not choices:
            del self.open[request.request_id]
            self.brought.drop(request.request_id)
            self.unstarted.discard(request.request_id)
        if request.adapter is not None:
            self.adapters.name(request.adapter, -1)
        usage = Usage(sequence.prompt_tokens, keep, max(0, sequence.cached_tokens))
        self._shares.settle(sequence, usage)
        if sequence.cached_tokens >= 0 and sequence.pooling is None:
            self.lengths.add(sequence.outputs)
        if not self.open:
            self._shares.on_idle()
        self._emit(Closed(request.request_id, sequence.choice, reason, usage, now, sequence.message))
