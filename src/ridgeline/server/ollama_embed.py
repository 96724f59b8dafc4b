"""`/api/embed` and `/api/embeddings`: vectors of texts in Ollama's words. What a vector is made of is `server.vectors`'s."""

import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline.server import fields
from ridgeline.server.errors import ApiError
from ridgeline.server.ollama import nanoseconds
from ridgeline.server.ollama_chat import plain_name
from ridgeline.server.ollama_shapes import Vector, Vectors
from ridgeline.server.service import Service
from ridgeline.server.transport import client_of, json_response, read_body, unless_disconnected
from ridgeline.server.vectors import Asked, beside_loop, embed, numbers_json


def routes(service: Service) -> list[BaseRoute]:
    """The routes of this family."""

    async def of_texts(request: Request) -> Response:
        payload, notes = fields.OLLAMA_EMBED.read(await read_body(request))
        notes.client = client_of(request)
        service.deployments.check_name(plain_name(payload.model))
        if payload.input is None:
            raise ApiError("missing_field", "input is missing; send a string, or strings", param="input")
        texts = [payload.input] if isinstance(payload.input, str) else payload.input
        asked = Asked(payload.dimensions, None if payload.truncate is False else -1)
        found = await unless_disconnected(request.scope, embed(service, texts, notes, asked)) if texts else None
        vectors = found.vectors if found else []
        shown = await beside_loop(vectors, lambda: [numbers_json(each) for each in vectors])
        answer = json_response(Vectors(
            payload.model or "", shown, nanoseconds(time.monotonic() - notes.arrived),
            nanoseconds((notes.tokenised or notes.arrived) - notes.arrived),
            found.prompt_tokens if found else 0,
        ))  # fmt: skip
        answer.headers.update(notes.tell())
        return answer

    async def of_one(request: Request) -> Response:
        payload, notes = fields.OLLAMA_EMBEDDINGS.read(await read_body(request))
        notes.client = client_of(request)
        service.deployments.check_name(plain_name(payload.model))
        if not payload.prompt:
            return json_response(Vector([]))
        found = await unless_disconnected(request.scope, embed(service, [payload.prompt], notes, Asked(truncate=-1, param="prompt")))
        return json_response(Vector(numbers_json(found.vectors[0])))

    return [Route("/api/embed", of_texts, methods=["POST"]), Route("/api/embeddings", of_one, methods=["POST"])]
