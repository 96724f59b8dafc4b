"""`/v1/chat/completions`: a conversation in, the assistant's next message out, whole or as a stream.

Owns the meaning of the fields that only chat has, the form of its answers, and for every route that takes messages the limits of a
conversation and the fields that say how it is rendered. Templates are `text.chat`'s.
"""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline.core.plan import TokenLogprobs
from ridgeline.engine.answer import Begun, Collected, Ended, Shown
from ridgeline.errors import OverloadedError, RequestError
from ridgeline.server import body, wire
from ridgeline.server.answer import Header, Spelling, respond
from ridgeline.server.errors import ApiError
from ridgeline.server.generate import start
from ridgeline.server.service import Model, Service
from ridgeline.server.transport import read_body
from ridgeline.text.chat import no_template
from ridgeline.text.chat_content import Conversation


def routes(service: Service) -> list[BaseRoute]:
    """The routes of this family."""

    async def chat(request: Request) -> Response:
        sent = await read_body(request)
        asked = body.parse(wire.ChatCompletionRequest, sent)
        body.CHAT.check(sent)
        model = service.model
        model.check_name(asked.model)
        body.check_generation(asked)
        check_tools(asked)
        logprobs = _logprobs(asked)
        prompt = await tokenise_chat(asked, model)
        params = body.sampling_params(asked, model.defaults, logprobs=logprobs, max_tokens=_max_tokens(asked, model, len(prompt)))
        with _chat_names(asked):
            source = start(service, asked, [prompt], params, stop_ids=model.turn_ends)
        header = Header.of(model, f"chatcmpl-{source.id}")
        spelling = Spelling(model.tokenizer, bool(asked.return_tokens_as_token_ids))
        render = ChatRender(header, spelling, logprobs is not None, asked.prompt_logprobs, bool(asked.return_token_ids))
        return await respond(request, source, render, params.n, body.streaming(asked, service.config))

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


# ── bodies ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ChatRender:
    """The form of one answer.

    logprobs         whether to show them; how many was said to the engine
    prompt_logprobs  how many of the likeliest ids to show beside each token of the prompt; None: nothing
    token_ids                  ids of prompt and outputs are shown too
    """

    header: Header
    spelling: Spelling
    logprobs: bool
    prompt_logprobs: int | None
    token_ids: bool

    @property
    def begins(self) -> bool:
        """Every choice does."""
        return True

    @property
    def plain(self) -> bool:
        """Neither ids nor log-probabilities are asked for."""
        return not self.logprobs and not self.token_ids

    def begin(self, begun: Begun, usage: wire.Usage | None) -> wire.ChatCompletionChunk:
        """The chunk that says who speaks."""
        prompt = list(begun.prompt) if self.token_ids else None
        delta = wire.Delta(role="assistant", content="")
        return self._chunk([wire.ChatChunkChoice(index=begun.index, delta=delta, token_ids=self._ids(()))], usage, prompt)

    def show(self, shown: Shown, usage: wire.Usage | None) -> wire.ChatCompletionChunk:
        """A chunk with new text."""
        release = shown.release
        choice = wire.ChatChunkChoice(
            index=shown.index,
            delta=wire.Delta(content=release.text),
            logprobs=self._logprobs(release.ids, release.logprobs),
            token_ids=self._ids(release.ids),
        )
        return self._chunk([choice], usage)

    def end(self, ended: Ended, usage: wire.Usage | None) -> wire.ChatCompletionChunk:
        """The last chunk of a choice."""
        choice = wire.ChatChunkChoice(
            index=ended.index, delta=wire.Delta(), finish_reason=ended.reason.value, stop_reason=ended.stop_reason
        )
        return self._chunk([choice], usage)

    def total(self, usage: wire.Usage) -> wire.ChatCompletionChunk:
        """The chunk after all choices."""
        return self._chunk([], usage)

    def whole(self, found: Sequence[Collected], usage: wire.Usage) -> wire.ChatCompletion:
        """All choices at once."""
        begun, header = found[0].begun, self.header
        ranked = None
        if self.prompt_logprobs is not None:
            ranked = self.spelling.ranked(begun.prompt_logprobs, begun.prompt, self.prompt_logprobs)
        return wire.ChatCompletion(
            header.id, "chat.completion", header.created, header.model, header.fingerprint, [self._choice(each) for each in found], usage,
            prompt_logprobs=ranked, prompt_token_ids=list(begun.prompt) if self.token_ids else None,
        )  # fmt: skip

    def _choice(self, found: Collected) -> wire.ChatChoice:
        return wire.ChatChoice(
            index=found.ended.index,
            message=wire.AssistantMessage("assistant", found.text),
            logprobs=self._logprobs(found.ids, found.logprobs),
            finish_reason=found.ended.reason.value,
            stop_reason=found.ended.stop_reason,
            token_ids=self._ids(found.ids),
        )

    def _logprobs(self, ids: Sequence[int], found: Sequence[TokenLogprobs]) -> wire.ChatLogprobs | None:
        if not self.logprobs:
            return None
        return wire.ChatLogprobs([self._token(token, each) for token, each in zip(ids, found, strict=True)])

    def _token(self, token: int, found: TokenLogprobs) -> wire.ChatLogprob:
        top = [wire.TopLogprob(self.spelling.name(other), value, self._bytes(other)) for other, value in found.top]
        return wire.ChatLogprob(self.spelling.name(token), found.logprob, self._bytes(token), top)

    def _bytes(self, token: int) -> list[int]:
        return list(self.spelling.tokenizer.piece(token))

    def _ids(self, ids: Sequence[int]) -> list[int] | msgspec.UnsetType:
        return list(ids) if self.token_ids else msgspec.UNSET

    def _chunk(
        self, choices: list[wire.ChatChunkChoice], usage: wire.Usage | None, prompt: list[int] | None = None
    ) -> wire.ChatCompletionChunk:
        header = self.header
        return wire.ChatCompletionChunk(
            header.id, "chat.completion.chunk", header.created, header.model, header.fingerprint, choices, usage, prompt
        )


MESSAGES: Final = 1_024
PARTS: Final = 1_024
"""Parts of one message's content."""
TOOLS: Final = 128
DOCUMENTS: Final = 128
ATTACHED_BYTES: Final = 64 * 1024
"""Of tools, and of documents, as JSON."""
WAIT_SECONDS: Final = 5.0
"""How long a conversation may take to become ids, waiting included."""
RETRY_SECONDS: Final = 2
_THREADS: Final = ThreadPoolExecutor(4, "template")
"""Threads of their own: conversations that make a template expensive hold up other conversations and nothing else."""


async def tokenise_chat(asked: wire.ChatCompletionRequest | wire.TokenizeRequest, model: Model) -> list[int]:
    """The ids of the prompt. Raises ApiError and RequestError for what is no conversation, or none that this model can have."""
    template = model.chat
    if template is None:
        raise no_template(model.name)
    for name in ("tools", "documents"):
        if getattr(asked, name) and template.usable and name not in template.variables:
            raise ApiError("unsupported_parameter", f"this model's chat template does not read {name}; leave them out", param=name)
    salt = asked.cache_salt if isinstance(asked, wire.ChatCompletionRequest) else None
    rendering = asyncio.get_running_loop().run_in_executor(_THREADS, template.encode, conversation(asked), model.reading(salt))
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            return await rendering
    except TimeoutError:
        raise OverloadedError(f"chats wait longer than {WAIT_SECONDS:g} s for the template; try again", RETRY_SECONDS) from None


def conversation(asked: wire.ChatCompletionRequest | wire.TokenizeRequest) -> Conversation:
    """The body's part that a template reads. A final message is continued, or else followed by the assistant's turn."""
    continued = bool(asked.continue_final_message)
    return Conversation(
        messages=[_message(at, each) for at, each in enumerate(_bounded(asked.messages))],
        tools=_attached("tools", asked.tools, TOOLS),
        documents=_attached("documents", asked.documents, DOCUMENTS),
        add_generation_prompt=not continued if asked.add_generation_prompt is None else asked.add_generation_prompt,
        continue_final_message=continued,
        arguments=asked.chat_template_kwargs or {},
    )


def check_tools(asked: wire.ChatCompletionRequest) -> None:
    """Raises ApiError where a client may expect calls: answers are text here, and nothing reads calls out of them."""
    if asked.tool_choice not in (None, "none", "auto"):
        raise ApiError("unsupported_parameter", 'tool_choice can only be "none": this server does not parse calls', param="tool_choice")
    if asked.tools and asked.tool_choice != "none":
        raise ApiError(
            "unsupported_parameter",
            'this server does not parse tool calls; send tool_choice: "none" to show the tools to the model and get its answer as text',
            param="tools",
        )


def _bounded(messages: list[wire.ChatMessage] | None) -> list[wire.ChatMessage]:
    if messages is None:
        raise ApiError("missing_field", "messages is missing; send a list of messages with role and content", param="messages")
    if not 0 < len(messages) <= MESSAGES:
        raise ApiError("invalid_value", f"messages has {len(messages)}; send 1 to {MESSAGES}", param="messages")
    return messages


def _message(at: int, message: wire.ChatMessage) -> dict[str, object]:
    """A message as a template reads it: fields that hold nothing are left out."""
    for name in ("audio", "function_call"):
        if getattr(message, name) is not None:
            raise ApiError("unsupported_parameter", f"messages[{at}].{name} is not supported here; leave it out", param="messages")
    if message.content is None and message.role != "assistant":
        raise ApiError("missing_field", f"messages[{at}] has no content; send a string, or parts of type text", param="messages")
    content = message.content
    if isinstance(content, list):
        if len(content) > PARTS:
            raise ApiError("invalid_value", f"messages[{at}].content has {len(content)} parts; send at most {PARTS}", param="messages")
        content = [_part(at, each) for each in content]  # type: ignore[misc]
    found: dict[str, object] = {"role": message.role, "content": content}
    for name in ("name", "tool_call_id", "reasoning", "reasoning_content", "refusal"):
        found[name] = getattr(message, name)
    found["tool_calls"] = msgspec.to_builtins(message.tool_calls) if message.tool_calls else None
    return {name: value for name, value in found.items() if value is not None}


def _part(at: int, part: wire.ContentPart) -> dict[str, str]:
    if part.type != "text" or part.text is None:
        raise ApiError("unsupported_parameter", f"messages[{at}].content: only parts of type text are taken here", param="messages")
    return {"type": "text", "text": part.text}


def _attached(name: str, values: Sequence[Any] | None, most: int) -> list[dict[str, object]] | None:
    """Tools or documents as plain objects, within their bounds; None for none."""
    if not values:
        return None
    if len(values) > most:
        raise ApiError("invalid_value", f"{name} has {len(values)}; at most {most} are taken", param=name)
    size = len(msgspec.json.encode(values))
    if size > ATTACHED_BYTES:
        raise ApiError("invalid_value", f"{name} has {size} bytes as JSON; at most {ATTACHED_BYTES} are taken", param=name)
    plain: list[dict[str, object]] = msgspec.to_builtins(values)
    return plain
