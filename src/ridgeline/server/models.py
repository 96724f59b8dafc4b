"""`/v1/models`, `/tokenize`, `/detokenize`: the model and its tokenizer. Bodies are OpenAI's and vLLM's,
and Anthropic's where a request has its header."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, ParamSpec, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline.errors import RequestError
from ridgeline.server import anthropic, fields, replies, wire
from ridgeline.server.chat import tokenise_chat
from ridgeline.server.encoding import run_encoding
from ridgeline.server.errors import ApiError
from ridgeline.server.notes import Notes
from ridgeline.server.routes import dialect_of
from ridgeline.server.service import Model, Service
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
            return json_response(anthropic.ModelPage(data=[_info(loaded)], first_id=loaded.name, last_id=loaded.name))
        return json_response(replies.ModelList("list", [_card(loaded)]))

    async def model(request: Request) -> Response:
        loaded = service.model
        loaded.check_name(request.path_params["name"])
        return json_response(_info(loaded) if dialect_of(request.scope) == "anthropic" else _card(loaded))

    async def tokenize(request: Request) -> Response:
        payload, notes = fields.TOKENIZE.read(await read_body(request))
        loaded = service.model
        loaded.check_name(payload.model)
        ids = await _tokenise(payload, loaded, notes)
        answer = json_response(await _run_long(len(ids), _tokens, payload, loaded, ids))
        answer.headers.update(notes.tell())
        return answer

    async def detokenize(request: Request) -> Response:
        payload, notes = fields.DETOKENIZE.read(await read_body(request))
        loaded = service.model
        loaded.check_name(payload.model)
        if payload.tokens is None:
            raise ApiError("missing_field", "tokens is missing; send a list of token ids", param="tokens")
        if any(not 0 <= token < loaded.limits.vocab for token in payload.tokens):
            raise RequestError(f"tokens contains an id outside 0 to {loaded.limits.vocab - 1}.", param="tokens")
        text = await _run_long(len(payload.tokens), loaded.tokenizer.decode, payload.tokens, False)
        answer = json_response(replies.DetokenizeResponse(text))
        answer.headers.update(notes.tell())
        return answer

    return [
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{name:path}", model, methods=["GET"]),
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
    ]


async def _run_long(length: int, work: Callable[P, Result], *arguments: P.args, **more: P.kwargs) -> Result:
    """Runs `work` here, or in a thread where it is long enough to hold up other requests."""
    return await asyncio.to_thread(work, *arguments, **more) if length > LONG_TOKENS else work(*arguments, **more)


async def _tokenise(payload: wire.TokenizeRequest, model: Model, notes: Notes) -> list[int]:
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


def _info(model: Model) -> anthropic.ModelInfo:
    created, context = datetime.fromtimestamp(model.created, UTC), model.limits.max_model_len
    return anthropic.ModelInfo(
        id=model.name,
        created_at=created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        display_name=model.name,
        max_input_tokens=context,
        max_tokens=context,
    )


def _card(model: Model) -> replies.ModelCard:
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
