"""A recording of an engine: every inbound command with its turn, every plan as a line, every result. Enough to decide it all again.

Owns the file: length-prefixed msgpack, written by the engine process, read by the simulator. It holds token ids of prompts and answers.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import msgspec

from ridgeline.core.commands import Command
from ridgeline.core.events import Closed
from ridgeline.core.params import Limits
from ridgeline.core.plan import KVShape, Plan, Result, Timings
from ridgeline.engine import record_v2
from ridgeline.engine.engine import Turn as EngineTurn
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
    """Everything that decisions depend on beside the commands. `drafts`: ids drafted per row at most, at this `price` at the start."""

    limits: Limits
    kv: KVShape
    policy: str
    rows: int
    drafts: int = 0
    price: tuple[tuple[int, int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the loop: commands as frames, plans submitted as lines, the result that was committed if any.

    time    seconds on the engine's clock        ended   (request id, its output tokens) of choices that closed
    tokens, cached, seconds  of the step committed: tokens computed, positions looked back at, time
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

    def received(self) -> list[Command]:
        """The commands."""
        return FrameBuffer().feed(self.commands)  # type: ignore[return-value]

    def result(self) -> Result:
        """The result that was committed; only where `step` ≥ 0."""
        return Result(self.step, self.sampled, bytearray(self.finite), None, Timings(run=self.seconds))


def decision(plan: Plan) -> str:
    """A plan as a line, page numbers apart: two schedulers that write the same lines have decided the same."""
    new = [(each.row, each.sequence, each.params, each.ids, [len(table) for table in each.tables]) for each in plan.new_rows]
    blocks = [(row, group, first, len(block_ids)) for row, group, first, block_ids in plan.blocks]
    columns = [list(column) for column in (plan.row, plan.start, plan.count, plan.tokens, plan.sample)]
    scores = f" scores {list(plan.score)}" if plan.score else ""
    copies = f" copies {len(plan.copies)}" if plan.copies else ""
    return f"{plan.step} {columns} {new} {list(plan.freed_rows)} {blocks}{scores}{copies}"


class Recorder:
    """Stands between engine and executor; `begin` and `end` stand around each of the engine's turns."""

    def __init__(self, executor: Executor, path: Path, setup: Setup) -> None:
        """Raises OSError where the file cannot be written."""
        self._executor = executor
        self._file: BinaryIO = path.open("wb")
        self._file.write(MAGIC)
        self._put(setup)
        self._commands: Sequence[Command] = ()
        self._decisions: list[str] = []
        self._collected: tuple[Plan, Result] | None = None

    @property
    def info(self) -> ExecutorInfo:
        return self._executor.info

    def submit(self, plan: Plan) -> Ticket:
        self._decisions.append(decision(plan))
        return self._executor.submit(plan)

    def collect(self, ticket: Ticket) -> Result:
        result = self._executor.collect(ticket)
        self._collected = ticket.plan, result
        return result

    def begin(self, commands: Sequence[Command]) -> None:
        """The engine is about to be turned with these."""
        self._commands = commands

    def end(self, turn: EngineTurn) -> None:
        """The turn is over. One in which nothing came and nothing was done leaves no trace."""
        if self._commands or self._decisions or self._collected is not None:
            ended = tuple((event.request_id, event.usage.completion_tokens) for event in turn.events if isinstance(event, Closed))
            frames, decisions = b"".join(map(encode, self._commands)), tuple(self._decisions)
            if self._collected is None:
                self._put(Turn(turn.time, frames, decisions, ended=ended))
            else:
                plan, result = self._collected
                work = len(plan.tokens), sum(plan.start) + len(plan.tokens), result.timings.run
                self._put(Turn(turn.time, frames, decisions, plan.step, result.sampled, bytes(result.finite), *work, ended))
        self._decisions.clear()
        self._collected = None

    def close(self) -> None:
        self._file.close()
        self._executor.close()

    def _put(self, value: Setup | Turn) -> None:
        payload = msgspec.msgpack.encode(value)
        self._file.write(_LENGTH.pack(len(payload)) + payload)
        self._file.flush()


def read_recording(path: Path) -> tuple[Setup, Iterator[Turn]]:
    """Setup and turns; a last turn that is cut off (the engine died) is left out. Raises ConfigError for what is no recording."""
    file = path.open("rb")
    magic = file.read(len(MAGIC))
    if magic not in (MAGIC, record_v2.MAGIC):
        file.close()
        raise ConfigError(f"{path.name} is no recording; make one with `ridgeline serve MODEL --record FILE`")
    old = magic == record_v2.MAGIC
    try:
        setup = _decoded(_get(file, path) or b"", Setup, record_v2.setup if old else None)
    except _UNREADABLE as error:
        file.close()
        raise ConfigError(f"{path.name} cannot be read: {error}") from None
    return setup, _turns(file, path, record_v2.turn if old else None)


def _turns(file: BinaryIO, path: Path, convert: Convert | None) -> Iterator[Turn]:
    with file:
        while (payload := _get(file, path)) is not None:
            try:
                yield _decoded(payload, Turn, convert)
            except _UNREADABLE as error:
                raise ConfigError(f"{path.name} cannot be read at byte {file.tell()}: {error}") from None


def _decoded(payload: bytes, kind: type[Record], convert: Convert | None) -> Record:
    if convert is None:
        return msgspec.msgpack.decode(payload, type=kind)
    return msgspec.convert(convert(msgspec.msgpack.decode(payload)), kind)


def _get(file: BinaryIO, path: Path) -> bytes | None:
    head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > MAX_PAYLOAD:
        raise ConfigError(f"{path.name} announces {length} bytes at byte {file.tell()}; at most {MAX_PAYLOAD} are taken")
    payload = file.read(length)
    return payload if len(payload) == length else None
