"""From a source of pieces to one HTTP answer, whole or as a stream, for every endpoint alike. The form of bodies is the endpoint's.

Owns what is collected before a whole answer is written, and the order of a stream: of each choice a beginning, its text, its end; usage.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, ParamSpec, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ridgeline.core.plan import TokenLogprobs
from ridgeline.server import wire
from ridgeline.server.fields import Streaming
from ridgeline.server.generate import Begun, Ended, Quiet, Shown, Source, Tally
from ridgeline.server.served import Model
from ridgeline.server.text_events import TextEvents
from ridgeline.server.transport import KEEP_ALIVE, EventStream, unless_disconnected
from ridgeline.text.stream import Release

P = ParamSpec("P")

LONG_ANSWER: Final = 2_048
"""Tokens with log-probabilities beyond which a body is written in a thread."""


@dataclass(frozen=True, slots=True)
class Header:
    """What every body of one answer repeats."""

    id: str
    created: int
    model: str
    fingerprint: str

    @classmethod
    def of(cls, model: Model, answer_id: str) -> "Header":
        """Of an answer that begins now."""
        return cls(answer_id, int(time.time()), model.name, model.fingerprint)


@dataclass(frozen=True, slots=True)
class Collected:
    """All of one choice."""

    begun: Begun
    ended: Ended
    releases: list[Release] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Of the outputs."""
        return "".join(release.text for release in self.releases)

    @property
    def ids(self) -> list[int]:
        """Of the outputs."""
        return [token for release in self.releases for token in release.ids]

    @property
    def offsets(self) -> list[int]:
        """For each id the characters of the outputs' text before it."""
        return [offset for release in self.releases for offset in release.offsets]

    @property
    def logprobs(self) -> list[TokenLogprobs]:
        """One an id where they were asked for."""
        return [each for release in self.releases for each in release.logprobs]


class Render(Protocol):
    """The bodies of an endpoint.

    begins  whether a stream has an event at the beginning of each choice
    plain   whether an event with new text shows nothing else of it
    """

    @property
    def begins(self) -> bool: ...

    @property
    def plain(self) -> bool: ...

    def begin(self, begun: Begun, usage: wire.Usage | None) -> msgspec.Struct: ...

    def show(self, shown: Shown, usage: wire.Usage | None) -> msgspec.Struct: ...

    def end(self, ended: Ended, usage: wire.Usage | None) -> msgspec.Struct: ...

    def total(self, usage: wire.Usage) -> msgspec.Struct: ...

    def whole(self, found: list[Collected], usage: wire.Usage) -> msgspec.Struct: ...


async def respond(request: Request, source: Source, render: Render, streaming: Streaming | None) -> Response:
    """The answer; without `streaming` when it is whole. The source is aborted whatever happens."""
    if streaming is not None:
        return EventStream(_events(source, render, streaming), source.abort)
    try:
        return Response(await unless_disconnected(request.receive, _whole(source, render)), media_type="application/json")
    finally:
        source.abort()


async def collect(source: Source) -> list[Collected]:
    """All choices, in order."""
    begun: dict[int, Begun] = {}
    releases: dict[int, list[Release]] = {}
    found: dict[int, Collected] = {}
    async with aclosing(source.pieces()) as pieces:
        async for piece in pieces:
            match piece:
                case Begun():
                    begun[piece.index] = piece
                case Shown():
                    releases.setdefault(piece.index, []).append(piece.release)
                case Ended():
                    found[piece.index] = Collected(begun[piece.index], piece, releases.pop(piece.index, []))
    return [found[index] for index in sorted(found)]


async def _whole(source: Source, render: Render) -> bytes:
    found = await collect(source)
    tokens = sum(len(each.begun.prompt_logprobs) + len(each.ids) for each in found)
    return await _encoded(tokens, render.whole, found, _usage(source.tally, final=True))


async def _events(source: Source, render: Render, streaming: Streaming) -> AsyncGenerator[bytes, None]:
    texts = TextEvents(lambda shown: render.show(shown, None)) if render.plain and not streaming.continuous else None
    async with aclosing(source.pieces(streaming.quiet_seconds)) as pieces:
        async for piece in pieces:
            if texts is not None and isinstance(piece, Shown):
                yield texts.body(piece)
                continue
            usage = _usage(source.tally) if streaming.continuous else None
            match piece:
                case Begun() if render.begins:
                    yield await _encoded(len(piece.prompt_logprobs), render.begin, piece, usage)
                case Shown():
                    yield msgspec.json.encode(render.show(piece, usage))
                case Ended():
                    yield msgspec.json.encode(render.end(piece, usage))
                case Quiet():
                    yield KEEP_ALIVE
    if streaming.usage:
        yield msgspec.json.encode(render.total(_usage(source.tally, final=True)))


async def _encoded(tokens: int, form: Callable[P, msgspec.Struct], *arguments: P.args, **more: P.kwargs) -> bytes:
    """A body that is about so many tokens, made in a thread where that would hold up other requests."""

    def encode() -> bytes:
        return msgspec.json.encode(form(*arguments, **more))

    return await asyncio.to_thread(encode) if tokens > LONG_ANSWER else encode()


def _usage(tally: Tally, final: bool = False) -> wire.Usage:
    """How much of the prompt was cached is known at the end."""
    prompt, completion = tally.prompt_tokens, tally.completion_tokens
    return wire.Usage(prompt, completion, prompt + completion, wire.PromptTokensDetails(tally.cached_tokens) if final else None)
