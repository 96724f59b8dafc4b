"""Frames: every message is decoded as it was encoded, and mutated bytes give a message or a `WireError`."""

import random
from array import array
from typing import get_args

import msgspec
import pytest

from ridgeline.config.resolve import Decision
from ridgeline.core import commands, events
from ridgeline.core.commands import Output
from ridgeline.core.params import Admitted, Sampling
from ridgeline.core.plan import KVGroup, KVShape, Timings, TokenLogprobs
from ridgeline.engine import messages
from ridgeline.engine.executor import ExecutorInfo
from ridgeline.engine.messages import EVENT_TYPES, HEADER, MESSAGE_TYPES, FrameBuffer, Message, WireError, encode

SAMPLING = Sampling(
    0.5, 4, 0.9, 0.1, 1.0, -1.0, 1.5, ((7, 2.5), (9, -100.0)), (1, 7, 9), ((5,), (6, 7)), 2
)  # fmt: skip
REQUEST = Admitted(
    "r" * 32, (1, 2, 262143), 16, 2**63 - 1, 2, SAMPLING, 3, 1, stop_ids=frozenset({1}), two_phase=True, domain=b"\xff\x00", priority=-4
)  # fmt: skip
INFO = ExecutorInfo(KVShape((KVGroup("window", (0, 2), 4),), 16, 100, b"\x01" * 32), 512, 4096, 16, "fake", 0, 0)
COLUMN = array("i", [0, 1, 2**31 - 1])
EVENTS = [
    events.Admitted("r", 0.5, 3, 2, 0.25),
    events.Scheduled(1, 0.5, (4, 5, 6), COLUMN, 1, 2, 3),
    events.Computed(1, 0.5, (4, 5, 6), COLUMN),
    events.Started("r", 0, 4, 0.5, False),
    events.PrefixHit("r", 0, 16),
    events.Preempted("r", 0, "s", "blocks"),
    events.Evicted(7),
    events.Moved(7, 101),
    events.Closed("r", 0, events.Finish.LENGTH, events.Usage(3, 4, 0), 0.5),
    events.Rejected("r", "full", 2.0),
    events.StepTimed(1, Timings(run=0.1)),
    events.TierUsed("file", 1, 2, 3, 4, 5, 6, 7),
    events.StepLate(1, 0.5, 0.1, 4, 80),
    events.Idle(0.5, 1, 2, 3),
    events.Waiting("r", 0, events.Wait.PREFIX, None),
    events.Ready("r", 1, events.Wait.PREFIX),
    events.PrefixMiss("r", 0, 1),
    events.Published((3, 4), b"12345678abcdefgh"),
    events.Drafting(64, 0.5, 3, 2, 0.75, 1.5, 0.25),
]
UNSENT: list[events.Event] = [events.EndedProvisionally("r", 0, events.Finish.STOP)]
OUTPUT = Output("r", 1, (5, 6), (TokenLogprobs(-0.5, ((5, -0.5),)), TokenLogprobs(-1.0)), events.Finish.STOP)
SCORES = Output("r", 0, (), prompt_logprobs=(TokenLogprobs(-2.5, ((7, -0.25),)),))
MESSAGES: list[Message] = [
    commands.Admit(REQUEST),
    commands.Close("r", 0, 3, events.Finish.STOP),
    commands.Abort("r"),
    commands.GrammarReady(b"d", "too large"),
    commands.SetKnob("step_ms", 30),
    commands.AdapterReady(b"d", "too large"),
    commands.PinAdapter(b"d", True),
    commands.BlocksFetched("r", "file", ((0, 1, 7),)),
    messages.Progress("weights", 0.5),
    messages.Ready(INFO, (Decision("max_model_len", 4096, "model", "its context"),)),
    messages.Frame(9, 1.5, (OUTPUT, SCORES), [*UNSENT, *EVENTS]),
    messages.Health(9, 1.5),
    messages.Fatal("out of memory", False),
    messages.Profile("a.pstats"),
    messages.TraceSteps("a.json", 20),
    commands.TellBlocks(),
]


def test_every_type_has_a_tag_and_a_sample() -> None:
    assert {type(event) for event in EVENTS} == set(EVENT_TYPES)
    assert {type(event) for event in [*EVENTS, *UNSENT]} == set(get_args(events.Event))
    assert {type(message) for message in MESSAGES} == set(MESSAGE_TYPES)
    assert set(get_args(commands.Command)) < set(MESSAGE_TYPES)


def test_messages_survive_any_cut() -> None:
    stream = b"".join(map(encode, MESSAGES))
    for size in (1, 7, len(stream)):
        buffer = FrameBuffer()
        found = [message for at in range(0, len(stream), size) for message in buffer.feed(stream[at : at + size])]
        assert [type(each) for each in found] == [type(each) for each in MESSAGES]
        for got, sent in zip(found, MESSAGES, strict=True):
            if isinstance(got, messages.Frame):
                assert list(got.outputs) == [OUTPUT, SCORES] and got.events == EVENTS
            else:
                assert got == sent


@pytest.mark.parametrize(
    ("header", "told"),
    [
        (b"PK\x01\x00\x00\x00\x00\x00", "begins with b'PK'"),
        (HEADER.pack(b"RL", 2, 0, 0), "version 2"),
        (HEADER.pack(b"RL", 1, len(MESSAGE_TYPES), 0), "unknown tag"),
        (HEADER.pack(b"RL", 1, 0, 2**26 + 1), "67108865 bytes"),
    ],
    ids=["magic", "version", "tag", "length"],
)
def test_headers_are_refused_before_the_payload_comes(header: bytes, told: str) -> None:
    with pytest.raises(WireError, match=told):
        FrameBuffer().feed(header)


@pytest.mark.parametrize("column", [[2**31], ["1"], [1.5], [None], {"0": 1}, 7])
def test_columns_are_checked(column: object) -> None:
    scheduled = {"step": 1, "time": 0.5, "sequences": [1], "count": column, "waiting": 0, "free_blocks": 0, "cached_blocks": 0}
    tag = EVENT_TYPES.index(events.Scheduled)
    payload = msgspec.msgpack.encode({"step": 1, "time": 0.5, "outputs": [], "events": [[tag, scheduled]]})
    with pytest.raises(WireError, match=r"column|Expected"):
        messages.decode(MESSAGE_TYPES.index(messages.Frame), payload)


def test_oversized_frames_are_not_sent() -> None:
    with pytest.raises(WireError, match="67108"):
        encode(messages.Fatal("x" * (2**26 + 1), False))


def mutate(frame: bytes, draw: random.Random) -> bytes:
    data = bytearray(frame)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(data))
        match draw.randrange(4):
            case 0:
                data[at] ^= 1 << draw.randrange(8)
            case 1:
                data[at] = draw.choice(b"\x00\x7f\x80\x90\xc0\xc1\xca\xcf\xd9\xdf\xff")
            case 2:
                del data[at : at + draw.randint(1, 8)]
            case _:
                data[at:at] = draw.randbytes(draw.randint(1, 8))
        if not data:
            return b"R"
    return bytes(data)


def test_mutated_frames() -> None:
    draw = random.Random(1)
    frames = [encode(message) for message in MESSAGES]
    refused = 0
    for _ in range(20_000):
        frame = draw.choice(frames)
        data = mutate(frame, draw)
        if draw.random() < 0.8:
            data = HEADER.pack(b"RL", 1, frame[3], max(0, len(data) - HEADER.size)) + data[HEADER.size :]
        try:
            found = FrameBuffer().feed(data)
        except WireError:
            refused += 1
        else:
            assert all(isinstance(message, MESSAGE_TYPES) for message in found)
    assert refused > 5_000
