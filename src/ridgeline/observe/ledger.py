"""The latency ledger: what is kept of each request so that every moment of it can be charged to one cause, later and when asked.

Owns the records of requests, open ones and the last that have ended, and the log of steps; both are filled from events, one look-up an
event. The arithmetic is `observe.charges`. Holds lengths, times and ids, never a text or a token.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ridgeline.core import events
from ridgeline.core.events import Event
from ridgeline.observe.requests import ChoiceTimes
from ridgeline.observe.steps import StepLog

MAX_REQUESTS: Final = 8_192
"""Records that are kept, of requests that have ended first; some 1.5 KB each."""
MAX_MARKS: Final = 256
"""Changes of one choice that are kept; a choice that is preempted on and on loses those in the middle."""
MAX_NAMES: Final = 1 << 15
"""Sequence numbers whose request is known."""

Kind = Literal["started", "preempted", "wait", "ready"]


@dataclass(slots=True)
class Mark:
    """A change of a choice, in front of the step with this index. `detail`: a waiting reason; `other`: the request that is the cause;
    `sequence`: the number under which steps have it from now on."""

    step: int
    kind: Kind
    detail: str = ""
    other: str | None = None
    sequence: int = -1


@dataclass(slots=True)
class ChoiceRecord:
    """One choice. `end_step`: index behind its last step, None while it is open."""

    marks: list[Mark] = field(default_factory=list)
    hit_tokens: int = 0
    """Prompt tokens that it took from the prefix cache when it first started, and behind that."""
    tier_tokens: dict[str, int] = field(default_factory=dict)
    """Cached tokens whose blocks were not on the device, by the tier that had them, host memory among them."""
    missed_block: int | None = None
    times: ChoiceTimes | None = None
    output_tokens: int = 0
    reason: str = ""
    end_step: int | None = None


@dataclass(slots=True)
class FrontEnd:
    """A request as the front end has it: seconds of `time.monotonic`, which is the engine's clock too.

    began    its head had been read; `received`: its body
    render, encode, grammar  seconds for template, tokeniser and the compilation of a grammar
    submitted  it was given to the engine
    first, ended  its first part was ready to be sent; its answer had been written. None: not yet
    paused   (from, to) in which its client did not read
    name     the id in the answer's header
    """

    began: float
    received: float
    submitted: float
    render: float = 0.0
    encode: float = 0.0
    grammar: float = 0.0
    first: float | None = None
    ended: float | None = None
    paused: Sequence[tuple[float, float]] = ()
    name: str = ""


@dataclass(slots=True)
class RequestRecord:
    """One request of the engine. `lost`: (from, to) between the end of an engine and the start in the next."""

    request_id: str
    tenant: str
    prompt_tokens: int
    max_tokens: int
    arrived: float
    admitted: float
    first_step: int
    choices: dict[int, ChoiceRecord] = field(default_factory=dict)
    open_choices: int = 1
    engines: int = 1
    front: FrontEnd | None = None
    owner: bytes = b""


class Ledger:
    """All records. `apply` every event once, in order; `now` reads the clock of the front end."""

    def __init__(self, now: Callable[[], float] = time.monotonic, max_requests: int = MAX_REQUESTS) -> None:
        self.steps = StepLog()
        self._now = now
        self._max_requests = max_requests
        self._records: OrderedDict[str, RequestRecord] = OrderedDict()
        self._aliases: dict[str, dict[bytes, str]] = {}
        """Id in an answer's header → owner → the request whose answer had it last: clients choose these ids, and use them again."""
        self.names: OrderedDict[int, str] = OrderedDict()
        """Sequence number → request id, of the engine that runs now."""
        self._seen = 0.0
        self._fronts: OrderedDict[str, tuple[FrontEnd, bytes]] = OrderedDict()
        """Front-end times of requests that the engine has not told of yet."""
        self._handlers: Mapping[type, Callable[[Any], None]] = {
            events.Scheduled: self.steps.planned, events.Computed: self._computed, events.StepTimed: self.steps.timed,
            events.Admitted: self._admitted, events.Started: self._started, events.PrefixHit: self._hit, events.PrefixMiss: self._missed,
            events.Preempted: self._preempted, events.Waiting: self._waits, events.Ready: self._is_ready,
        }  # fmt: skip

    def __len__(self) -> int:
        return len(self._records)

    def apply(self, batch: Iterable[Event], seen: float | None = None) -> None:
        """Notes the events of a frame, which came at `seen` seconds; None: now."""
        handlers = self._handlers
        self._seen = self._now() if seen is None else seen
        for event in batch:
            handler = handlers.get(type(event))
            if handler is not None:
                handler(event)

    def submitted(self, request_id: str, front: FrontEnd, owner: bytes = b"") -> None:
        """The front end gives a request to the engine. `owner` stands for the holder of its key."""
        self._fronts[request_id] = front, owner
        if len(self._fronts) > self._max_requests:
            self._fronts.popitem(last=False)

    def answered(
        self, request_ids: Sequence[str], name: str, began: float, paused: Sequence[tuple[float, float]], first: float | None
    ) -> None:
        """The answer of requests has been written, or its client has gone. `name` is the id in its header; the others as in `FrontEnd`."""
        records = [self._records[each] for each in request_ids if each in self._records]
        fronts = [(record, record.front) for record in records if record.front is not None]
        for _, front in fronts:
            front.name, front.began, front.paused, front.first, front.ended = name, began, paused, first, self._now()
        for record, _ in fronts[:1]:
            owners = self._aliases.setdefault(name, {})
            owners.pop(record.owner, None)  # the newest is the last
            owners[record.owner] = record.request_id

    def choice_ended(self, event: events.Closed, times: ChoiceTimes) -> None:
        """A choice has ended at these times (`observe.metrics` tells)."""
        record = self._records.get(event.request_id)
        choice = None if record is None else record.choices.get(event.choice)
        if record is None:
            return
        if choice is None:
            choice = record.choices[event.choice] = ChoiceRecord()
        choice.times, choice.reason, choice.output_tokens = times, event.reason.value, event.usage.completion_tokens
        choice.end_step = self.steps.end
        record.open_choices -= 1

    def find(self, name: str, owner: bytes | None = None) -> RequestRecord | None:
        """The record of a request by its own id, the id of its answer (`chatcmpl-…`) or that in the answer's header: the owner's last one
        with it, or anybody's."""
        own_id, owners = name.rpartition("-")[2].rpartition("_")[2], self._aliases.get(name, {})
        request_id = next(reversed(owners.values()), own_id) if owner is None else owners.get(owner, own_id)
        return self._records.get(request_id)

    def arrived_since(self, moment: float) -> list[RequestRecord]:
        """Records of requests that arrived since, open ones too; oldest first."""
        return [each for each in list(self._records.values()) if each.arrived >= moment]

    def ended_since(self, moment: float) -> list[RequestRecord]:
        """Records whose choices have all ended, of requests that arrived since; oldest first."""
        return [each for each in self.arrived_since(moment) if not each.open_choices]

    # ── events ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _admitted(self, event: events.Admitted) -> None:
        found = self._records.get(event.request_id)
        if found is not None:  # it goes on in another engine
            found.engines += 1
            for choice in found.choices.values():
                if choice.times is None:
                    _mark(choice, Mark(self.steps.end, "preempted", "restart"))
            return
        record = self._records[event.request_id] = RequestRecord(
            event.request_id, event.tenant, event.prompt_tokens, event.max_tokens, event.arrived, event.time, self.steps.end,
            open_choices=event.choices,
        )  # fmt: skip
        if (front := self._fronts.pop(event.request_id, None)) is not None:
            record.front, record.owner = front
        if len(self._records) > self._max_requests:
            self._forget()

    def _forget(self) -> None:
        """Forgets the oldest record that has ended, or else the oldest."""
        name = next((name for name, each in self._records.items() if not each.open_choices), next(iter(self._records)))
        record = self._records.pop(name)
        owners = {} if record.front is None else self._aliases.get(record.front.name, {})
        if record.front is not None and owners.get(record.owner) == name:
            del owners[record.owner]
            if not owners:
                del self._aliases[record.front.name]

    def _computed(self, event: events.Computed) -> None:
        self.steps.committed(event, self._seen)

    def _started(self, event: events.Started) -> None:
        choice = self._choice(event.request_id, event.choice)
        if choice is None:
            return
        _mark(choice, Mark(self.steps.end, "started", sequence=event.sequence))
        self.names[event.sequence] = event.request_id
        self.names.move_to_end(event.sequence)
        if len(self.names) > MAX_NAMES:
            self.names.popitem(last=False)

    def _hit(self, event: events.PrefixHit) -> None:
        choice = self._choice(event.request_id, event.choice)
        if choice is not None:
            choice.hit_tokens += event.tokens
            for tier, tokens in (("host", event.from_host), (event.tier, event.from_tier)):
                if tokens:
                    choice.tier_tokens[tier] = choice.tier_tokens.get(tier, 0) + tokens

    def _missed(self, event: events.PrefixMiss) -> None:
        choice = self._choice(event.request_id, event.choice)
        if choice is not None and choice.missed_block is None:
            choice.missed_block = event.first_missing_block

    def _preempted(self, event: events.Preempted) -> None:
        choice = self._choice(event.request_id, event.choice)
        if choice is not None:
            _mark(choice, Mark(self.steps.end, "preempted", event.why, event.by))

    def _waits(self, event: events.Waiting) -> None:
        choice = self._choice(event.request_id, event.choice)
        if choice is not None:
            _mark(choice, Mark(self.steps.end, "wait", event.reason.value, event.blocker))

    def _is_ready(self, event: events.Ready) -> None:
        choice = self._choice(event.request_id, event.choice)
        if choice is not None:
            _mark(choice, Mark(self.steps.end, "ready", event.reason.value))

    def _choice(self, request_id: str, number: int) -> ChoiceRecord | None:
        record = self._records.get(request_id)
        if record is None:
            return None
        return record.choices.get(number) or record.choices.setdefault(number, ChoiceRecord())


def _mark(choice: ChoiceRecord, mark: Mark) -> None:
    if len(choice.marks) >= MAX_MARKS:
        del choice.marks[MAX_MARKS // 2]
    choice.marks.append(mark)
