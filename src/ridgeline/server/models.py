"""`/v1/models`, `/tokenize`, `/detokenize`: what the model is and how it reads text. Shapes are OpenAI's and vLLM's."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline.errors import RequestError
from ridgeline.server import wire
from ridgeline.server.completions import LONG_TEXT, check_model
from ridgeline.server.errors import ApiError
from ridgeline.server.parse import parse
from ridgeline.server.render import token_text
from ridgeline.server.service import Model, Service
from ridgeline.server.transport import json_response, read_body

P = ParamSpec("P")
Answer = TypeVar("Answer")


def routes(service: Service) -> list[BaseRoute]:
    """The routes of this family."""

    async def models(request: Request) -> Response:
        return json_response(wire.ModelList("list", [_card(service.model)]))

    async def model(request: Request) -> Response:
        check_model(request.path_params["name"], service.model)
        return json_response(_card(service.model))

    async def tokenize(request: Request) -> Response:
        asked = parse(wire.TokenizeRequest, await read_body(request))
        loaded = service.model
        check_model(asked.model, loaded)
        if asked.prompt is None:
            raise ApiError("missing_field", "prompt is missing; send a string (there is no chat template for messages)", param="prompt")
        return json_response(await _aside(len(asked.prompt), _tokens, asked, loaded))

    async def detokenize(request: Request) -> Response:
        asked = parse(wire.DetokenizeRequest, await read_body(request))
        loaded = service.model
        check_model(asked.model, loaded)
        if asked.tokens is None:
            raise ApiError("missing_field", "tokens is missing; send a list of token ids", param="tokens")
        if any(not 0 <= token < loaded.limits.vocab for token in asked.tokens):
            raise RequestError(f"tokens contains an id outside 0 to {loaded.limits.vocab - 1}.", param="tokens")
        return json_response(wire.DetokenizeResponse(await _aside(len(asked.tokens), loaded.tokenizer.decode, asked.tokens, False)))

    return [
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{name:path}", model, methods=["GET"]),
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
    ]


def _card(model: Model) -> wire.ModelCard:
    return wire.ModelCard(model.name, "model", model.created, "ridgeline", model.name, None, model.limits.max_model_len, False)


async def _aside(length: int, work: Callable[P, Answer], *arguments: P.args, **more: P.kwargs) -> Answer:
    """`work` done here, or in a thread where it is long enough to hold up other requests."""
    return await asyncio.to_thread(work, *arguments, **more) if length > LONG_TEXT else work(*arguments, **more)


def _tokens(asked: wire.TokenizeRequest, model: Model) -> wire.TokenizeResponse:
    ids = model.tokenizer.encode(asked.prompt or "", asked.add_special_tokens is not False)
    strings = [token_text(model.tokenizer, token) for token in ids] if asked.return_token_strs else None
    return wire.TokenizeResponse(len(ids), model.limits.max_model_len, ids, strings)
