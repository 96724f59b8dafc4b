"""`/v1/embeddings`, `/pooling`, `/score`, `/rerank`: vectors of texts, and how alike texts are by the cosine of theirs.

Bodies are OpenAI's and vLLM's; Cohere's and Jina's clients of rerankers read vLLM's answer.
"""

import time
from base64 import b64encode
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline.core.events import Finish
from ridgeline.engine.pooled import likeness
from ridgeline.server import fields, vector_shapes, wire
from ridgeline.server.access import note_usage
from ridgeline.server.answer import UsageCounter
from ridgeline.server.errors import ApiError
from ridgeline.server.notes import Notes
from ridgeline.server.routes import RERANK_PATHS
from ridgeline.server.service import Service
from ridgeline.server.transport import client_of, read_body, unless_disconnected
from ridgeline.server.vectors import Asked, Text, Vectors, beside_loop, embed, numbers_json


def routes(service: Service) -> list[BaseRoute]:
    """The routes of this family."""

    async def answer_with_vectors(request: Request, *, pooled: bool) -> Response:
        payload, notes = fields.EMBEDDING.read(await read_body(request))
        service.deployments.check_name(payload.model)
        asked = msgspec.structs.asdict(payload)
        found = await _embed(request, service, texts_of(payload.input), notes, _asked(payload, "input", asked))
        base64 = payload.encoding_format == "base64"
        make = partial(_pooled if pooled else _embeddings, service, found, base64)
        return Response(await beside_loop(found.vectors, make), headers=notes.tell(), media_type="application/json")

    async def embeddings(request: Request) -> Response:
        return await answer_with_vectors(request, pooled=False)

    async def pooling(request: Request) -> Response:
        return await answer_with_vectors(request, pooled=True)

    async def score(request: Request) -> Response:
        payload, notes = fields.SCORE.read(await read_body(request))
        service.deployments.check_name(payload.model)
        first, second = _pair(payload)
        found = await _embed(request, service, [*first, *second], notes, _asked(payload, "text_1"))
        ahead, behind = found.vectors[: len(first)], found.vectors[len(first) :]
        pairs = list(zip(ahead * len(behind) if len(ahead) == 1 else ahead, behind, strict=True))
        scores = await beside_loop(found.vectors, lambda: [likeness(a, b) for a, b in pairs])
        data = [vector_shapes.Score(index, "score", each) for index, each in enumerate(scores)]
        return _json(vector_shapes.ScoreList(f"score-{found.id}", "list", int(time.time()), service.model.name, data, _usage(found)), notes)

    async def rerank(request: Request) -> Response:
        payload, notes = fields.RERANK.read(await read_body(request))
        service.deployments.check_name(payload.model)
        documents = _documents(payload)
        found = await _embed(request, service, [payload.query or "", *documents], notes, _asked(payload, "documents"))
        query, *others = found.vectors
        scores = await beside_loop(found.vectors, lambda: [likeness(query, each) for each in others])
        order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))[: payload.top_n or None]
        if payload.texts is not None:
            shown = payload.return_text is True
            return _json([vector_shapes.RankedByTei(index, scores[index], documents[index] if shown else None) for index in order], notes)
        shown = payload.return_documents is not False
        results = [
            vector_shapes.RankedDocument(index, scores[index], vector_shapes.RankedText(documents[index]) if shown else None)
            for index in order
        ]
        return _json(vector_shapes.RerankResponse(f"rerank-{found.id}", service.model.name, _usage(found), results), notes)

    return [
        Route("/v1/embeddings", embeddings, methods=["POST"]),
        Route("/pooling", pooling, methods=["POST"]),
        *(Route(path, score, methods=["POST"]) for path in ("/score", "/v1/score")),
        *(Route(path, rerank, methods=["POST"]) for path in RERANK_PATHS),
    ]


async def _embed(request: Request, service: Service, texts: Sequence[Text], notes: Notes, asked: Asked) -> Vectors:
    """The vectors, unless the client goes before."""
    notes.client = client_of(request)
    usage = UsageCounter(1, 0)
    note_usage(request.scope, usage)
    found = await unless_disconnected(request.scope, embed(service, texts, notes, asked))
    usage.prompt_tokens, usage.cached_tokens = found.prompt_tokens, found.cached_tokens
    usage.finish(Finish.STOP)
    return found


def _asked(payload: wire.TextsRequest, param: str, more: dict[str, Any] | None = None) -> Asked:
    given = more or {}
    return Asked(
        dimensions=given.get("dimensions"),
        truncate=payload.truncate_prompt_tokens,
        add_special=given.get("add_special_tokens") is not False,
        priority=payload.priority or 0,
        salt=payload.cache_salt or "",
        deadline_ms=payload.deadline_ms,
        param=param,
    )


def texts_of(given: str | list[str | int | list[int]] | None, param: str = "input") -> list[Text]:
    """A text, ids, or several of either, as a list. Raises ApiError for what is none of these."""
    if given is None:
        raise ApiError("missing_field", f"{param} is missing; send a string, strings, token ids, or lists of token ids", param=param)
    if given == []:
        raise ApiError("empty_prompt", f"{param} is empty; send at least one string or token id", param=param)
    single = isinstance(given, str) or all(isinstance(each, int) for each in given)
    texts: list[Any] = [given] if single else list(given)
    if any(isinstance(each, int) for each in texts):
        raise ApiError("invalid_type", f"a text of {param} mixes strings and token ids; send one kind", param=param)
    return texts


def _pair(payload: wire.ScoreRequest) -> tuple[list[str], list[str]]:
    """The texts to compare: one with each of several, or as many with as many. Raises ApiError."""
    first = _one_of(payload.text_1, payload.queries, payload.data_1)
    second = _one_of(payload.text_2, payload.documents, payload.data_2)
    if not first or not second:
        names = "text_1 and text_2, or queries and documents"
        raise ApiError("missing_field", f"texts are missing; send {names}, each once", param="text_2" if first else "text_1")
    if len(first) not in (1, len(second)):
        raise ApiError("invalid_value", f"{len(first)} texts and {len(second)} are no pairs; send 1, or as many", param="text_1")
    return first, second


def _one_of(*given: str | list[str] | None) -> list[str]:
    found = [each for each in given if each is not None]
    return [] if len(found) != 1 else [found[0]] if isinstance(found[0], str) else found[0]


def _documents(payload: wire.RerankRequest) -> list[str]:
    """The documents' texts. Raises ApiError where query or documents are missing."""
    if not payload.query:
        raise ApiError("missing_field", "query is missing; send a string", param="query")
    if payload.texts is not None and payload.documents is not None:
        raise ApiError("invalid_value", "documents and texts mean the same; send one", param="texts")
    documents = payload.documents or payload.texts
    if not documents:
        raise ApiError("missing_field", "documents are missing; send a list of strings", param="documents")
    if payload.top_n is not None and payload.top_n < 0:
        raise ApiError("invalid_value", f"top_n is {payload.top_n}; send the number of documents that you want, 0 for all", param="top_n")
    return [each if isinstance(each, str) else each.text for each in documents]


# ── bodies ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _embeddings(service: Service, found: Vectors, base64: bool) -> bytes:
    data = [vector_shapes.Embedding("embedding", index, _shown(each, base64)) for index, each in enumerate(found.vectors)]
    answer = vector_shapes.EmbeddingList(f"embd-{found.id}", "list", int(time.time()), service.model.name, data, _usage(found))
    return msgspec.json.encode(answer)


def _pooled(service: Service, found: Vectors, base64: bool) -> bytes:
    data = [vector_shapes.Pooled("pooling", index, _shown(each, base64)) for index, each in enumerate(found.vectors)]
    return msgspec.json.encode(
        vector_shapes.PooledList(f"pool-{found.id}", "list", int(time.time()), service.model.name, data, _usage(found))
    )


def _shown(vector: bytes, base64: bool) -> Any:
    return b64encode(vector).decode() if base64 else numbers_json(vector)


def _usage(found: Vectors) -> vector_shapes.EmbeddingUsage:
    return vector_shapes.EmbeddingUsage(found.prompt_tokens, found.prompt_tokens)


def _json(value: Any, notes: Notes) -> Response:
    return Response(msgspec.json.encode(value), headers=notes.tell(), media_type="application/json")
