"""`/v1/messages` and `/v1/messages/count_tokens`: Anthropic's API over the same conversations, limits and generation as chat.

Owns how a request becomes a chat, what its fields mean beyond chat's, and the events of its streams. Blocks are text; others are refused by
their type.
"""

import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline.core.events import Finish
from ridgeline.engine.admit import BOUNDS
from ridgeline.engine.answer import ChoiceDelta, ChoiceEnd
from ridgeline.errors import RequestError
from ridgeline.server import anthropic, body, fields, wire
from ridgeline.server.answer import AnswerSource, Idle, TextEvents, UsageCounter, collect, deliver
from ridgeline.server.chat import tokenise_chat
from ridgeline.server.errors import ApiError
from ridgeline.server.generate import start_generation
from ridgeline.server.service import Service
from ridgeline.server.transport import ANTHROPIC_EVENTS, KEEP_ALIVE, EventStream, client_of, json_response, read_body
from ridgeline.text.chat_content import MAX_MESSAGES

BILLING: Final = re.compile(r"^x-anthropic-billing-header:.*\n?", re.MULTILINE)
"""A line that some clients write into the system text. It differs from request to request: no prefix of a prompt would be found again."""


def routes(service: Service) -> list[BaseRoute]:
    """The routes of this family."""

    async def messages(request: Request) -> Response:
        payload, notes = fields.MESSAGES.read(await read_body(request))
        notes.client = client_of(request)
        most = _max_tokens(payload)
        model = service.model
        model.check_name(payload.model)
        with _client_field_names():
            chat = as_chat(payload)
            prompt = await tokenise_chat(chat, model, notes)
            limit = min(most, max(1, model.limits.max_model_len - len(prompt)))
            params = body.sampling_params(chat, model.defaults, max_tokens=limit)
            source = await start_generation(service, chat, [prompt], params, notes, stop_ids=model.turn_end_ids)
        form = MessageFormat(f"msg_{source.id}", model.name, limit < most)
        stream = None
        if payload.stream:
            events = _events(source, form, service.config.sse_keep_alive_interval)
            stream = EventStream(events, source.abort, ANTHROPIC_EVENTS)
        return await deliver(request, source, notes, stream, lambda: _whole(source, form))

    async def count_tokens(request: Request) -> Response:
        payload, notes = fields.COUNT_TOKENS.read(await read_body(request))
        model = service.model
        model.check_name(payload.model)
        answer = json_response(anthropic.TokenCount(len(await tokenise_chat(as_chat(payload), model, notes))))
        answer.headers.update(notes.tell())
        return answer

    return [
        Route("/v1/messages", messages, methods=["POST"]),
        Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
    ]


# ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _max_tokens(payload: anthropic.MessagesRequest) -> int:
    """The length that must be stated. Raises ApiError where it is not, or is none."""
    bound, most = BOUNDS["max_tokens"], payload.max_tokens
    if most is None:
        raise ApiError("missing_field", "max_tokens is missing; send the most tokens that the answer may have", param="max_tokens")
    if not bound.low <= most <= bound.high:
        message = f"max_tokens is out of range; it must be at least {bound.low} and at most {bound.high}"
        raise ApiError("invalid_value", message, param="max_tokens")
    return most


def as_chat(payload: anthropic.CountTokensRequest) -> wire.ChatCompletionRequest:
    """The same as a chat: turns of one role that follow each other are one message. Raises ApiError for blocks that are not text."""
    given = payload.messages
    if given is not None and not 0 < len(given) <= MAX_MESSAGES:
        raise ApiError("invalid_value", f"messages has {len(given)}; send 1 to {MAX_MESSAGES}", param="messages")
    turns = [(each.role, _turn(f"messages[{at}].content", each)) for at, each in enumerate(given or ())]
    messages = [wire.ChatMessage(role, _joined([parts for _, parts in same])) for role, same in groupby(turns, lambda turn: turn[0])]
    is_continued = bool(messages) and messages[-1].role == "assistant"
    if system := _without_billing(_parts("system", payload.system or "")):
        messages = [wire.ChatMessage("system", _joined([system])), *messages]
    options = payload if isinstance(payload, anthropic.MessagesRequest) else anthropic.MessagesRequest()
    numbers: dict[str, Any] = {name: getattr(options, name) for name in ("temperature", "top_p", "top_k")}
    return wire.ChatCompletionRequest(
        messages=None if given is None else messages, continue_final_message=is_continued, stop=options.stop_sequences, **numbers
    )


def _turn(where: str, message: anthropic.InputMessage) -> list[wire.ContentPart]:
    parts = _parts(where, message.content)
    return _without_billing(parts) if message.role == "system" else parts


def _without_billing(system: list[wire.ContentPart]) -> list[wire.ContentPart]:
    """The system text without lines about billing, and without what is empty then."""
    parts = [wire.ContentPart("text", BILLING.sub("", each.text or "")) for each in system]
    return [each for each in parts if each.text]


def _parts(where: str, content: str | list[wire.ContentPart]) -> list[wire.ContentPart]:
    if isinstance(content, str):
        return [wire.ContentPart("text", content)]
    param = where.partition("[")[0]
    for at, each in enumerate(content):
        if each.type != "text":
            kind = each.type if re.fullmatch(r"[a-z_]{1,64}", each.type) else "this type"
            raise ApiError("unsupported_parameter", f"{where}[{at}]: blocks of {kind} are not supported; send text", param=param)
        if each.text is None:
            raise ApiError("missing_field", f"{where}[{at}] has no text", param=param)
    return content


def _joined(turns: Sequence[list[wire.ContentPart]]) -> str | list[wire.ContentPart]:
    """One text stays a text: templates that walk over parts and those that do not read it alike."""
    parts = [part for turn in turns for part in turn]
    return (parts[0].text or "") if len(parts) == 1 else parts


@contextmanager
def _client_field_names() -> Iterator[None]:
    """Makes a RequestError about `stop` name the field that the client sent."""
    try:
        yield
    except RequestError as error:
        if error.param != "stop":
            raise
        message = re.sub(r"\bstop\b", "stop_sequences", error.message)
        raise RequestError(message, param="stop_sequences", code=error.code, status=error.status) from None


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """The bodies of one answer.

    is_cut  the context has less room than `max_tokens`
    """

    id: str
    model: str
    is_cut: bool

    def message(self, text: str | None, end: anthropic.MessageEnd | None, usage: anthropic.MessageUsage) -> anthropic.Message:
        """The answer; without text and end as a stream begins."""
        content = [] if text is None else [anthropic.TextBlock(text)]
        reason, sequence = (end.stop_reason, end.stop_sequence) if end else (None, None)
        return anthropic.Message(self.id, self.model, content, reason, sequence, usage)

    def end(self, end: ChoiceEnd) -> anthropic.MessageEnd:
        """Why the answer ended."""
        if end.reason is Finish.LENGTH:
            return anthropic.MessageEnd("model_context_window_exceeded" if self.is_cut else "max_tokens", None)
        if isinstance(end.stop_reason, str):
            return anthropic.MessageEnd("stop_sequence", end.stop_reason)
        return anthropic.MessageEnd("end_turn", None)


def _usage(counter: UsageCounter) -> anthropic.MessageUsage:
    cached = counter.cached_tokens
    return anthropic.MessageUsage(counter.prompt_tokens - cached, 0, cached, counter.completion_tokens)


async def _whole(source: AnswerSource, form: MessageFormat) -> bytes:
    (choice,) = await collect(source, 1)
    return msgspec.json.encode(form.message(choice.text, form.end(choice.end), _usage(source.usage)))


async def _events(source: AnswerSource, form: MessageFormat, keep_alive_seconds: float) -> AsyncGenerator[bytes, None]:
    yield anthropic.encode_event(anthropic.MessageStart(form.message(None, None, _usage(source.usage))))
    yield anthropic.encode_event(anthropic.ContentBlockStart(0, anthropic.TextBlock("")))
    yield anthropic.encode_event(anthropic.Ping())
    texts = TextEvents(_text_event)
    async with aclosing(source.parts(keep_alive_seconds)) as parts:
        async for part in parts:
            match part:
                case ChoiceDelta() if part.delta.text:
                    yield _NEW_TEXT + texts.encode(part)
                case ChoiceEnd():
                    yield anthropic.encode_event(anthropic.ContentBlockStop(0))
                    yield anthropic.encode_event(anthropic.MessageDelta(form.end(part), _usage(source.usage)))
                case Idle():
                    yield KEEP_ALIVE
    yield anthropic.encode_event(anthropic.MessageStop())


def _text_event(delta: ChoiceDelta) -> anthropic.ContentBlockDelta:
    return anthropic.ContentBlockDelta(0, anthropic.NewText(delta.delta.text))


_NEW_TEXT: Final = anthropic.named(anthropic.ContentBlockDelta(0, anthropic.NewText("")), b"")
