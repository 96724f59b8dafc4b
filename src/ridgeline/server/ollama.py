"""`/api/chat` and `/api/generate`: Ollama's API over the same conversations, limits and generation as chat and completions.

Owns the bodies of answers and their durations. How a request becomes a chat is `server.ollama_chat`'s; models are `server.ollama_models`'s.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline.engine.answer import ChoiceDelta, ChoiceEnd, ChoiceStart, CollectedChoice
from ridgeline.server import body, fields, replies
from ridgeline.server.answer import AnswerSource, UsageCounter, respond
from ridgeline.server.chat import start_chat
from ridgeline.server.completions import start_completion
from ridgeline.server.logprobs import TokenNames, chat_logprobs
from ridgeline.server.message_blocks import written_object
from ridgeline.server.notes import Notes
from ridgeline.server.ollama_chat import NAMES, as_chat, as_completion, plain_name, prompt_as_chat
from ridgeline.server.ollama_shapes import (
    AnswerMessage,
    Call,
    ChatAnswer,
    ChatRequest,
    GenerateAnswer,
    GenerateRequest,
    OllamaCalledFunction,
)
from ridgeline.server.service import Service
from ridgeline.server.spoken import Speaker
from ridgeline.server.transport import OLLAMA_LINES, client_of, json_response, read_body
from ridgeline.text.stream import TextDelta
from ridgeline.text.tools.hearing import Reading
from ridgeline.text.tools.parser import CallArguments, CallBegin, CallEnd, Text, Thought

UNLOADS_KEY: Final = "ridgeline.unloads"
"""Key in a scope: its model is unloaded behind the answer."""


def routes(service: Service) -> list[BaseRoute]:
    """The routes of this family."""

    async def chat(request: Request) -> Response:
        payload, notes = fields.OLLAMA_CHAT.read(await read_body(request))
        notes.client = client_of(request)
        service.deployments.check_name(plain_name(payload.model), takes_adapters=True)
        if not payload.messages:
            return _loaded(request, payload)
        with body.told_as(NAMES):
            begun = await start_chat(service, as_chat(payload, service.model.limits.max_model_len, notes), notes, clips=True)
        return await answer(request, payload, begun.source, begun.reading, notes)

    async def generate(request: Request) -> Response:
        payload, notes = fields.OLLAMA_GENERATE.read(await read_body(request))
        notes.client = client_of(request)
        service.deployments.check_name(plain_name(payload.model), takes_adapters=True)
        if not payload.prompt:
            return _loaded(request, payload)
        template, context = service.model.chat, service.model.limits.max_model_len
        with body.told_as(NAMES):
            if payload.raw or payload.suffix or template is None or not template.is_usable:
                source = (await start_completion(service, as_completion(payload, context, notes), notes, clips=True)).source
                return await answer(request, payload, source, None, notes)
            begun = await start_chat(service, prompt_as_chat(payload, context, notes), notes, clips=True)
        return await answer(request, payload, begun.source, begun.reading, notes)

    async def answer(
        request: Request, payload: ChatRequest | GenerateRequest, source: AnswerSource, reading: Reading | None, notes: Notes
    ) -> Response:
        names = TokenNames(service.model.tokenizer, False)
        form = OllamaFormat(
            payload.model or "", isinstance(payload, ChatRequest), names, bool(payload.logprobs), source.usage, notes,
            None if reading is None else Speaker(reading),
        )  # fmt: skip
        streaming = None if payload.stream is False else body.StreamSettings(False, False, service.config.sse_keep_alive_interval)
        return await respond(request, source, form, 1, streaming, notes, OLLAMA_LINES)

    return [Route("/api/chat", chat, methods=["POST"]), Route("/api/generate", generate, methods=["POST"])]


def _loaded(request: Request, payload: ChatRequest | GenerateRequest) -> Response:
    """The answer to a request without a prompt, by which clients have a model loaded, or, with `keep_alive: 0`, unloaded: behind it."""
    made = _answer(isinstance(payload, ChatRequest), _Said())
    reason = "unload" if UNLOADS_KEY in request.scope else "load"
    return json_response(made(model=payload.model or "", created_at=timestamp(), done=True, done_reason=reason))


def timestamp() -> str:
    """Now, as RFC 3339."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass(slots=True)
class _Said:
    """Part of an answer, by kind. calls: whole ones."""

    content: str = ""
    thinking: str = ""
    calls: list[Call] | None = None


@dataclass(slots=True)
class OllamaFormat:
    """The bodies of one answer.

    model    as the request names it
    is_chat  its text is a message; else a response
    counter  of its usage
    speaker  reads reasoning and calls from the text; None: it is text as it is
    """

    model: str
    is_chat: bool
    names: TokenNames
    logprobs: bool
    counter: UsageCounter
    notes: Notes
    speaker: Speaker | None
    _begun: CallBegin | None = None
    _arguments: str = ""
    _created_at: str = ""

    @property
    def has_start_event(self) -> bool:
        """False: a stream begins with text."""
        return False

    @property
    def is_text_only(self) -> bool:
        """True if no log-probabilities are asked for, and text is content as it is."""
        return not self.logprobs and self.speaker is None

    def start_event(self, start: ChoiceStart, usage: replies.Usage | None) -> msgspec.Struct:
        """Never asked for."""
        raise NotImplementedError

    def delta_event(self, delta: ChoiceDelta, usage: replies.Usage | None) -> msgspec.Struct | None:
        """A line with new text; None where nothing of it can be told yet."""
        said = self._hear(delta.delta)
        if said == _Said() and not self.logprobs:
            return None
        return self._part(said, delta.delta)

    def end_event(self, end: ChoiceEnd, last: ChoiceDelta | None, usage: replies.Usage | None) -> msgspec.Struct:
        """The last line, with the last text."""
        delta = TextDelta(0) if last is None else last.delta
        self._created_at = timestamp()
        return self._part(self._hear(delta, is_last=True), delta, end)

    def usage_event(self, usage: replies.Usage) -> msgspec.Struct:
        """Never asked for: the last line has the usage."""
        raise NotImplementedError

    def full_body(self, choices: Sequence[CollectedChoice], usage: replies.Usage) -> msgspec.Struct:
        """The whole answer."""
        (choice,) = choices
        whole = _Said()
        for each in (*(self._hear(delta) for delta in choice.deltas), self._hear(TextDelta(0), is_last=True)):
            whole.content, whole.thinking = whole.content + each.content, whole.thinking + each.thinking
            whole.calls = [*(whole.calls or ()), *(each.calls or ())] or None
        return self._part(whole, choice, choice.end)

    def _hear(self, delta: TextDelta, is_last: bool = False) -> _Said:
        """The part that has become final with these tokens. A call is told when it is whole; one that the end cuts off is left out."""
        if self.speaker is None:
            return _Said(delta.text)
        said = _Said()
        for event in self.speaker.hear(delta, is_last):
            match event:
                case Text():
                    said.content += event.text
                case Thought():
                    said.thinking += event.text
                case CallBegin():
                    self._begun, self._arguments = event, ""
                case CallArguments():
                    self._arguments += event.text
                case CallEnd() if self._begun is not None:
                    function = OllamaCalledFunction(self._begun.name, written_object(self._arguments))
                    said.calls = [*(said.calls or ()), Call(function, self._begun.id)]
        return said

    def _part(self, said: _Said, tokens: TextDelta | CollectedChoice, end: ChoiceEnd | None = None) -> msgspec.Struct:
        """A part of the answer; the last has why it ended, counts and durations."""
        self._created_at = self._created_at or timestamp()
        logprobs = chat_logprobs(self.names, tokens.ids, tokens.logprobs).content if self.logprobs and tokens.ids else None
        made = _answer(self.is_chat, said)
        if end is None:
            return made(model=self.model, created_at=self._created_at, done=False, logprobs=logprobs)
        now, arrived = time.monotonic(), self.notes.arrived
        tokenised = self.notes.tokenised or arrived
        first = self.counter.first_token_at or now
        return made(
            model=self.model, created_at=self._created_at, done=True, logprobs=logprobs, done_reason=end.reason.value,
            total_duration=nanoseconds(now - arrived), load_duration=nanoseconds(tokenised - arrived),
            prompt_eval_count=self.counter.prompt_tokens, prompt_eval_duration=nanoseconds(first - tokenised),
            eval_count=self.counter.completion_tokens, eval_duration=nanoseconds(now - first),
        )  # fmt: skip


def nanoseconds(seconds: float) -> int:
    """A duration as Ollama tells it."""
    return int(seconds * 1e9)


def _answer(is_chat: bool, said: _Said) -> Callable[..., msgspec.Struct]:
    """A maker of answers with this content, of the fields that chats and completions have in common."""
    if is_chat:
        return partial(ChatAnswer, message=AnswerMessage("assistant", said.content, said.thinking or None, said.calls))
    return partial(GenerateAnswer, response=said.content, thinking=said.thinking or None)
