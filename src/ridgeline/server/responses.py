"""`/v1/responses`: OpenAI's Responses API over the same conversations, limits and generation as chat.

Owns how an answer begins and ends, what is stored of it, answers in the background, and who may ask for one again.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec
from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline.core.events import Finish
from ridgeline.engine.answer import ChoiceDelta, ChoiceEnd
from ridgeline.errors import RequestError
from ridgeline.server import body, fields, wire
from ridgeline.server import responses_shapes as shapes
from ridgeline.server.access import note_error
from ridgeline.server.answer import Idle, deliver
from ridgeline.server.callers import current_caller
from ridgeline.server.chat import StartedChat, start_chat
from ridgeline.server.chat_prompts import tokenise_chat
from ridgeline.server.errors import ApiError, as_api_error
from ridgeline.server.logprobs import TokenNames
from ridgeline.server.notes import Notes
from ridgeline.server.responses_input import THOUGHTS, Tools, as_chat, read_items, read_tools, wants_logprobs
from ridgeline.server.responses_output import Output
from ridgeline.server.responses_shapes import Item, ResponsesRequest
from ridgeline.server.routers import answer_created, goes_elsewhere
from ridgeline.server.routes import MAX_ITEMS
from ridgeline.server.service import Service
from ridgeline.server.shelf import Shelf
from ridgeline.server.shortcut import Shortcut
from ridgeline.server.tapes import Tape
from ridgeline.server.transport import KEEP_ALIVE, RESPONSES_EVENTS, EventStream, client_of, encode_event, json_response, read_body
from ridgeline.text.tools.families import SWITCHES

NAMES: Final = {
    "messages": "input", "prompt": "input", "max_tokens": "max_output_tokens", "response_format": "text.format", "logprobs": "top_logprobs",
    "reasoning_effort": "reasoning.effort",
}  # fmt: skip
"""Fields of a chat → fields of a request here, for errors."""
MAX_DIGITS: Final = 9
"""Digits of the number of an event."""


def routes(service: Service) -> list[BaseRoute]:
    """The routes of this family."""
    shelf = service.shelf

    async def read(payload: ResponsesRequest, owner: bytes, notes: Notes) -> tuple[list[Item], Tools, wire.ChatCompletionRequest]:
        """The conversation of a request, its tools, and the chat that both are."""
        given = await shelf.resolve(owner, read_items(payload.input))
        items = [*await shelf.conversation(owner, payload.previous_response_id), *given]
        tools = read_tools(payload.tools or (), notes)
        return items, tools, as_chat(_without_unread_effort(payload, service, notes), items, tools)

    async def create(request: Request) -> Response:
        payload, notes = fields.RESPONSES.read(await read_body(request))
        notes.client = client_of(request)
        service.deployments.check_name(payload.model, takes_adapters=True)
        owner = current_caller().owner
        is_stored = shelf.is_open and payload.store is not False
        _check_background(payload, is_stored)
        if payload.background and payload.stream:
            shelf.tapes.check_room()
        with body.told_as(NAMES):
            items, tools, chat = await read(payload, owner, notes)
            begun = await _start(service, chat, notes, truncates=payload.truncation == "auto")
        answer = _Answer(service, payload, tools, begun, is_stored)

        async def store(response: shapes.ResponseObject) -> None:
            if is_stored:
                await shelf.put(owner, response, items)

        if payload.background:
            begun.source.relay = None
            first = answer.response("in_progress")
            tape = shelf.tapes.begin(owner, first.id) if payload.stream else None
            shelf.work(first.id, _finish_alone(answer, store, tape), begun.source.abort)
            await answer.is_begun.wait()
            background = json_response(first) if tape is None else _replayed(tape, 0, service)
            background.headers.update(notes.tell())
            return background
        events = answer.events(store, service.config.sse_keep_alive_interval if payload.stream else None)
        stream = None
        if payload.stream:
            begun.source.shortcut = Shortcut(answer.tell)
            stream = EventStream(_told(answer, events, request), begun.source.abort, RESPONSES_EVENTS)
        return await deliver(request, begun.source, notes, stream, lambda: _whole(events))

    async def input_tokens(request: Request) -> Response:
        payload, notes = fields.RESPONSES.read(await read_body(request))
        service.deployments.check_name(payload.model, takes_adapters=True)
        with body.told_as(NAMES):
            _, _, chat = await read(payload, current_caller().owner, notes)
            answer = json_response(shapes.InputTokens(len(await tokenise_chat(chat, service.model, notes))))
        answer.headers.update(notes.tell())
        return answer

    return [
        Route("/v1/responses", create, methods=["POST"]),
        Route("/v1/responses/input_tokens", input_tokens, methods=["POST"]),
        *_stored(shelf, service),
    ]


def _stored(shelf: Shelf, service: Service) -> list[BaseRoute]:
    """The routes of answers that are stored."""

    async def retrieve(request: Request) -> Response:
        answer = await shelf.response(current_caller().owner, request.path_params["id"])
        if request.query_params.get("stream", "false") in ("false", "False", "0"):
            return Response(answer, media_type="application/json")
        return _replayed(shelf.tapes.find(request.path_params["id"]), _next_event(request.query_params.get), service)

    async def delete(request: Request) -> Response:
        await shelf.delete(current_caller().owner, request.path_params["id"])
        return json_response(shapes.Deleted(request.path_params["id"]))

    async def cancel(request: Request) -> Response:
        return Response(await shelf.cancel(current_caller().owner, request.path_params["id"]), media_type="application/json")

    async def input_items(request: Request) -> Response:
        items = await shelf.items(current_caller().owner, request.path_params["id"])
        return json_response(_page(items, request.query_params.get))

    return [
        Route("/v1/responses/{id}", retrieve, methods=["GET"]),
        Route("/v1/responses/{id}", delete, methods=["DELETE"]),
        Route("/v1/responses/{id}/cancel", cancel, methods=["POST"]),
        Route("/v1/responses/{id}/input_items", input_items, methods=["GET"]),
    ]


# ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _start(service: Service, chat: wire.ChatCompletionRequest, notes: Notes, *, truncates: bool) -> StartedChat:
    """Starts the chat. `truncates`: without its oldest turns, if it does not fit with them."""
    messages, dropped = chat.messages or [], 0
    turns = [at for at, message in enumerate(messages) if message.role == "user"]
    while True:
        try:
            return await start_chat(service, chat, notes, clips=True)
        except RequestError as error:
            more = min(max(1, 2 * dropped), len(turns) - 1)
            if not truncates or error.code != "context_length_exceeded" or more <= dropped:
                raise
            dropped = more
            chat = structs.replace(chat, messages=[*messages[: turns[0]], *messages[turns[dropped] :]])


def _check_background(payload: ResponsesRequest, is_stored: bool) -> None:
    if payload.background and not is_stored:
        message = "an answer in the background is asked for by its id, and this one is not stored; leave background or store: false out"
        raise ApiError("invalid_value", message, param="background")


def _without_unread_effort(payload: ResponsesRequest, service: Service, notes: Notes) -> ResponsesRequest:
    """The request without an effort where the model's template reads neither one nor whether to think: agents send one to every model."""
    template, effort = service.model.chat, payload.reasoning and payload.reasoning.effort
    if template is None or effort in (None, "none") or any(name in template.variables for name in ("reasoning_effort", *SWITCHES)):
        return payload
    notes.ignore("reasoning.effort", "this model's chat template does not read it")
    return structs.replace(payload, reasoning=None)


DEFAULT_ITEMS: Final = 20
Query = Callable[[str], str | None]


def _next_event(query: Query) -> int:
    """The number of the first event that a query asks for. Raises ApiError."""
    after = query("starting_after")
    if after is None:
        return 0
    if not (after.isdecimal() and after.isascii() and len(after) <= MAX_DIGITS):
        raise ApiError("invalid_value", "starting_after is the number of an event, from 0 on", param="starting_after")
    return int(after) + 1


def _replayed(tape: Tape, start: int, service: Service) -> EventStream:
    """A stream of kept events. The answer goes on where its client goes."""
    return EventStream(tape.read(start, service.config.sse_keep_alive_interval), lambda: None, RESPONSES_EVENTS)


def _page(items: Sequence[Item], query: Query) -> shapes.ItemPage:
    """The page of items that a query asks for, newest first unless it says otherwise. Raises ApiError."""
    limit, order, after = query("limit") or str(DEFAULT_ITEMS), query("order") or "desc", query("after")
    if not (limit.isdecimal() and limit.isascii() and len(limit) <= 3 and 1 <= int(limit) <= MAX_ITEMS):
        raise ApiError("invalid_value", f"limit must be a whole number from 1 to {MAX_ITEMS}", param="limit")
    if order not in ("asc", "desc"):
        raise ApiError("invalid_value", "order is neither asc nor desc", param="order")
    ordered = list(items) if order == "asc" else list(items)[::-1]
    if after is not None:
        ids = [item.id for item in ordered]
        if after not in ids:
            raise ApiError("invalid_value", "after is the id of none of these items", param="after")
        ordered = ordered[ids.index(after) + 1 :]
    page = ordered[: int(limit)]
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    return shapes.ItemPage(page, first, last, len(ordered) > len(page))


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────────

Store = Callable[[shapes.ResponseObject], Any]
"""Stores an answer, if it is to be; awaited."""


class _Answer:
    """One answer. `events` is iterated once."""

    def __init__(self, service: Service, payload: ResponsesRequest, tools: Tools, begun: StartedChat, is_stored: bool) -> None:
        model = service.model
        names = TokenNames(model.tokenizer, False) if wants_logprobs(payload) else None
        self._source = begun.source
        self.is_begun = asyncio.Event()
        """Set when an answer in the background can be asked for."""
        is_wrapped = THOUGHTS in (payload.include or ())
        self._output = Output(begun.source.id, begun.reading, tools.called, names, is_wrapped=is_wrapped)
        self._base = shapes.ResponseObject(
            id=f"resp_{begun.source.id}",
            created_at=answer_created(),
            status="in_progress",
            model=model.name,
            output=[],
            background=bool(payload.background),
            instructions=payload.instructions,
            max_output_tokens=payload.max_output_tokens,
            max_tool_calls=payload.max_tool_calls,
            metadata=payload.metadata or {},
            parallel_tool_calls=payload.parallel_tool_calls is not False,
            previous_response_id=payload.previous_response_id,
            prompt_cache_key=payload.prompt_cache_key,
            reasoning=payload.reasoning or shapes.Reasoning(),
            safety_identifier=payload.safety_identifier,
            store=is_stored,
            temperature=_number(payload, model.defaults, "temperature"),
            text=_text(payload.text or shapes.TextConfig()),
            tool_choice=payload.tool_choice or "auto",
            tools=tools.given,
            top_logprobs=payload.top_logprobs or 0,
            top_p=_number(payload, model.defaults, "top_p"),
            truncation=payload.truncation or "disabled",
            user=payload.user,
        )

    def response(self, status: shapes.Status, **more: Any) -> shapes.ResponseObject:
        """The answer so far."""
        return structs.replace(self._base, status=status, output=list(self._output.items), **more)

    async def events(self, store: Store, keep_alive_seconds: float | None) -> AsyncGenerator[shapes.Event | Idle, None]:
        """Events from `response.created` to the end, which comes when the answer is stored. Raises what the source raises."""
        output = self._output
        yield shapes.Created(sequence_number=output.number(), response=self.response("in_progress"))
        yield shapes.InProgress(sequence_number=output.number(), response=self.response("in_progress"))
        async with aclosing(self._source.parts(keep_alive_seconds)) as parts:
            async for part in parts:
                if isinstance(part, ChoiceDelta):
                    for event in output.hear(part.delta, part.is_last):
                        yield event
                elif isinstance(part, ChoiceEnd):
                    if part.reason is Finish.ABORT:
                        raise ApiError("engine_failed", "the answer was aborted")
                    for event in output.end(part.reason is Finish.STOP):
                        yield event
                    response = self._ended(part.reason)
                elif isinstance(part, Idle):
                    yield part
        await store(response)
        kind = shapes.Completed if response.status == "completed" else shapes.Incomplete
        yield kind(sequence_number=output.number(), response=response)

    def tell(self, part: ChoiceDelta) -> list[bytes]:
        """The events of new text, encoded: the short way of a stream."""
        return [encode_event(event) for event in self._output.hear(part.delta, part.is_last)]

    def _ended(self, reason: Finish) -> shapes.ResponseObject:
        more: dict[str, Any] = {"completed_at": int(time.time()), "usage": self._usage()}
        if reason is Finish.LENGTH:
            return self.response("incomplete", incomplete_details=shapes.IncompleteDetails("max_output_tokens"), **more)
        return self.response("completed", **more)

    def failed(self, error: ApiError) -> shapes.Failed:
        """The event of an answer that cannot go on."""
        told = shapes.ResponseError("server_error", error.message)
        return shapes.Failed(sequence_number=self._output.number(), response=self.response("failed", error=told))

    def _usage(self) -> shapes.ResponseUsage:
        counter = self._source.usage
        prompt, completion = counter.prompt_tokens, counter.completion_tokens
        return shapes.ResponseUsage(
            prompt, shapes.InputTokensDetails(counter.cached_tokens), completion,
            shapes.OutputTokensDetails(self._output.reasoning_tokens), prompt + completion,
        )  # fmt: skip


def _text(asked: shapes.TextConfig) -> shapes.TextConfig:
    return asked if asked.format is not None else structs.replace(asked, format=shapes.TextFormat("text"))


def _number(payload: ResponsesRequest, defaults: Any, name: str) -> float:
    """A number of the sampler as it is used: the client's, the model's, or 1."""
    given = getattr(payload, name, None)
    return float(defaults.get(name, 1.0) if given is None else given)


async def _whole(events: AsyncGenerator[shapes.Event | Idle, None]) -> bytes:
    async with aclosing(events):
        async for event in events:
            last = event
    assert isinstance(last, shapes.Completed | shapes.Incomplete)
    return msgspec.json.encode(last.response)


async def _told(answer: _Answer, events: AsyncGenerator[shapes.Event | Idle, None], request: Request) -> AsyncGenerator[bytes, None]:
    """Events as bytes. A failure is one of them, and the last."""
    try:
        async with aclosing(events):
            async for event in events:
                yield KEEP_ALIVE if isinstance(event, Idle) else encode_event(event)
    except Exception as error:
        if goes_elsewhere(error):
            raise
        found = as_api_error(error)
        note_error(request.scope, found.code)
        yield encode_event(answer.failed(found))


async def _finish_alone(answer: _Answer, store: Store, tape: Tape | None) -> None:
    """Computes an answer to its end. It is stored as it begins, and however it ends. tape: for its events; None: nobody asks for them."""
    try:
        await store(answer.response("in_progress"))
        answer.is_begun.set()
        async with aclosing(answer.events(store, None)) as events:
            async for event in events:
                if tape is not None and not isinstance(event, Idle):
                    tape.add(encode_event(event))
    except asyncio.CancelledError:
        await store(answer.response("cancelled"))
        raise
    except Exception as error:
        failed = answer.failed(as_api_error(error))
        await store(failed.response)
        if tape is not None:
            tape.add(encode_event(failed))
    finally:
        answer.is_begun.set()
