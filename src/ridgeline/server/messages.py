"""`/v1/messages` and `/v1/messages/count_tokens`: Anthropic's API over the same conversations, limits and generation as chat.

Owns the bodies of answers and the order of a stream. How a request becomes a chat is `server.anthropic_chat`'s, what an answer's blocks are
`server.message_blocks`'s.
"""

import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline.core.events import Finish
from ridgeline.engine.admit import BOUNDS
from ridgeline.engine.answer import ChoiceDelta, ChoiceEnd, ChoiceStart
from ridgeline.errors import RequestError
from ridgeline.server import anthropic, fields
from ridgeline.server.answer import AnswerSource, Idle, TextEvents, UsageCounter, collect, deliver
from ridgeline.server.anthropic_chat import as_chat
from ridgeline.server.chat import start_chat
from ridgeline.server.chat_prompts import tokenise_chat
from ridgeline.server.errors import ApiError, as_api_error
from ridgeline.server.message_blocks import BlockEvents, ThinkingForm, whole_blocks
from ridgeline.server.service import Service
from ridgeline.server.shortcut import Shortcut
from ridgeline.server.spoken import Speaker
from ridgeline.server.transport import (
    ANTHROPIC_EVENTS,
    KEEP_ALIVE,
    EventStream,
    client_of,
    encode_event,
    event_start,
    json_response,
    read_body,
)
from ridgeline.text.stream import TextDelta
from ridgeline.text.tools.parser import Event as Said
from ridgeline.text.tools.parser import Text


def routes(service: Service) -> list[BaseRoute]:
    """The routes of this family."""

    async def messages(request: Request) -> Response:
        payload, notes = fields.MESSAGES.read(await read_body(request))
        notes.client = client_of(request)
        _check_thread(payload)
        _check_max_tokens(payload)
        model = service.model
        service.deployments.check_name(payload.model, takes_adapters=True)
        with _client_field_names():
            begun = await start_chat(service, as_chat(payload, model.chat, notes), notes, clips=True)
        source, reading = begun.source, begun.reading
        is_omitted = payload.thinking is not None and payload.thinking.display == "omitted"
        thinking = ThinkingForm(f"sig_{source.id}", is_omitted)
        form = MessageFormat(f"msg_{source.id}", model.name, begun.is_cut, None if reading is None else Speaker(reading), thinking)
        stream = None
        if payload.stream:
            teller = Teller(form)
            source.shortcut = Shortcut(teller.tell)
            events = _events(source, form, service.config.sse_keep_alive_interval, teller)
            stream = EventStream(events, source.abort, ANTHROPIC_EVENTS)
        return await deliver(request, source, notes, stream, lambda: _whole(source, form))

    async def count_tokens(request: Request) -> Response:
        payload, notes = fields.COUNT_TOKENS.read(await read_body(request))
        _check_thread(payload)
        model = service.model
        service.deployments.check_name(payload.model, takes_adapters=True)
        with _client_field_names():
            prompt = await tokenise_chat(as_chat(payload, model.chat, notes), model, notes)
        answer = json_response(anthropic.TokenCount(len(prompt)))
        answer.headers.update(notes.tell())
        return answer

    return [
        Route("/v1/messages", messages, methods=["POST"]),
        Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
    ]


# ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_thread(payload: anthropic.CountTokensRequest) -> None:
    """Raises ApiError where a conversation would be kept here, by whose details clients know to send all of it with every request."""
    if payload.thread is not None:
        details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
        message = "thread: conversations are not kept here; leave it out, and send all messages with every request"
        raise ApiError("unsupported_parameter", message, param="thread", details=details)


def _check_max_tokens(payload: anthropic.MessagesRequest) -> None:
    """Raises ApiError where the length, which must be stated, is not, or is none."""
    bound, most = BOUNDS["max_tokens"], payload.max_tokens
    if most is None:
        raise ApiError("missing_field", "max_tokens is missing; send the most tokens that the answer may have", param="max_tokens")
    if not bound.low <= most <= bound.high:
        message = f"max_tokens is out of range; it must be at least {bound.low} and at most {bound.high}"
        raise ApiError("invalid_value", message, param="max_tokens")


_CLIENT_NAMES: Final = {"stop": "stop_sequences", "response_format": "output_config.format", "parameters": "input_schema"}
"""Names of a chat's fields → those that the client sent."""
_CHAT_NAME: Final = re.compile(rf"\b({'|'.join(_CLIENT_NAMES)})\b")
_CHAT_CHOICE: Final = re.compile(r'tool_choice: "(\w+)"')


@contextmanager
def _client_field_names() -> Iterator[None]:
    """Makes errors about a chat name the fields that the client sent."""
    try:
        yield
    except (ApiError, RequestError) as caught:
        error = as_api_error(caught)
        message = _CHAT_NAME.sub(lambda found: _CLIENT_NAMES[found[0]], error.message)
        message = _CHAT_CHOICE.sub(r'tool_choice: {"type": "\1"}', message)
        raise ApiError(error.code, message, param=_CLIENT_NAMES.get(error.param or "", error.param), headers=error.headers) from None


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """The bodies of one answer.

    is_cut   the context has less room than `max_tokens`
    speaker  reads reasoning and calls from the text; None: it is text as it is
    thinking  how its reasoning is told
    """

    id: str
    model: str
    is_cut: bool
    speaker: Speaker | None
    thinking: ThinkingForm

    def hear(self, delta: TextDelta | None, is_last: bool = False) -> list[Said]:
        """Events that have become final with these tokens."""
        if self.speaker is not None:
            return self.speaker.hear(delta, is_last)
        return [Text(delta.text)] if delta is not None and delta.text else []

    def message(self, content: list[anthropic.Block], end: anthropic.MessageEnd | None, usage: anthropic.MessageUsage) -> anthropic.Message:
        """The answer; without content and end as a stream begins."""
        reason, sequence = (end.stop_reason, end.stop_sequence) if end else (None, None)
        return anthropic.Message(self.id, self.model, content, reason, sequence, usage)

    def end(self, end: ChoiceEnd) -> anthropic.MessageEnd:
        """The reason why the answer ended, when all of it has been heard."""
        if end.reason is Finish.LENGTH:
            return anthropic.MessageEnd("model_context_window_exceeded" if self.is_cut else "max_tokens", None)
        if self.speaker is not None and self.speaker.has_called:
            return anthropic.MessageEnd("tool_use", None)
        if isinstance(end.stop_reason, str):
            return anthropic.MessageEnd("stop_sequence", end.stop_reason)
        return anthropic.MessageEnd("end_turn", None)

    def usage(self, counter: UsageCounter, is_final: bool = True) -> anthropic.MessageUsage:
        """The usage so far; what was thought is known at the end."""
        cached, details = counter.cached_tokens if is_final else counter.cached_at_start, None
        if is_final and self.speaker is not None and self.speaker.can_reason:
            details = anthropic.OutputTokensDetails(self.speaker.reasoning_tokens)
        return anthropic.MessageUsage(counter.prompt_tokens - cached, 0, cached, counter.completion_tokens, details)


async def _whole(source: AnswerSource, form: MessageFormat) -> bytes:
    (choice,) = await collect(source, 1)
    said = [*chain.from_iterable(form.hear(delta) for delta in choice.deltas), *form.hear(None, is_last=True)]
    content = whole_blocks(said, form.thinking)
    return msgspec.json.encode(form.message(content, form.end(choice.end), form.usage(source.usage)))


class Teller:
    """The events of one stream's new text, for its task and for its short way."""

    def __init__(self, form: MessageFormat) -> None:
        self._form = form
        self.blocks = BlockEvents(form.thinking)
        self._texts = TextEvents(_text_event) if form.speaker is None else None

    def tell(self, part: ChoiceDelta) -> Sequence[bytes]:
        """The events, encoded."""
        if self._texts is not None and self.blocks.has_begun:
            return (_NEW_TEXT + self._texts.encode(part),) if part.delta.text else ()
        return [encode_event(event) for event in self.blocks.tell(self._form.hear(part.delta))]


async def _events(
    source: AnswerSource, form: MessageFormat, keep_alive_seconds: float, teller: Teller
) -> AsyncGenerator[bytes, None]:  # fmt: skip
    blocks = teller.blocks
    async with aclosing(source.parts(keep_alive_seconds)) as parts:
        async for part in parts:
            match part:
                case ChoiceStart():  # from here on it is known what of the prompt was cached
                    yield encode_event(anthropic.MessageStart(form.message([], None, form.usage(source.usage, is_final=False))))
                    yield encode_event(anthropic.Ping())
                case ChoiceDelta():
                    for told in teller.tell(part):
                        yield told
                case ChoiceEnd():
                    for event in (*blocks.tell(form.hear(None, is_last=True)), *blocks.finish()):
                        yield encode_event(event)
                    yield encode_event(anthropic.MessageDelta(form.end(part), form.usage(source.usage)))
                case Idle():
                    yield KEEP_ALIVE
    yield encode_event(anthropic.MessageStop())


def _text_event(delta: ChoiceDelta) -> anthropic.ContentBlockDelta:
    return anthropic.ContentBlockDelta(0, anthropic.NewText(delta.delta.text))


_NEW_TEXT: Final = event_start(anthropic.ContentBlockDelta)
