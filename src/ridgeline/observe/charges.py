"""Charges: each moment of a request to one cause, so that the causes sum to the time that passed. Arithmetic on the ledger, when asked.

Of a step's time, what steps take that only decode as many rows (`StepLog.floor`) is decoding; the rest is charged by tokens of prompts. A
request that waits is charged the whole step, to what the first waiting one lacks.
"""

from dataclasses import dataclass, field
from typing import Final

from ridgeline.core.plan import IntColumn
from ridgeline.observe.ledger import ChoiceRecord, FrontEnd, Ledger, Mark, RequestRecord
from ridgeline.observe.steps import MAX_DEPTH, Step, StepLog

CAUSES: Final = {
    "network": "its body was still arriving",
    "template": "the chat template was rendered",
    "tokenise": "the prompt became ids",
    "grammar": "its grammar was compiled",
    "host": "the server's own processes, between steps and around them",
    "turn": "a step was in flight when it came",
    "rows": "all rows were taken (--max-num-seqs)",
    "blocks": "too few KV blocks were free",
    "budget": "others' prompts had the step's token budget",
    "order": "the policy starts none beside those that run",
    "prefix": "another request was computing the same prefix",
    "drain": "steps in flight still used its row",
    "adapter": "its adapter was being loaded",
    "adapter slot": "others' adapters had all slots (--max-loras)",
    "kv fetch": "blocks of its prompt were being read from a tier",
    "prefill": "its own prompt was computed",
    "others_prefill": "others' prompts were computed in its steps",
    "others_decode": "others' tokens were decoded in the steps of its prompt",
    "decode": "its tokens were decoded, beside others'",
    "preempted": "it had lost its row to another",
    "recompute": "what a preemption had dropped was computed again",
    "restart": "its engine had ended, and the next one started",
    "detokenise": "tokens became text, and were written",
    "slow_reader": "its client did not read",
}
"""Cause → what happened, in the order of a request's way."""
OWN: Final = frozenset({"prefill", "decode"})
"""A request's own work, which it would have alone too."""
MAX_BLOCKERS: Final = 5
MAX_STEPS_IN_LOOP: Final = 256
"""Steps since a request's begin beyond which its charges are no work for the event loop; some 1 ms."""
LEAST_SHARE: Final = 0.1
"""Share of the time from which on a cause that is not the request's own work is named first."""


@dataclass(slots=True)
class Charges:
    """Seconds by cause. `blockers`: cause → seconds by request, the most first."""

    seconds: dict[str, float] = field(default_factory=dict)
    blockers: dict[str, list[tuple[str, float]]] = field(default_factory=dict)

    def add(self, cause: str, seconds: float) -> None:
        """Charges some more, if it is any."""
        if seconds > 0:
            self.seconds[cause] = self.seconds.get(cause, 0.0) + seconds

    @property
    def total(self) -> float:
        """Seconds of all causes."""
        return sum(self.seconds.values())

    @property
    def first(self) -> str | None:
        """The cause to look at first: the greatest that is not the request's own work, or that where there is little else."""
        if not self.seconds:
            return None
        others = {cause: seconds for cause, seconds in self.seconds.items() if cause not in OWN}
        found = max(others, key=others.__getitem__, default=None)
        if found is not None and others[found] >= LEAST_SHARE * self.total:
            return found
        return max(self.seconds, key=self.seconds.__getitem__)


@dataclass(slots=True)
class _State:
    """State of a choice in front of a step."""

    sequence: int = -1
    runs: bool = False
    preempted: Mark | None = None
    waits: dict[str, str | None] = field(default_factory=dict)
    """Waiting reason → the request that is the cause."""

    @property
    def is_held(self) -> bool:
        """True while it has no row for a reason of its own: it lost it, or waits for its grammar, its adapter, blocks of a tier."""
        return not self.runs and (self.preempted is not None or bool(self.waits))

    def apply(self, mark: Mark) -> None:
        if mark.kind == "started":
            self.sequence, self.runs, self.waits = mark.sequence, True, {}
        elif mark.kind == "preempted":
            self.runs, self.preempted, self.waits = False, mark, {}
        elif mark.kind == "wait":
            self.waits[mark.detail] = mark.other
        else:
            self.waits.pop(mark.detail, None)


class _Walk:
    """A walk over the steps of one choice. `named`: blockers are collected too."""

    def __init__(self, ledger: Ledger, choice: ChoiceRecord, first_step: int, first_at: float | None, named: bool) -> None:
        self.charges = Charges()
        self._log: StepLog = ledger.steps
        self._names = ledger.names
        self._choice = choice
        self._first_step = first_step
        self._first_at = first_at
        self._named = named
        self._blockers: dict[str, dict[str, float]] = {}

    def over(self, begin: float, stop: float) -> Charges:
        """Charges the time from `begin` to `stop`, both of the engine's clock."""
        log, state, marks, at, cursor = self._log, _State(), self._choice.marks, 0, begin
        end = log.end if self._choice.end_step is None else min(log.end, self._choice.end_step + MAX_DEPTH)
        for index in range(max(log.first, self._first_step - MAX_DEPTH), end):
            step = log[index]
            while at < len(marks) and marks[at].step <= index:
                if marks[at].kind in ("ready", "started") and state.is_held:
                    # No step tells of the time in which the engine was idle, or gone.
                    until = max(cursor, min(step.planned, stop))
                    self.charges.add(self._waiting_cause(state, None), until - cursor)
                    cursor = until
                state.apply(marks[at])
                at += 1
            until = min(step.ended, stop)
            if until > cursor:
                self._step(index, step, state, until - cursor)
                cursor = until
            if cursor >= stop:
                break
        for mark in marks[at:]:
            state.apply(mark)
        self.charges.add(self._waiting_cause(state, None) if not state.runs else "host", stop - cursor)
        self.charges.blockers = {cause: _greatest(found) for cause, found in self._blockers.items()}
        return self.charges

    def _step(self, index: int, step: Step, state: _State, span: float) -> None:
        if not state.runs:
            self._wait(index, step, state, span)
            return
        numbers, counts = self._log.rows(index)
        mine = counts[numbers.index(state.sequence)] if state.sequence in numbers else 0
        if not mine and numbers:
            cause = next(iter(state.waits), "budget" if step.prefill else "blocks")
            self.charges.add(cause, span)
            self._blame(cause, state.waits.get(cause), numbers, counts, state.sequence, span, cause == "budget")
            return
        run = min(step.run, span) if step.run > 0 else span  # an executor that is not timed
        self.charges.add("host", span - run)
        floor = self._log.floor(step.decode)
        tokens = step.prefill + step.decode
        if floor is None:
            floor = run * step.decode / tokens if tokens else run
        extra = max(0.0, run - floor) if step.prefill else 0.0
        is_prefill = self._first_at is None or step.ended <= self._first_at
        if is_prefill or (mine > 1 and step.prefill and state.preempted is not None):
            share = min(1.0, mine / step.prefill) if step.prefill else 1.0
            own = "recompute" if state.preempted is not None else "prefill"
            rest = run - extra
            if step.decode - (mine == 1) <= 0 or not step.prefill:  # alone, or a last single token of a prompt
                self.charges.add(own, rest)
            else:
                self.charges.add("others_decode", rest)
        else:
            share, own = 0.0, "decode"
            self.charges.add("decode", run - extra)
        self.charges.add(own, extra * share)
        self.charges.add("others_prefill", extra * (1 - share))
        if extra * (1 - share) > 0:
            self._blame("others_prefill", None, numbers, counts, state.sequence, extra * (1 - share), True)

    def _wait(self, index: int, step: Step, state: _State, span: float) -> None:
        cause = self._waiting_cause(state, step) if index >= self._first_step else "turn"
        self.charges.add(cause, span)
        if self._named:
            other = state.preempted.other if cause == "preempted" and state.preempted is not None else state.waits.get(cause)
            numbers, counts = self._log.rows(index)
            self._blame(cause, other, numbers, counts, state.sequence, span, cause == "budget")

    def _waiting_cause(self, state: _State, step: Step | None) -> str:
        """The cause for which a choice has no row."""
        if state.preempted is not None:
            return "restart" if state.preempted.detail == "restart" else "preempted"
        if state.waits:
            return next(iter(state.waits))
        return "turn" if step is None else step.lack or "turn"

    def _blame(
        self, cause: str, other: str | None, numbers: IntColumn, counts: IntColumn, mine: int, seconds: float, by_prompt: bool
    ) -> None:
        """Shares seconds out to the requests that are behind a cause: one that is known, else the rows of the step, by the tokens of their
        prompts or alike."""
        if not self._named:
            return
        found = self._blockers.setdefault(cause, {})
        if other is not None:
            found[other] = found.get(other, 0.0) + seconds
            return
        weights = [(number, (count if count > 1 else 0) if by_prompt else 1) for number, count in zip(numbers, counts, strict=True)]
        total = sum([weight for number, weight in weights if number != mine])
        for number, weight in weights:
            if weight and number != mine and (name := self._names.get(number)) is not None:
                found[name] = found.get(name, 0.0) + seconds * weight / total


def _greatest(found: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(found.items(), key=lambda each: -each[1])[:MAX_BLOCKERS]


def charge(ledger: Ledger, record: RequestRecord, number: int, *, to_first: bool = False, named: bool = True) -> Charges:
    """The charges of one choice, from its request's begin to the end of its answer or, `to_first`, to its first token. Of one that is open:
    to the last step."""
    choice, front, steps = record.choices.get(number, ChoiceRecord()), record.front, ledger.steps
    times = choice.times
    first_at = None if times is None else times.first_token_at
    stop = _stop(choice, steps, record.admitted)
    if to_first and first_at is not None:
        stop = first_at
    charges = _Walk(ledger, choice, record.first_step, first_at, named).over(record.admitted, stop)
    if front is None:
        charges.add("turn", record.admitted - record.arrived)
        return charges
    charges.add("network", front.received - front.began)
    known = front.render + front.encode + front.grammar
    for cause, seconds in (("template", front.render), ("tokenise", front.encode), ("grammar", front.grammar)):
        charges.add(cause, seconds)
    charges.add("host", front.submitted - front.received - known)
    charges.add("turn", record.admitted - front.submitted)
    end = front.first if to_first else front.ended
    if end is not None and times is not None:
        _charge_tail(charges, front, steps, stop, end)
    return charges


def _stop(choice: ChoiceRecord, steps: StepLog, admitted: float) -> float:
    """The engine's time at which a choice had its last token, or ended otherwise; of one that is open that of the last step."""
    times = choice.times
    if times is None:
        ended = [steps[index].ended for index in range(max(steps.first, steps.end - MAX_DEPTH), steps.end)]
        return max([admitted, *(each for each in ended if each < float("inf"))])
    return times.ended if times.last_token_at is None or choice.reason in ("abort", "error") else times.last_token_at


def _charge_tail(charges: Charges, front: FrontEnd, steps: StepLog, stop: float, end: float) -> None:
    """Charges the time from a token's commit to its last byte: until the front end had it, while the client did not read, and the rest."""
    index = steps.index_at(stop)
    seen = min(steps[index].seen, end) if steps.first <= index < steps.end and steps[index].ended == stop else stop
    charges.add("host", seen - stop)
    unread = sum([max(0.0, min(until, end) - max(begin, seen)) for begin, until in front.paused])
    charges.add("slow_reader", unread)
    charges.add("detokenise", end - seen - unread)


def slowest_choice(record: RequestRecord) -> int:
    """The number of the choice that ended last, or is open."""
    ends = {number: each.times.ended if each.times is not None else float("inf") for number, each in list(record.choices.items())}
    return max(ends, key=ends.__getitem__, default=0)


def wall(record: RequestRecord, number: int) -> tuple[float, float | None]:
    """Seconds of a whole request, and to its first token (None: it has had none), as its client's side of the server measured them; without
    a front end, the engine's."""
    choice, front = record.choices.get(number, ChoiceRecord()), record.front
    times = choice.times
    if times is None:
        return 0.0, None
    first, last = times.first_token_at, times.last_token_at if choice.reason not in ("abort", "error") else None
    begin = record.arrived if front is None else front.began
    end = times.ended if last is None else last
    if front is not None and front.ended is not None:
        end = front.ended
    if front is not None and front.first is not None and first is not None:
        first = front.first
    return end - begin, None if first is None else first - begin
