"""A recording of an engine: every inbound command with its turn, every plan as a line, every result. Enough to replay all decisions.

Owns the file: length-prefixed msgpack, written by the engine process, read by the simulator. It holds token ids of prompts and answers.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import msgspec

from ridgeline.core.commands import Command
from ridgeline.core.drafts.model import DraftCache
from ridgeline.core.events import Closed
from ridgeline.core.params import Limits
from ridgeline.core.plan import KVShape, Plan, Result, Timings
from ridgeline.core.scheduler import Scheduler
from ridgeline.core.step_time import StepSeconds
from ridgeline.engine import record_v2
from ridgeline.engine.engine import Clock, Engine, Store, Turn
from ridgeline.engine.executor import Executor, ExecutorInfo, Ticket
from ridgeline.engine.messages import MAX_PAYLOAD, FrameBuffer, encode
from ridgeline.errors import ConfigError

MAGIC: Final = b"ridgeline recording 3\n"
_LENGTH: Final = struct.Struct("<I")
_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, KeyError, TypeError, AttributeError)
Convert = Callable[[dict[str, Any]], dict[str, Any]]
Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class Setup:
    """Settings that the decisions depend on.

    drafts   ids drafted per row, at most; `price`: their cost, measured at the start
    seconds  of steps, measured at the start; None: the prefill budget is that of `limits`, whatever steps take
    step_ms  milliseconds that a step with decoding rows may take
    speculative  who drafts, as `core.drafts.kinds.make_drafter` takes it; draft_cache: of a draft model
    """

    limits: Limits
    kv: KVShape
    policy: str
    rows: int
    drafts: int = 0
    price: tuple[tuple[int, int, float], ...] = ()
    seconds: StepSeconds | None = None
    step_ms: int = 60
    speculative: str = "ngram"
    draft_cache: DraftCache | None = None


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One turn of the loop.

    time       seconds on the engine's clock
    commands   as frames
    decisions  the submitted plans as lines (`decision_line`)
    step, sampled, finite    of the committed result; step is −1 if there is none
    tokens, cached, seconds  of its step: computed tokens, positions that its rows attend to, duration
    drafted, draft_seconds   ids that the draft model drafted, and its part of the duration
    forced     as of the result
    ended      (request id, output tokens) of choices that were closed
    """

    time: float
    commands: bytes
    decisions: tuple[str, ...]
    step: int = -1
    sampled: tuple[tuple[int, ...], ...] = ()
    finite: bytes = b""
    tokens: int = 0
    cached: int = 0
    seconds: float = 0.0
    ended: tuple[tuple[str, int], ...] = ()
    drafted: tuple[tuple[int, ...], ...] = ()
    draft_seconds: float = 0.0
    forced: tuple[tuple[int, tuple[int, ...]], ...] = ()

    def decode_commands(self) -> list[Command]:
        """Returns the commands."""
        return FrameBuffer().feed(self.commands)  # type: ignore[return-value]

    def result(self) -> Result:
        """The committed result; only where `step` ≥ 0."""
        timings = Timings(run=self.seconds, draft=self.draft_seconds)
        return Result(self.step, self.sampled, bytearray(self.finite), None, timings, drafted=self.drafted, forced=self.forced)


class _Params:
    """Writes parameters without those that have their defaults: a new option then leaves the lines of requests without it as they were."""

    def __init__(self, params: Any) -> None:
        self._params = params

    def __repr__(self) -> str:
        values = [(field, getattr(self._params, field.name)) for field in fields(self._params)]
        texts = [f"{field.name}={_Params(value) if is_dataclass(value) else value!r}" for field, value in values if value != field.default]
        return f"{type(self._params).__name__}({', '.join(texts)})"


def decision_line(plan: Plan) -> str:
    """A plan as a line; block ids left out: two schedulers that write the same lines have decided the same."""
    new = [
        (each.row, each.sequence, _Params(each.params), each.ids, [len(table) for table in each.tables], *[each.slot][: each.slot >= 0])
        for each in plan.new_rows
    ]
    blocks = [(row, group, first, len(block_ids)) for row, group, first, block_ids in plan.blocks]
    columns = [list(column) for column in (plan.row, plan.start, plan.count, plan.tokens, plan.sample)]
    scores = f" scores {list(plan.score)}" if plan.score else ""
    pool = f" pool {list(plan.pool)}" if plan.pool else ""
    copies = f" copies {len(plan.copies)}" if plan.copies else ""
    fills = f" fills {[(fill.slot, fill.digest.hex()) for fill in plan.fills]}" if plan.fills else ""
    spans = f" spans {[(span.row, span.start, span.ids, span.drafts) for span in plan.spans]}" if plan.spans else ""
    spans += f" open {list(plan.open)}" if plan.open else ""
    return f"{plan.step} {columns} {new} {list(plan.freed_rows)} {blocks}{scores}{pool}{copies}{fills}{spans}"


class Recorder:
    """An executor that records: placed between engine and executor; `begin` and `end` are called around each of the engine's turns."""

    def __init__(self, executor: Executor, path: Path, setup: Setup) -> None:
        """Raises OSError if the file cannot be written."""
        self._executor = executor
        self.grammars = executor.grammars
        self.adapters = executor.adapters
        self.blocks = executor.blocks
        self._file: BinaryIO = path.open("wb")
        self._file.write(MAGIC)
        self._write(setup)
        self._commands: Sequence[Command] = ()
        self._decisions: list[str] = []
        self._collected: tuple[Plan, Result] | None = None

    @property
    def info(self) -> ExecutorInfo:
        return self._executor.info

    @property
    def trace(self) -> Callable[[str, int], None] | None:
        return self._executor.trace

    def submit(self, plan: Plan) -> Ticket:
        self._decisions.append(decision_line(plan))
        return self._executor.submit(plan)

    def collect(self, ticket: Ticket) -> Result:
        result = self._executor.collect(ticket)
        self._collected = ticket.plan, result
        return result

    def begin(self, commands: Sequence[Command]) -> None:
        """Called before a turn, with its commands."""
        self._commands = commands

    def end(self, turn: Turn) -> None:
        """Called after a turn. One without commands, plans and results is not recorded."""
        if self._commands or self._decisions or self._collected is not None:
            ended = tuple((event.request_id, event.usage.completion_tokens) for event in turn.events if isinstance(event, Closed))
            frames, decisions = b"".join(map(encode, self._commands)), tuple(self._decisions)
            if self._collected is None:
                self._write(RecordedTurn(turn.time, frames, decisions, ended=ended))
            else:
                plan, result = self._collected
                work = len(plan.tokens), sum(plan.start) + len(plan.tokens), result.timings.run
                done = plan.step, result.sampled, bytes(result.finite), *work, ended, result.drafted, result.timings.draft, result.forced
                self._write(RecordedTurn(turn.time, frames, decisions, *done))
        self._decisions.clear()
        self._collected = None

    def beat(self) -> int:
        return self._executor.beat()

    def close(self) -> None:
        self._file.close()
        self._executor.close()

    def _write(self, value: Setup | RecordedTurn) -> None:
        payload = msgspec.msgpack.encode(value)
        self._file.write(_LENGTH.pack(len(payload)) + payload)
        self._file.flush()


class RecordedEngine(Engine):
    """An engine that records its turns."""

    def __init__(self, scheduler: Scheduler, clock: Clock, depth: int, recorder: Recorder, store: Store | None = None) -> None:
        super().__init__(scheduler, recorder, clock, depth, store)
        self._recorder = recorder

    def turn(self, commands: Sequence[Command] = ()) -> Turn:
        """Runs one turn, and records it."""
        self._recorder.begin(commands)
        turn = super().turn(commands)
        self._recorder.end(turn)
        return turn


def read_recording(path: Path) -> tuple[Setup, Iterator[RecordedTurn]]:
    """Setup and turns; a last turn that is cut off (the engine died) is left out. Raises ConfigError for another file."""
    file = path.open("rb")
    magic = file.read(len(MAGIC))
    if magic not in (MAGIC, record_v2.MAGIC):
        file.close()
        raise ConfigError(f"{path.name} is not a recording; make one with `ridgeline serve MODEL --record FILE`")
    old = magic == record_v2.MAGIC
    try:
        setup = _decode(_read_payload(file, path) or b"", Setup, record_v2.setup if old else None)
    except _UNREADABLE as error:
        file.close()
        raise ConfigError(f"{path.name} cannot be read: {error}") from None
    return setup, _turns(file, path, record_v2.turn if old else None)


def _turns(file: BinaryIO, path: Path, convert: Convert | None) -> Iterator[RecordedTurn]:
    with file:
        while (payload := _read_payload(file, path)) is not None:
            try:
                yield _decode(payload, RecordedTurn, convert)
            except _UNREADABLE as error:
                raise ConfigError(f"{path.name} cannot be read at byte {file.tell()}: {error}") from None


def _decode(payload: bytes, kind: type[Record], convert: Convert | None) -> Record:
    if convert is None:
        return msgspec.msgpack.decode(payload, type=kind)
    return msgspec.convert(convert(msgspec.msgpack.decode(payload)), kind)


def _read_payload(file: BinaryIO, path: Path) -> bytes | None:
    head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > MAX_PAYLOAD:
        raise ConfigError(f"{path.name} announces {length} bytes at byte {file.tell()}; the limit is {MAX_PAYLOAD}")
    payload = file.read(length)
    return payload if len(payload) == length else None
