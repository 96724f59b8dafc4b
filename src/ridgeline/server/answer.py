"""The answer to an HTTP request, made of a source's pieces, whole or as a stream, for every endpoint alike. Bodies are the endpoint's.

Owns the order of a stream (of each choice a beginning, its text, its end; usage) and how tokens are written in answers: their names, the
text of a prompt token by token, log-probabilities by id.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, ParamSpec, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ridgeline.core.plan import TokenLogprobs
from ridgeline.engine.answer import Begun, Collected, Ended, Shown
from ridgeline.server import wire
from ridgeline.server.body import Streaming
from ridgeline.server.generate import Quiet, Source, Tally, collect
from ridgeline.server.service import Model
from ridgeline.server.transport import KEEP_ALIVE, EventStream, unless_disconnected
from ridgeline.text.stream import Release, token_text
from ridgeline.text.tokenizer import Tokenizer

P = ParamSpec("P")

_ENCODE: Final = msgspec.json.Encoder().encode

LONG_ANSWER: Final = 2_048
"""Tokens with log-probabilities beyond which a body is written in a thread."""


@dataclass(frozen=True, slots=True)
class Header:
    """The fields that every body of one answer repeats."""

    id: str
    created: int
    model: str
    fingerprint: str

    @classmethod
    def of(cls, model: Model, answer_id: str) -> "Header":
        """The header of an answer that begins now."""
        return cls(answer_id, int(time.time()), model.name, model.fingerprint)


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


async def respond(request: Request, source: Source, render: Render, n: int, streaming: Streaming | None) -> Response:
    """The answer of `n` choices per prompt; without `streaming` when it is whole. The source is aborted whatever happens."""
    if streaming is not None:
        return EventStream(_events(source, render, streaming), source.abort)
    try:
        return Response(await unless_disconnected(request.receive, _whole(source, render, n)), media_type="application/json")
    finally:
        source.abort()


async def _whole(source: Source, render: Render, n: int) -> bytes:
    found = await collect(source, n)
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
    """The usage so far; how much of the prompt was cached is known at the end."""
    prompt, completion = tally.prompt_tokens, tally.completion_tokens
    return wire.Usage(prompt, completion, prompt + completion, wire.PromptTokensDetails(tally.cached_tokens) if final else None)


class TextEvents:
    """The events of one stream that show nothing but text: all that stands around the text is encoded once per choice.

    `form` makes the event of new text; of one choice they differ in their text alone.
    """

    def __init__(self, form: Callable[[Shown], msgspec.Struct]) -> None:
        self._form = form
        self._around: dict[int, tuple[bytes, bytes]] = {}

    def body(self, shown: Shown) -> bytes:
        """The event as JSON: what `form` makes, encoded."""
        around = self._around.get(shown.index)
        if around is None:
            around = self._around[shown.index] = self._cut(shown.index)
        return around[0] + _ENCODE(shown.release.text) + around[1]

    def _cut(self, index: int) -> tuple[bytes, bytes]:
        """Before and behind the text. Bodies with two texts of one character differ first in that character, which stands in quotes."""
        first, second = (_ENCODE(self._form(Shown(index, Release(0, texts=(text,))))) for text in "01")
        at = next(at for at, (one, other) in enumerate(zip(first, second, strict=True)) if one != other)
        return first[: at - 1], first[at + 2 :]


@dataclass(frozen=True, slots=True)
class Spelling:
    """Names of tokens in log-probabilities. `as_ids`: `token_id:123` instead of text, which two tokens may share."""

    tokenizer: Tokenizer
    as_ids: bool

    def name(self, token: int) -> str:
        """One token's."""
        return f"token_id:{token}" if self.as_ids else token_text(self.tokenizer, token)

    def ranked(self, found: Sequence[TokenLogprobs | None], ids: Sequence[int], best: int) -> wire.PromptLogprobs:
        """vLLM's form: for each token the `best` likeliest ids and its own, by id; null for the first of a prompt."""
        return [None if each is None else self._by_id(token, each, best) for token, each in zip(ids, found, strict=True)]

    def _by_id(self, token: int, found: TokenLogprobs, best: int) -> dict[int, wire.PromptLogprob]:
        top = found.top[:best]
        rank = next((place for place, (other, _) in enumerate(found.top, 1) if other == token), None)
        own = {token: wire.PromptLogprob(found.logprob, rank, self.name(token))}
        return own | {other: wire.PromptLogprob(value, place, self.name(other)) for place, (other, value) in enumerate(top, 1)}
