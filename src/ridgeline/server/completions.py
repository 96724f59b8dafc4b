"""`/v1/completions`: text in, text out, whole or as a stream.

Owns the meaning of the fields that only completions have. Bounds are `engine.admit`'s, the bodies are `server.render`'s.
"""

import asyncio
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline.server import unbuilt, wire
from ridgeline.server.answer import Header, respond
from ridgeline.server.errors import ApiError
from ridgeline.server.fields import check_generation, sampling_params, streaming
from ridgeline.server.parse import parse
from ridgeline.server.render import CompletionRender
from ridgeline.server.served import Model
from ridgeline.server.service import Service
from ridgeline.server.sources import start
from ridgeline.server.spelling import Spelling
from ridgeline.server.transport import read_body
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
        model.check_name(asked.model)
        check_generation(asked)
        params = sampling_params(asked, model.defaults, prompt_logprobs=_prompt_logprobs(asked))
        prompts = _truncated(asked, params.max_tokens or 0, model, await tokenise(asked, model.reading(asked.cache_salt)))
        source = start(service, asked, prompts, params)
        header = Header.of(model, f"cmpl-{source.id}")
        spelling = Spelling(model.tokenizer, bool(asked.return_tokens_as_token_ids))
        render = CompletionRender(
            header, spelling, asked.logprobs, asked.prompt_logprobs, bool(asked.echo), bool(asked.return_token_ids)
        )
        return await respond(request, source, render, streaming(asked, service.config))

    return [Route("/v1/completions", completions, methods=["POST"])]


def _prompt_logprobs(asked: wire.CompletionRequest) -> int | None:
    """An echo with log-probabilities has the prompt's too."""
    if asked.echo and asked.logprobs is not None:
        return max(asked.logprobs, asked.prompt_logprobs or 0)
    return asked.prompt_logprobs


def _truncated(asked: wire.CompletionRequest, max_tokens: int, model: Model, prompts: list[list[int]]) -> list[list[int]]:
    """The last `truncate_prompt_tokens` ids of each prompt, a BOS at its start among them; -1: what the context leaves beside outputs."""
    most = asked.truncate_prompt_tokens
    if most is None:
        return prompts
    if most != -1 and not 1 <= most <= model.limits.max_model_len:
        bounds = f"at least 1 and at most {model.limits.max_model_len}, or -1"
        raise ApiError("invalid_value", f"truncate_prompt_tokens is out of range; it must be {bounds}", param="truncate_prompt_tokens")
    most = max(1, model.limits.max_model_len - max(1, max_tokens)) if most == -1 else most
    return [_last(prompt, most, model.tokenizer.bos) for prompt in prompts]


def _last(prompt: list[int], most: int, bos: int | None) -> list[int]:
    if len(prompt) <= most:
        return prompt
    return [prompt[0], *prompt[len(prompt) - most + 1 :]] if prompt[0] == bos else prompt[-most:]


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
        return [tokenizer.encode(each, add_bos, special=True) if isinstance(each, str) else each for each in prompts]

    return await asyncio.to_thread(encode) if sum(map(len, prompts)) > LONG_TEXT else encode()
