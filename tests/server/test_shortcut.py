"""New text that goes past its stream's task: the same bytes in the same order as those that the task writes, whatever comes between."""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ridgeline.core.commands import Close, Output
from ridgeline.core.events import Closed, Finish, Usage
from ridgeline.core.params import Admitted, SamplingParams
from ridgeline.core.plan import TokenLogprobs
from ridgeline.engine.streams import RequestStream, Wakeup
from ridgeline.server import transport
from ridgeline.server.answer import AnswerFormat, Header, Teller, _events
from ridgeline.server.body import StreamSettings
from ridgeline.server.chat import ChatFormat
from ridgeline.server.completions import CompletionFormat
from ridgeline.server.generate import Generation
from ridgeline.server.logprobs import TokenNames
from ridgeline.server.shortcut import Shortcut
from ridgeline.server.transport import EventStream
from ridgeline.text.tokenizer import ByteTokenizer

CHOICES = 3
NAMES = TokenNames(ByteTokenizer(), False)
HEADER = Header("cmpl-1", 1, "m", "fp")
TEXT = "naïve 漢字 🙂 0101 stop".encode() * 3

Make = Callable[[], AnswerFormat]
FORMS: dict[str, Make] = {
    "completion": lambda: CompletionFormat(HEADER, NAMES, None, None, False, False),
    "ids": lambda: CompletionFormat(HEADER, NAMES, None, None, False, True),
    "logprobs": lambda: ChatFormat(HEADER, NAMES, True, None, False),
    "chat": lambda: ChatFormat(HEADER, NAMES, False, None, False),
}


class Engine:
    """Has one stream, into which a test puts what it likes."""

    stream: RequestStream

    def __init__(self) -> None:
        self.closes: list[Close] = []

    def submit(self, request: Admitted, wakeup: Wakeup, behind: None) -> RequestStream:
        self.stream = RequestStream(request, wakeup)
        return self.stream

    def send(self, command: Close) -> None:
        self.closes.append(command)

    def abort(self, request_id: str) -> None:
        pass


class Writer:
    """A body's writer; `parts` has what both ways wrote, each with its way."""

    def __init__(self) -> None:
        self.is_paused = False
        self.parts: list[tuple[str, bytes]] = []

    def write(self, data: bytes) -> None:
        assert data and not self.is_paused
        self.parts.append(("short", data))

    async def send(self, message: Any) -> None:
        while self.is_paused:
            await asyncio.sleep(0)
        self.parts.append(("task", message.get("body", b"")))

    @property
    def body(self) -> bytes:
        return b"".join(data for _, data in self.parts)

    @property
    def short(self) -> int:
        return sum(way == "short" for way, _ in self.parts)


class Exchange:
    """One answer as a stream, with the short way or without."""

    def __init__(self, form: AnswerFormat, params: SamplingParams, usage: bool = False, idle: float = 15.0) -> None:
        self.engine, self.writer = Engine(), Writer()
        request = Admitted("r", (1, 2, 3), 1000, 0, CHOICES, two_phase=bool(params.stop))
        self.source = Generation(self.engine, ByteTokenizer(), [request], params)  # type: ignore[arg-type]
        settings = StreamSettings(usage, usage, idle)
        self.teller = Teller(self.source, form, settings)
        self.source.shortcut = Shortcut(self.teller.tell)
        self.stream = EventStream(_events(self.source, form, settings, self.teller), self.source.abort)
        self.stream.shortcut = self.source.shortcut

    def start(self, is_short: bool) -> "asyncio.Task[None]":
        scope = {transport.BODY_WRITER_KEY: self.writer} if is_short else {}
        return asyncio.create_task(self.stream(scope, self._never, self.writer.send))

    @staticmethod
    async def _never() -> Any:
        await asyncio.Event().wait()

    def put(self, item: Output | Closed) -> None:
        if isinstance(item, Closed):
            self.engine.stream.close(item)
        else:
            self.engine.stream.put(item)


def answer(rng: random.Random, has_logprobs: bool) -> list[Output | Closed]:
    """Outputs of all choices in any order, some with several ids, and their ends."""
    left = {number: list(TEXT[rng.randrange(9) :][: rng.randrange(2, len(TEXT))]) for number in range(CHOICES)}
    items: list[Output | Closed] = []
    while left:
        number = rng.choice(list(left))
        count = rng.choice((1, 1, 1, 2, 5))
        ids, left[number] = tuple(left[number][:count]), left[number][count:]
        logprobs = tuple(TokenLogprobs(-0.5 * each) for each in ids) if has_logprobs else None
        items.append(Output("r", number, ids, logprobs, None if left[number] else Finish.LENGTH))
        if not left[number]:
            del left[number]
            items.append(Closed("r", number, Finish.LENGTH, Usage(3, 7, 0), 0.0))
    return items


async def told(exchange: Exchange, items: Sequence[Output | Closed], rng: random.Random, is_short: bool) -> None:
    """Puts all items into the stream; now and then its task gets its turn, or the client stops reading."""
    task = exchange.start(is_short)
    for item in items:
        if rng.random() < 0.5:
            for _ in range(rng.choice((1, 9))):
                await asyncio.sleep(0)
        exchange.writer.is_paused = rng.random() < 0.2
        exchange.put(item)
    exchange.writer.is_paused = False
    await asyncio.wait_for(task, 5)


@pytest.mark.parametrize("stop", [(), ("stop",)])
@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_both_ways_write_the_same_answer(name: str, usage: bool, stop: tuple[str, ...]) -> None:
    short = stopped = 0
    for seed in range(12):
        items = answer(random.Random(seed), name == "logprobs")
        params = SamplingParams(max_tokens=1000, n=CHOICES, logprobs=0 if name == "logprobs" else None, stop=stop)

        found, expected = (Exchange(FORMS[name](), params, usage) for _ in range(2))
        for exchange in (found, expected):
            asyncio.run(told(exchange, items, random.Random(seed), is_short=exchange is found))
        assert found.writer.body == expected.writer.body
        assert found.engine.closes == expected.engine.closes
        assert found.source.usage.completion_tokens == expected.source.usage.completion_tokens
        assert not expected.writer.short
        short += found.writer.short
        stopped += len(found.engine.closes)
    assert short
    assert bool(stopped) == bool(stop)


def under_way(exchange: Exchange) -> "asyncio.Task[None]":
    task = exchange.start(True)
    exchange.put(Output("r", 0, (65,)))
    return task


async def settle() -> None:
    for _ in range(9):
        await asyncio.sleep(0)


def test_the_task_sleeps_through_new_text_and_silence_begins_behind_it() -> None:
    async def run() -> None:
        exchange = Exchange(FORMS["completion"](), SamplingParams(max_tokens=1000, n=CHOICES), idle=0.2)
        task = under_way(exchange)
        await settle()
        for _ in range(6):
            await asyncio.sleep(0.1)
            before = len(exchange.writer.parts)
            exchange.put(Output("r", 0, (66,)))
            assert exchange.writer.parts[before:] == [("short", exchange.writer.parts[-1][1])]
        assert transport.COMMENT not in exchange.writer.body
        await asyncio.sleep(0.3)
        assert exchange.writer.body.endswith(transport.COMMENT)
        task.cancel()

    asyncio.run(run())


def test_what_goes_wrong_ends_its_own_stream_alone() -> None:
    async def run() -> bytes:
        exchange = Exchange(FORMS["completion"](), SamplingParams(max_tokens=1000, n=CHOICES))
        task = under_way(exchange)
        await settle()

        def fail(part: object) -> list[bytes]:
            raise ValueError("no event can be made of it")

        exchange.source.shortcut._encode = fail  # type: ignore[union-attr]
        exchange.put(Output("r", 0, (66,)))  # raises nothing: the frame has outputs of other streams too
        with pytest.raises(Exception, match="the server failed"):
            await asyncio.wait_for(task, 5)
        return exchange.writer.body

    assert b'"error"' in asyncio.run(run())


def test_nothing_is_written_behind_a_streams_end() -> None:
    async def run() -> None:
        exchange = Exchange(FORMS["completion"](), SamplingParams(max_tokens=1000, n=CHOICES))
        task = under_way(exchange)
        await settle()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        before = list(exchange.writer.parts)
        exchange.put(Output("r", 0, (66,)))
        assert exchange.writer.parts == before

    asyncio.run(run())


def test_events_that_the_client_has_are_left_out() -> None:
    """An empty chunk would end the body."""
    writer, shortcut = Writer(), Shortcut(lambda part: (b"1", b"2"))
    shortcut.open(writer, lambda event: b"" if event == b"1" else event)
    shortcut.tell(None)  # type: ignore[arg-type]
    assert writer.parts == [("short", b"2")]
