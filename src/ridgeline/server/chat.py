"""`/v1/chat/completions`: a conversation in, the assistant's next message out, whole or as a stream.

Owns the meaning of the fields that only chat has. The prompt is `server.conversation`'s, the bodies are `server.render_chat`'s.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline.errors import RequestError
from ridgeline.server import unbuilt, wire
from ridgeline.server.answer import Header, respond
from ridgeline.server.conversation import check_tools, tokenise_chat
from ridgeline.server.errors import ApiError
from ridgeline.server.fields import check_generation, sampling_params, streaming
from ridgeline.server.parse import parse
from ridgeline.server.render_chat import ChatRender
from ridgeline.server.served import Model
from ridgeline.server.service import Service
from ridgeline.server.sources import start
from ridgeline.server.spelling import Spelling
from ridgeline.server.transport import read_body


def routes(service: Service) -> list[BaseRoute]:
    """The routes of this family."""

    async def chat(request: Request) -> Response:
        body = await read_body(request)
        asked = parse(wire.ChatCompletionRequest, body)
        unbuilt.CHAT.refuse(body)
        model = service.model
        model.check_name(asked.model)
        check_generation(asked)
        check_tools(asked)
        logprobs = _logprobs(asked)
        prompt = await tokenise_chat(asked, model)
        params = sampling_params(asked, model.defaults, logprobs=logprobs, max_tokens=_max_tokens(asked, model, len(prompt)))
        with _chat_names(asked):
            source = start(service, asked, [prompt], params, stop_ids=model.turn_ends)
        header = Header.of(model, f"chatcmpl-{source.id}")
        spelling = Spelling(model.tokenizer, bool(asked.return_tokens_as_token_ids))
        render = ChatRender(header, spelling, logprobs is not None, asked.prompt_logprobs, bool(asked.return_token_ids))
        return await respond(request, source, render, streaming(asked, service.config))

    return [Route("/v1/chat/completions", chat, methods=["POST"])]


@contextmanager
def _chat_names(asked: wire.ChatCompletionRequest) -> Iterator[None]:
    """A refusal names the field that the client sent."""
    names = {"logprobs": "top_logprobs"} | ({"max_tokens": "max_completion_tokens"} if asked.max_tokens is None else {})
    try:
        yield
    except RequestError as error:
        name = names.get(error.param or "")
        if name is None or getattr(asked, name) is None:
            raise
        raise RequestError(error.message.replace(str(error.param), name), param=name, code=error.code, status=error.status) from None


def _logprobs(asked: wire.ChatCompletionRequest) -> int | None:
    """Chat asks with two fields."""
    if asked.logprobs:
        return asked.top_logprobs or 0
    if asked.top_logprobs:
        raise ApiError("invalid_value", "top_logprobs works only with logprobs: true", param="top_logprobs")
    return None


def _max_tokens(asked: wire.ChatCompletionRequest, model: Model, prompt_tokens: int) -> int | None:
    """The field by its new or its old name; else the model's default, as far as the context allows it; None: the rest of the context."""
    new, old = asked.max_completion_tokens, asked.max_tokens
    if new is not None and old is not None and new != old:
        raise ApiError("invalid_value", f"max_tokens is {old} and max_completion_tokens {new}; send one of them", param="max_tokens")
    default = model.defaults.get("max_tokens")
    if new is not None or old is not None or default is None:
        return new if new is not None else old
    context = model.limits.max_model_len
    return max(1, min(int(default), context - prompt_tokens, context // max(1, asked.n or 1, asked.best_of or 1)))
