"""Frames between front end and engine process: typed msgpack behind a fixed header, one frame per step.

Owns the wire format and its checks. A frame is a header (magic, version, tag, payload length) and one dataclass; nothing that arrives
is trusted before its type is decoded, and anything unexpected is a `WireError`, after which the connection is closed.
"""

import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from ridgeline.config.resolve import Decision
from ridgeline.core import commands, events
from ridgeline.core.commands import Command, Output
from ridgeline.core.events import Event
from ridgeline.engine.executor import ExecutorInfo
from ridgeline.errors import RidgelineError

MAGIC: Final = b"RL"
VERSION: Final = 1
MAX_PAYLOAD: Final = 64 * 2**20
HEADER: Final = struct.Struct("<2sBBI")
"""Magic, version, tag, payload bytes."""


class WireError(RidgelineError):
    """A frame that this side does not understand; the connection is then closed."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of loading: the stage, and the fraction of it that is done (0 to 1)."""

    stage: str
    fraction: float


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine takes requests. `decisions`: the value of each setting that was left open, with the reason."""

    info: ExecutorInfo
    decisions: tuple[Decision, ...] = ()


@dataclass(frozen=True, slots=True)
class Frame:
    """Results of one turn of the loop. `step` counts committed steps: while it grows, the engine is healthy.
    `time` is the engine's clock, seconds."""

    step: int
    time: float
    outputs: Sequence[Output]
    events: Sequence[Event]


@dataclass(frozen=True, slots=True)
class Health:
    """The engine has committed `step` steps so far, and commits no other before the next command."""

    step: int
    time: float


@dataclass(frozen=True, slots=True)
class Fatal:
    """The engine is about to end.

    permanent  a restart would fail too (a bad model file, a setting that cannot work)
    fix        flags that would make it work, as in `errors.RidgelineError`
    """

    message: str
    permanent: bool
    fix: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Profile:
    """Begins a profile of the engine's loop; with a `path`, ends it and writes it there."""

    path: str | None


@dataclass(frozen=True, slots=True)
class TraceSteps:
    """Tells in a new file at `path` what the next so many steps do, as `Executor.trace`; 0 steps end that file."""

    path: str
    steps: int


Message = Command | Progress | Ready | Frame | Health | Fatal | Profile | TraceSteps


@dataclass(frozen=True, slots=True)
class _WireFrame:
    """`Frame` on the wire: each event with the tag of its type."""

    step: int
    time: float
    outputs: tuple[Output, ...]
    events: tuple[tuple[int, msgspec.Raw], ...]


def _encode_column(value: Any) -> list[int]:
    if isinstance(value, array):
        return value.tolist()
    raise NotImplementedError(f"{type(value).__name__} cannot be encoded")


def _decode_column(kind: type, value: Any) -> "array[int]":
    if kind is not array or not isinstance(value, list):
        raise ValueError("a column must be a list")
    try:
        return array("i", value)
    except (OverflowError, TypeError):
        raise ValueError("a column must hold 32-bit integers") from None


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_encode_column)


def _decoder(kind: Any) -> "msgspec.msgpack.Decoder[Any]":
    return msgspec.msgpack.Decoder(kind, dec_hook=_decode_column)


MESSAGE_TYPES: Final[tuple[type, ...]] = (
    commands.Admit,
    commands.Close,
    commands.Abort,
    Progress,
    Ready,
    Frame,
    Health,
    Fatal,
    commands.GrammarReady,
    commands.SetKnob,
    Profile,
    commands.AdapterReady,
    commands.PinAdapter,
    commands.BlocksFetched,
    TraceSteps,
    commands.TellBlocks,
)
EVENT_TYPES: Final[tuple[type, ...]] = (
    events.Admitted,
    events.Scheduled,
    events.Computed,
    events.Started,
    events.PrefixHit,
    events.Preempted,
    events.Evicted,
    events.Moved,
    events.Closed,
    events.Rejected,
    events.StepTimed,
    events.StepLate,
    events.Idle,
    events.Waiting,
    events.Ready,
    events.PrefixMiss,
    events.TierUsed,
    events.Drafting,
    events.Published,
)
"""Events that the front end reads. The others are for listeners in the engine's own process, and are not sent."""
_MESSAGE_TAGS = {kind: tag for tag, kind in enumerate(MESSAGE_TYPES)}
_EVENT_TAGS = {kind: tag for tag, kind in enumerate(EVENT_TYPES)}
_MESSAGE_DECODERS = tuple(_decoder(_WireFrame if kind is Frame else kind) for kind in MESSAGE_TYPES)
_EVENT_DECODERS = tuple(_decoder(kind) for kind in EVENT_TYPES)


def encode(message: Message) -> bytes:
    """Returns header and payload. Raises `WireError` if the payload exceeds 64 MiB."""
    body: Any = message
    if isinstance(message, Frame):
        tags = _EVENT_TAGS
        tagged = [(tags[kind], event) for event in message.events if (kind := type(event)) in tags]
        body = {"step": message.step, "time": message.time, "outputs": message.outputs, "events": tagged}
    payload = _ENCODER.encode(body)
    if len(payload) > MAX_PAYLOAD:
        raise WireError(f"a frame of {len(payload)} bytes exceeds the limit of {MAX_PAYLOAD}")
    return HEADER.pack(MAGIC, VERSION, _MESSAGE_TAGS[type(message)], len(payload)) + payload


def decode_header(header: bytes) -> tuple[int, int]:
    """Returns tag and payload length from the `HEADER.size` bytes of a header. Raises `WireError`."""
    magic, version, tag, length = HEADER.unpack(header)
    if magic != MAGIC or version != VERSION:
        raise WireError(f"a frame begins with {magic!r} version {version}; expected {MAGIC!r} version {VERSION}")
    if tag >= len(MESSAGE_TYPES):
        raise WireError(f"a frame has the unknown tag {tag}")
    if length > MAX_PAYLOAD:
        raise WireError(f"a frame announces {length} bytes; the limit is {MAX_PAYLOAD}")
    return tag, length


def decode(tag: int, payload: bytes) -> Message:
    """Returns the message of a frame. Raises `WireError`."""
    try:
        body = _MESSAGE_DECODERS[tag].decode(payload)
        return _frame(body) if isinstance(body, _WireFrame) else body
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise WireError(f"a {MESSAGE_TYPES[tag].__name__} frame cannot be read: {error}") from None


def _frame(wire: _WireFrame) -> Frame:
    decoded = []
    for tag, raw in wire.events:
        if not 0 <= tag < len(EVENT_TYPES):
            raise WireError(f"an event has the unknown tag {tag}")
        decoded.append(_EVENT_DECODERS[tag].decode(raw))
    return Frame(wire.step, wire.time, wire.outputs, decoded)


class FrameBuffer:
    """Splits a byte stream into messages. Holds at most one incomplete frame."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        """The beginning of a frame, of which `_needed` bytes at least are to be there before anything can be done with it."""
        self._needed = 0

    def feed(self, data: bytes) -> list[Message]:
        """Returns the messages that `data` completes, in order. Raises `WireError` at the first bad frame."""
        if self._bytes:
            self._bytes += data
            if len(self._bytes) < self._needed:
                return []
            data = bytes(self._bytes)
            self._bytes.clear()
        messages: list[Message] = []
        at, size = 0, len(data)
        while True:
            begin = end = at + HEADER.size
            if begin <= size:
                tag, length = decode_header(data[at:begin])
                end += length
            if end > size:
                break
            messages.append(decode(tag, data[begin:end]))
            at = end
        if at < size:
            self._bytes += data[at:]
            self._needed = end - at
        return messages
