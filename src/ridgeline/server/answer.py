"""The answer to an HTTP request, built from a source's parts, whole or as a stream, for every endpoint alike.

Owns the order of a stream (of each choice its start, its text, its end; then usage), the counting of usage, and the choice
among `best_of`, by likelihood or by a vote.
The bodies are the endpoint's.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, ParamSpec, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ridgeline.core.events import Finish
from ridgeline.core.params import Vote
from ridgeline.engine import answer
from ridgeline.engine.answer import ChoiceDelta, ChoiceEnd, ChoiceStart, CollectedChoice
from ridgeline.engine.voting import elect
from ridgeline.server import replies
from ridgeline.server.access import note_usage
from ridgeline.server.body import StreamSettings
from ridgeline.server.loading import Model
from ridgeline.server.notes import Notes
from ridgeline.server.relay import Relay
from ridgeline.server.routers import answer_created
from ridgeline.server.shortcut import Shortcut
from ridgeline.server.transport import KEEP_ALIVE, OPENAI_EVENTS, EventGrammar, EventStream, unless_disconnected
from ridgeline.text.stream import TextDelta

P = ParamSpec("P")

_ENCODE: Final = msgspec.json.Encoder().encode

LONG_ANSWER_TOKENS: Final = 2_048
"""Tokens with log-probabilities beyond which a body is encoded in a thread."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing new of any choice for as long as was asked."""


Part = answer.AnswerPart | Idle


@dataclass(slots=True)
class UsageCounter:
    """Usage of one HTTP request so far: each prompt once, however many choices it has; outputs of all choices."""

    choices_per_prompt: int
    prompt_tokens: int
    cached_tokens: int = 0
    cached_at_start: int = 0
    """Cached tokens of the first prompt, when its first output came; `cached_tokens` is known at the end."""
    request_ids: tuple[str, ...] = ()
    time_spent: Callable[[], replies.TimeSpent | None] = lambda: None
    """Asked at the end."""
    continued: int = 0
    """Engines that went on with it after one had ended."""
    first_token_at: float | None = None
    """Time of the first output, by `time.monotonic`; the start of a choice comes with it."""
    _completion: dict[int, int] = field(default_factory=dict)
    _finish_reasons: dict[str, None] = field(default_factory=dict)

    def add(self, part: Part) -> None:
        """Counts ids as they are answered; at its end a choice counts what the engine says."""
        if isinstance(part, ChoiceDelta):
            self.count(part.index, len(part.delta.ids))
        elif isinstance(part, ChoiceEnd):
            self._finish_reasons[part.reason.value] = None
            self._completion[part.index] = part.usage.completion_tokens
            if part.index % self.choices_per_prompt == 0:
                self.cached_tokens += part.usage.cached_tokens
        else:
            self.begin()

    def begin(self) -> None:
        """An output has come, or a choice that has none is at its end."""
        if self.first_token_at is None:
            self.first_token_at = time.monotonic()

    def count(self, index: int, tokens: int) -> None:
        """Counts ids of a choice that are answered, or will not be."""
        self._completion[index] = self._completion.get(index, 0) + tokens

    def finish(self, reason: Finish) -> None:
        """Notes why a choice that has no parts has ended."""
        self._finish_reasons[reason.value] = None

    @property
    def completion_tokens(self) -> int:
        """Sum over all choices."""
        return sum(self._completion.values())

    @property
    def finish_reasons(self) -> list[str]:
        """Each reason for which a choice has ended, once."""
        return list(self._finish_reasons)

    def usage(self, final: bool = False) -> replies.Usage:
        """The usage so far; the cached part of the prompt is known at the end."""
        prompt, completion = self.prompt_tokens, self.completion_tokens
        if not final:
            return replies.Usage(prompt, completion, prompt + completion)
        cached = replies.PromptTokensDetails(self.cached_tokens)
        return replies.Usage(prompt, completion, prompt + completion, cached, ridgeline=self.time_spent())


class AnswerSource(Protocol):
    """Yields the parts of one HTTP request's answer. `abort` it whatever happens. `relay`: a router is told of what it is made of;
    `shortcut`: the short way of its new text, where it has one; `may_be_refused`: the first part may be that there is no room for it."""

    id: str
    usage: UsageCounter
    relay: Relay | None
    shortcut: Shortcut | None
    may_be_refused: bool

    def parts(self, idle_seconds: float | None = None, *, whole: bool = False) -> AsyncGenerator[Part, None]: ...

    def abort(self) -> None: ...


async def collect(source: AnswerSource, n: int, vote: Vote | None = None) -> list[CollectedChoice]:
    """All choices, in order; where more were computed than the `n` to be answered per prompt, the likeliest, likeliest first, or the
    one that a vote elects."""
    found: dict[int, CollectedChoice] = {}
    async with aclosing(source.parts(whole=True)) as parts:
        async for part in parts:
            if not isinstance(part, Idle):
                found.setdefault(part.index, CollectedChoice()).add(part)
    computed, kept = source.usage.choices_per_prompt, list[CollectedChoice]()
    for prompt, indices in groupby(sorted(found), lambda index: index // computed):
        choices = [found[index] for index in indices]
        if computed > n:
            cumulative = [each.end.cumulative_logprob or 0.0 for each in choices]
            if vote is None:
                choices = [choices[index] for index in answer.best_indices(cumulative, n)]
            else:
                index, election = await asyncio.to_thread(elect, vote, [each.text for each in choices], cumulative)
                choices = [choices[index]]
                choices[0].election = election
            for rank, each in enumerate(choices):
                each.renumber(prompt * n + rank)
        kept += choices
    return kept


@dataclass(frozen=True, slots=True)
class Header:
    """The fields that every body of one answer repeats."""

    id: str
    created: int
    model: str
    fingerprint: str

    @classmethod
    def make(cls, model: Model, answer_id: str) -> "Header":
        """The header of an answer that begins now."""
        return cls(answer_id, answer_created(), model.name, model.fingerprint)


class AnswerFormat(Protocol):
    """The bodies of an endpoint.

    has_start_event  a stream has an event at the start of each choice
    is_text_only     an event with new text contains nothing else of it
    delta_event      None where there is nothing to tell yet
    """

    @property
    def has_start_event(self) -> bool: ...

    @property
    def is_text_only(self) -> bool: ...

    def start_event(self, start: ChoiceStart, usage: replies.Usage | None) -> msgspec.Struct: ...

    def delta_event(self, delta: ChoiceDelta, usage: replies.Usage | None) -> msgspec.Struct | None: ...

    def end_event(self, end: ChoiceEnd, last: ChoiceDelta | None, usage: replies.Usage | None) -> msgspec.Struct: ...

    def usage_event(self, usage: replies.Usage) -> msgspec.Struct: ...

    def full_body(self, choices: list[CollectedChoice], usage: replies.Usage) -> msgspec.Struct: ...


async def respond(
    request: Request, source: AnswerSource, form: AnswerFormat, n: int, streaming: StreamSettings | None, notes: Notes,
    grammar: EventGrammar = OPENAI_EVENTS, vote: Vote | None = None,
) -> Response:  # fmt: skip
    """The answer of `n` choices per prompt, or of one that a vote elects; without `streaming` when it is whole. The source is aborted
    whatever happens."""
    stream = None
    if streaming is not None:
        teller = Teller(source, form, streaming)
        source.shortcut = Shortcut(teller.tell)
        stream = EventStream(_events(source, form, streaming, teller), source.abort, grammar)
    return await deliver(request, source, notes, stream, lambda: _full_answer(source, form, n, vote))


async def deliver(
    request: Request, source: AnswerSource, notes: Notes, stream: EventStream | None, whole: Callable[[], Coroutine[Any, Any, bytes]]
) -> Response:
    """The stream, or else the whole answer as JSON. The source is aborted whatever happens; a stream does that at its end."""
    note_usage(request.scope, source.usage)
    headers = notes.tell()
    if stream is None or not (stream.has_comments or (source.relay is not None and source.relay.marks_lines)):
        source.relay = None
    if stream is not None:
        stream.relay, stream.shortcut, stream.waits = source.relay, source.shortcut, source.may_be_refused
        stream.headers.update(headers)
        return stream
    try:
        answer = await unless_disconnected(request.scope, whole())
        return Response(answer, headers=headers, media_type="application/json")
    finally:
        source.abort()


async def _full_answer(source: AnswerSource, form: AnswerFormat, n: int, vote: Vote | None) -> bytes:
    choices = await collect(source, n, vote)
    tokens = sum(len(each.start.prompt_logprobs) + len(each.ids) for each in choices)
    return await _encoded(tokens, form.full_body, choices, source.usage.usage(final=True))


class Teller:
    """The events of one stream's new text, for its task and for its short way."""

    def __init__(self, source: AnswerSource, form: AnswerFormat, streaming: StreamSettings) -> None:
        self._usage = source.usage.usage if streaming.continuous_usage else lambda: None
        self._form = form
        is_text = form.is_text_only and not streaming.continuous_usage
        self._texts = TextEvents(lambda delta: form.delta_event(delta, None)) if is_text else None
        self.last: dict[int, ChoiceDelta] = {}
        """Last parts of choices, whose events say why these ended."""

    def tell(self, part: ChoiceDelta) -> Sequence[bytes]:
        """The events, encoded."""
        if part.is_last:
            self.last[part.index] = part
            return ()
        if self._texts is not None:
            return (self._texts.encode(part),)
        event = self._form.delta_event(part, self._usage())
        return () if event is None else (_ENCODE(event),)


async def _events(source: AnswerSource, form: AnswerFormat, streaming: StreamSettings, teller: Teller) -> AsyncGenerator[bytes, None]:
    async with aclosing(source.parts(streaming.keep_alive_seconds)) as parts:
        async for part in parts:
            if isinstance(part, ChoiceDelta):
                for event in teller.tell(part):
                    yield event
                continue
            usage = source.usage.usage() if streaming.continuous_usage else None
            match part:
                case ChoiceStart() if form.has_start_event:
                    yield await _encoded(len(part.prompt_logprobs), form.start_event, part, usage)
                case ChoiceEnd():
                    yield _ENCODE(form.end_event(part, teller.last.pop(part.index, None), usage))
                case Idle():
                    yield KEEP_ALIVE
    if streaming.final_usage:
        yield _ENCODE(form.usage_event(source.usage.usage(final=True)))


async def _encoded(tokens: int, make: Callable[P, msgspec.Struct], *arguments: P.args, **more: P.kwargs) -> bytes:
    """A body with log-probabilities of that many tokens, made in a thread where that would hold up other requests."""

    def encode() -> bytes:
        return _ENCODE(make(*arguments, **more))

    return await asyncio.to_thread(encode) if tokens > LONG_ANSWER_TOKENS else encode()


class TextEvents:
    """Encodes the events of one stream that contain nothing but text: all that stands around the text is encoded once per choice.

    `make_event` makes the event of new text; of one choice they differ in their text alone.
    """

    def __init__(self, make_event: Callable[[ChoiceDelta], msgspec.Struct | None]) -> None:
        self._make_event = make_event
        self._affixes: dict[int, tuple[bytes, bytes]] = {}

    def encode(self, delta: ChoiceDelta) -> bytes:
        """The event as JSON: the same bytes as those of `make_event`, encoded."""
        affixes = self._affixes.get(delta.index)
        if affixes is None:
            affixes = self._affixes[delta.index] = self._prefix_and_suffix(delta.index)
        return affixes[0] + _ENCODE(delta.delta.text) + affixes[1]

    def _prefix_and_suffix(self, index: int) -> tuple[bytes, bytes]:
        """Bytes before and after the text. Bodies with two texts of one character differ first in that character, which is in quotes."""
        first, second = (_ENCODE(self._make_event(ChoiceDelta(index, TextDelta(0, texts=(text,))))) for text in "01")
        at = next(at for at, (one, other) in enumerate(zip(first, second, strict=True)) if one != other)
        return first[: at - 1], first[at + 2 :]
