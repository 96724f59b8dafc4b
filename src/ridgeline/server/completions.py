"""`/v1/completions`: text in, text out, whole or as a stream. `/v1/chat/completions` says why it cannot.

Owns the meaning of the body's fields. Bounds are `engine.admit`'s; what the engine does with a request is `server.generate`'s.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import fields
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline.core.params import SamplingParams
from ridgeline.server import unbuilt, wire
from ridgeline.server.errors import ApiError
from ridgeline.server.generate import Ended, Generation
from ridgeline.server.parse import parse
from ridgeline.server.render import Header, Tally, end_choice, text_choice, whole_choice
from ridgeline.server.service import Model, Service
from ridgeline.server.transport import EventStream, json_response, read_body, unless_disconnected
from ridgeline.text.stream import Release
from ridgeline.text.tokenizer import Tokenizer

MAX_PROMPTS: Final = 64
LONG_TEXT: Final = 8_192
"""Characters beyond which tokenising would hold up other requests: it then happens in a thread."""


def routes(service: Service) -> list[BaseRoute]:
    """The routes of this family."""

    async def completions(request: Request) -> Response:
        body = await read_body(request)
        asked = parse(wire.CompletionRequest, body)
        unbuilt.COMPLETION.refuse(body)
        model = service.model
        check_model(asked.model, model)
        if asked.stream_options is not None and not asked.stream:
            raise ApiError("invalid_value", "stream_options is allowed only with stream: true", param="stream_options")
        if asked.stream_options is not None and asked.stream_options.continuous_usage_stats:
            raise ApiError("unsupported_parameter", "continuous_usage_stats is not supported by this server yet", param="stream_options")
        params = sampling_params(asked)
        prompts = await tokenise(asked, model.tokenizer)
        admitted = service.admit(prompts, params, priority=asked.priority or 0, salt=asked.cache_salt or "")
        header = Header(f"cmpl-{admitted[0].request_id}", int(time.time()), model.name)
        generation = Generation(service.engine, model.tokenizer, admitted, params)
        answer = _Answer(generation, model.tokenizer, params, header)
        if asked.stream:
            with_usage = asked.stream_options is not None and bool(asked.stream_options.include_usage)
            return EventStream(answer.events(with_usage), generation.abort)
        try:
            return json_response(await unless_disconnected(request.receive, answer.whole()))
        finally:
            generation.abort()

    async def chat(request: Request) -> Response:
        raise ApiError(
            "no_chat_template",
            f"{service.model.name} is a base model without a chat template: it continues text; send a prompt to /v1/completions",
            param="messages",
        )

    return [Route("/v1/completions", completions, methods=["POST"]), Route("/v1/chat/completions", chat, methods=["POST"])]


class _Answer:
    """The answer to one HTTP request: several prompts, several choices each."""

    def __init__(self, generation: Generation, tokenizer: Tokenizer, params: SamplingParams, header: Header) -> None:
        self._generation = generation
        self._tokenizer = tokenizer
        self._with_logprobs = params.logprobs is not None
        self._tally = Tally(params.n)
        self._header = header

    async def whole(self) -> wire.Completion:
        """All choices at once, in order."""
        releases: dict[int, list[Release]] = {}
        choices: dict[int, wire.Choice] = {}
        async with aclosing(self._generation.pieces()) as pieces:
            async for piece in pieces:
                if isinstance(piece, Ended):
                    self._tally.add(piece)
                    choices[piece.index] = whole_choice(piece, releases.pop(piece.index, ()), self._tokenizer, self._with_logprobs)
                else:
                    releases.setdefault(piece.index, []).append(piece.release)
        return self._header.body([choices[index] for index in sorted(choices)], self._tally.usage)

    async def events(self, with_usage: bool) -> AsyncGenerator[bytes, None]:
        """One event a release, one at each choice's end, and with `with_usage` one without choices at the end of all."""
        async with aclosing(self._generation.pieces()) as pieces:
            async for piece in pieces:
                if isinstance(piece, Ended):
                    self._tally.add(piece)
                    choice = end_choice(piece)
                else:
                    choice = text_choice(piece.index, piece.release, self._tokenizer, self._with_logprobs)
                yield msgspec.json.encode(self._header.body([choice]))
        if with_usage:
            yield msgspec.json.encode(self._header.body([], self._tally.usage))


def check_model(asked: str | None, model: Model) -> None:
    """Raises ApiError unless the body names the served model. A body without a name means the only one there is."""
    if asked is not None and asked != model.name:
        raise ApiError("model_not_found", f"there is no model of that name here; this server has {model.name!r}", param="model")


def sampling_params(asked: wire.CompletionRequest) -> SamplingParams:
    """The body's fields by their names; what is absent or null has the default of `SamplingParams`, which is vLLM's."""
    given: dict[str, Any] = {field.name: getattr(asked, field.name, None) for field in fields(SamplingParams)}
    stop = asked.stop
    given["stop"] = None if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
    given["stop_token_ids"] = None if asked.stop_token_ids is None else tuple(asked.stop_token_ids)
    return SamplingParams(**{name: value for name, value in given.items() if value is not None})


async def tokenise(asked: wire.CompletionRequest, tokenizer: Tokenizer) -> list[list[int]]:
    """The ids of each prompt: a string, strings, ids, or lists of ids. Raises ApiError for what is none of these."""
    prompt = asked.prompt
    if prompt is None:
        raise ApiError("missing_field", "prompt is missing; send a string, strings, token ids, or lists of token ids", param="prompt")
    if prompt == []:
        raise ApiError("empty_prompt", "prompt is empty; send at least one string or token id", param="prompt")
    single = isinstance(prompt, str) or all(isinstance(each, int) for each in prompt)
    prompts: list[Any] = [prompt] if single else list(prompt)
    if len(prompts) > MAX_PROMPTS:
        raise ApiError("invalid_value", f"{len(prompts)} prompts; at most {MAX_PROMPTS} are taken in one request", param="prompt")
    if len({type(each) for each in prompts}) != 1 or isinstance(prompts[0], int):
        raise ApiError("invalid_type", "prompt mixes strings and token ids; send one kind", param="prompt")
    add_bos = asked.add_special_tokens is not False

    def encode() -> list[list[int]]:
        return [tokenizer.encode(each, add_bos) if isinstance(each, str) else each for each in prompts]

    return await asyncio.to_thread(encode) if sum(map(len, prompts)) > LONG_TEXT else encode()
