"""`/v1/models`, `/tokenize`, `/detokenize`: the model and its tokenizer.

Bodies are OpenAI's and vLLM's; Anthropic's where a request has its header, llama.cpp's where it has its field.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final, ParamSpec, TypeVar

import msgspec
from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline.errors import RequestError
from ridgeline.server import anthropic, fields, replies, wire
from ridgeline.server.body import decode, parse
from ridgeline.server.chat_prompts import tokenise_chat
from ridgeline.server.deployments import Deployments
from ridgeline.server.encoding import run_encoding
from ridgeline.server.errors import ApiError
from ridgeline.server.loading import Model
from ridgeline.server.notes import Notes
from ridgeline.server.routes import MAX_PAGE, dialect_of, find_row
from ridgeline.server.service import Service
from ridgeline.server.transport import json_response, read_body
from ridgeline.text.token_text import token_text

P = ParamSpec("P")
Result = TypeVar("Result")

LONG_TOKENS: Final = 8_192
"""Ids beyond which their texts would hold up other requests: they are then made in a thread."""


def routes(service: Service) -> list[BaseRoute]:
    """The routes of this family."""

    async def models(request: Request) -> Response:
        loaded = service.model
        if dialect_of(request.scope) == "anthropic":
            return json_response(page([info(loaded)], request.query_params))
        return json_response(replies.ModelList("list", cards(card(loaded), service.deployments)))

    async def model(request: Request) -> Response:
        return json_response(one(request, service, card(service.model), info(service.model)))

    async def load(request: Request) -> Response:
        service.deployments.check_name(parse(wire.ModelName, await read_body(request)).model)
        return json_response(replies.ModelStatus("loaded" if service.is_ready else "loading", None))

    async def unload(request: Request) -> Response:
        service.deployments.check_name(parse(wire.ModelName, await read_body(request)).model)
        message = "this server has one model, which stays; start it with --keep-alive, or with several models"
        raise ApiError("invalid_value", message, param="model")

    async def tokenize(request: Request) -> Response:
        body = await read_body(request)
        row = find_row(request.scope, decode(dict[str, msgspec.Raw], body))
        work = _llama_tokenise if row is not None and row.request is wire.LlamaTokenizeRequest else _tokenise
        result, notes = await work(body, service)
        answer = json_response(result)
        answer.headers.update(notes.tell())
        return answer

    async def detokenize(request: Request) -> Response:
        payload, notes = fields.DETOKENIZE.read(await read_body(request))
        loaded = service.model
        service.deployments.check_name(payload.model)
        if payload.tokens is None:
            raise ApiError("missing_field", "tokens is missing; send a list of token ids", param="tokens")
        if any(not 0 <= token < loaded.limits.vocab for token in payload.tokens):
            raise RequestError(f"tokens contains an id outside 0 to {loaded.limits.vocab - 1}.", param="tokens")
        text = await _run_long(len(payload.tokens), loaded.tokenizer.decode, payload.tokens, False)
        answer = json_response(replies.DetokenizeResponse(text, text))
        answer.headers.update(notes.tell())
        return answer

    return [
        *(Route(path, models, methods=["GET"]) for path in ("/v1/models", "/models")),
        Route("/v1/models/{name:path}", model, methods=["GET"]),
        Route("/models/load", load, methods=["POST"]),
        Route("/models/unload", unload, methods=["POST"]),
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
    ]


async def _run_long(length: int, work: Callable[P, Result], *arguments: P.args, **more: P.kwargs) -> Result:
    """Runs `work` here, or in a thread where it is long enough to hold up other requests."""
    return await asyncio.to_thread(work, *arguments, **more) if length > LONG_TOKENS else work(*arguments, **more)


async def _tokenise(body: bytes, service: Service) -> tuple[replies.TokenizeResponse, Notes]:
    """vLLM's answer to a body of its own."""
    payload, notes = fields.TOKENIZE.read(body)
    model = service.model
    service.deployments.check_name(payload.model)
    ids = await _ids(payload, model, notes)
    return await _run_long(len(ids), _tokens, payload, model, ids), notes


async def _llama_tokenise(body: bytes, service: Service) -> tuple[replies.LlamaTokens, Notes]:
    """llama.cpp's answer to a body of its own."""
    payload, notes = fields.LLAMA_TOKENIZE.read(body)
    model = service.model
    service.deployments.check_name(payload.model)
    encode = partial(
        model.tokenizer.encode, payload.content, bool(payload.add_special), special=payload.parse_special is not False
    )  # fmt: skip
    ids = await run_encoding(model.tokenizer, len(payload.content), encode)
    return replies.LlamaTokens(await _run_long(len(ids), _pieces, model, ids) if payload.with_pieces else [*ids]), notes


async def _ids(payload: wire.TokenizeRequest, model: Model, notes: Notes) -> list[int]:
    """Ids of a text, or of a conversation."""
    if payload.messages is not None:
        if payload.prompt is not None:
            raise ApiError("invalid_value", "prompt and messages exclude each other; send one of them", param="prompt")
        if payload.add_special_tokens:
            raise ApiError("unsupported_parameter", "the template writes the special tokens of messages", param="add_special_tokens")
        return await tokenise_chat(payload, model, notes)
    if payload.prompt is None:
        raise ApiError("missing_field", "prompt is missing; send a string, or messages", param="prompt")
    add_bos = payload.add_special_tokens is not False
    text = payload.prompt
    return await run_encoding(model.tokenizer, len(text), lambda: model.tokenizer.encode(text, add_bos, special=True))


def _tokens(payload: wire.TokenizeRequest, model: Model, ids: list[int]) -> replies.TokenizeResponse:
    strings = [token_text(model.tokenizer, token) for token in ids] if payload.return_token_strs else None
    return replies.TokenizeResponse(len(ids), model.limits.max_model_len, ids, strings)


def _pieces(model: Model, ids: list[int]) -> list[int | replies.LlamaPiece]:
    return [replies.LlamaPiece(token, _characters(model.tokenizer.piece(token))) for token in ids]


def _characters(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return [*piece]


def cards(card: replies.ModelCard, deployments: Deployments) -> list[replies.ModelCard]:
    """The card of a model, and those of its aliases and adapters."""
    names = [(alias, card.parent) for alias in deployments.aliases]
    names += [(each.adapter.name, card.id) for each in deployments.adapters_for_caller]
    return [card, *(structs.replace(card, id=name, parent=of) for name, of in names)]


def one(
    request: Request, service: Service, card: replies.ModelCard, info: anthropic.ModelInfo
) -> replies.ModelCard | anthropic.ModelInfo:  # fmt: skip
    """The entry for the name in a path: of the model, an alias, or an adapter of it. Raises RequestError for others."""
    name = request.path_params["name"]
    is_anthropic = dialect_of(request.scope) == "anthropic"
    if not is_anthropic and service.deployments.adapter_for_caller(name) is not None:
        return structs.replace(card, id=name, parent=card.id)
    service.deployments.check_name(name)
    return info if is_anthropic else card


def page(models: Sequence[anthropic.ModelInfo], query: Mapping[str, str]) -> anthropic.ModelPage:
    """A page of the models, in their order. Raises ApiError for parameters that are none."""
    limit = query.get("limit", "1")
    if not (limit.isdecimal() and len(limit) <= len(str(MAX_PAGE)) and 1 <= int(limit) <= MAX_PAGE):
        raise ApiError("invalid_value", f"limit must be a number from 1 to {MAX_PAGE}", param="limit")
    places = [name for name in ("after_id", "before_id") if name in query]
    names, first, end = [each.id for each in models], 0, len(models)
    for name in places:
        if query[name] not in names:
            raise ApiError("invalid_value", f"{name} names no model that is here; leave it out", param=name)
        if name == "after_id":
            first = names.index(query[name]) + 1
        else:
            end = names.index(query[name])
    found = [*models[first:end]]
    if "before_id" in query:
        found = found[-int(limit) :]
    data, has_more = found[: int(limit)], len(found) > int(limit)
    ends = (data[0].id, data[-1].id) if data else (None, None)
    return anthropic.ModelPage(data=data, first_id=ends[0], last_id=ends[1], has_more=has_more)


def info(model: Model) -> anthropic.ModelInfo:
    """A model's entry in Anthropic's lists."""
    created, context = datetime.fromtimestamp(model.created, UTC), model.limits.max_model_len
    return anthropic.ModelInfo(
        id=model.name,
        created_at=created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        display_name=model.name,
        max_input_tokens=context,
        max_tokens=context,
    )


def card(model: Model) -> replies.ModelCard:
    """A model's entry in OpenAI's lists."""
    return replies.ModelCard(
        id=model.name,
        object="model",
        created=model.created,
        owned_by="ridgeline",
        root=model.name,
        parent=None,
        max_model_len=model.limits.max_model_len,
        chat=model.chat is not None and model.chat.is_usable,
        ridgeline=replies.ModelNotes(
            model.kind.kind,
            model.kind.reason,
            [replies.CheckFinding(each.severity, each.check, each.cause, each.fix) for each in model.findings],
            model.defaults,
        ),
    )
