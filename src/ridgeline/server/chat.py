"""`/v1/chat/completions`: a conversation in, the assistant's next message out, whole or as a stream.

Owns the meaning of the fields that only chat has, the form of its answers, and for every route that takes messages the limits of a
conversation and the fields that say how it is rendered. Templates are `text.chat`'s.
"""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline.engine.answer import ChoiceDelta, ChoiceEnd, ChoiceStart, CollectedChoice
from ridgeline.errors import OverloadedError
from ridgeline.server import body, fields, replies, wire
from ridgeline.server.answer import Header, respond
from ridgeline.server.errors import ApiError
from ridgeline.server.generate import start_generation
from ridgeline.server.logprobs import TokenNames, chat_logprobs, prompt_logprobs
from ridgeline.server.notes import Notes
from ridgeline.server.service import Model, Service
from ridgeline.server.structured import structured_outputs
from ridgeline.server.transport import read_body
from ridgeline.text.chat import ChatTemplate, no_template
from ridgeline.text.chat_content import MAX_MESSAGES, Conversation
from ridgeline.text.stream import TextDelta


def routes(service: Service) -> list[BaseRoute]:
    """The routes of this family."""

    async def chat(request: Request) -> Response:
        payload, notes = fields.CHAT.read(await read_body(request))
        model = service.model
        model.check_name(payload.model)
        body.check_generation(payload)
        logprobs, limit = body.num_logprobs(payload), body.output_limit(payload, notes)
        prompt = await tokenise_chat(payload, model, notes)
        max_tokens = limit.tokens if limit else _default_max_tokens(payload, model, len(prompt))
        asked = structured_outputs(payload)
        form = asked and asked.outputs
        params = body.sampling_params(payload, model.defaults, logprobs=logprobs, max_tokens=max_tokens, structured_outputs=form)
        grammar = await service.compile_grammar(asked)
        with body.client_field_names(payload, limit):
            source = await start_generation(service, payload, [prompt], params, notes, stop_ids=model.turn_end_ids, grammar=grammar)
        header = Header.make(model, f"chatcmpl-{source.id}")
        names = TokenNames(model.tokenizer, bool(payload.return_tokens_as_token_ids))
        bodies = ChatFormat(header, names, logprobs is not None, payload.prompt_logprobs, bool(payload.return_token_ids))
        return await respond(request, source, bodies, params.n, body.stream_settings(payload, service.config), notes)

    return [Route("/v1/chat/completions", chat, methods=["POST"])]


def _default_max_tokens(payload: wire.ChatCompletionRequest, model: Model, prompt_tokens: int) -> int | None:
    """The model's default, at most what the context allows. None: as many as fit."""
    default = model.defaults.get("max_tokens")
    if default is None:
        return None
    context = model.limits.max_model_len
    return max(1, min(int(default), context - prompt_tokens, context // max(1, payload.n or 1, payload.best_of or 1)))


# ── bodies ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """The bodies of one answer.

    logprobs         log-probabilities are given
    prompt_logprobs  number of likeliest ids given beside each token of the prompt; None: no log-probabilities
    token_ids        ids of prompt and outputs are given too
    """

    header: Header
    names: TokenNames
    logprobs: bool
    prompt_logprobs: int | None
    token_ids: bool

    @property
    def has_start_event(self) -> bool:
        """True: the first chunk of a choice gives the role."""
        return True

    @property
    def is_text_only(self) -> bool:
        """True if neither ids nor log-probabilities are asked for."""
        return not self.logprobs and not self.token_ids

    def start_event(self, start: ChoiceStart, usage: replies.Usage | None) -> replies.ChatCompletionChunk:
        """The chunk with the role."""
        prompt = list(start.prompt) if self.token_ids else None
        delta = replies.Delta(role="assistant", content="")
        return self._chunk([replies.ChatChunkChoice(index=start.index, delta=delta, token_ids=self._ids(()))], usage, prompt)

    def delta_event(self, delta: ChoiceDelta, usage: replies.Usage | None) -> replies.ChatCompletionChunk:
        """A chunk with new text."""
        return self._chunk([self._delta(delta)], usage)

    def end_event(self, end: ChoiceEnd, last: ChoiceDelta | None, usage: replies.Usage | None) -> replies.ChatCompletionChunk:
        """The last chunk of a choice, with its last text."""
        choice = self._delta(ChoiceDelta(end.index, TextDelta(0)) if last is None else last)
        delta = choice.delta if choice.delta.content else replies.Delta()
        return self._chunk([structs.replace(choice, delta=delta, finish_reason=end.reason.value, stop_reason=end.stop_reason)], usage)

    def usage_event(self, usage: replies.Usage) -> replies.ChatCompletionChunk:
        """The chunk after all choices."""
        return self._chunk([], usage)

    def full_body(self, choices: Sequence[CollectedChoice], usage: replies.Usage) -> replies.ChatCompletion:
        """All choices at once."""
        start, header = choices[0].start, self.header
        of_prompt = None
        if self.prompt_logprobs is not None:
            of_prompt = prompt_logprobs(self.names, start.prompt, start.prompt_logprobs, self.prompt_logprobs)
        return replies.ChatCompletion(
            header.id, "chat.completion", header.created, header.model, header.fingerprint, [self._choice(each) for each in choices], usage,
            prompt_logprobs=of_prompt, prompt_token_ids=list(start.prompt) if self.token_ids else None,
        )  # fmt: skip

    def _delta(self, delta: ChoiceDelta) -> replies.ChatChunkChoice:
        new = delta.delta
        return replies.ChatChunkChoice(
            index=delta.index,
            delta=replies.Delta(content=new.text),
            logprobs=chat_logprobs(self.names, new.ids, new.logprobs) if self.logprobs and new.ids else None,
            token_ids=self._ids(new.ids),
        )

    def _choice(self, choice: CollectedChoice) -> replies.ChatChoice:
        return replies.ChatChoice(
            index=choice.end.index,
            message=replies.AssistantMessage("assistant", choice.text),
            logprobs=chat_logprobs(self.names, choice.ids, choice.logprobs) if self.logprobs else None,
            finish_reason=choice.end.reason.value,
            stop_reason=choice.end.stop_reason,
            token_ids=self._ids(choice.ids),
        )

    def _ids(self, ids: Sequence[int]) -> list[int] | None:
        return list(ids) if self.token_ids else None

    def _chunk(
        self,
        choices: list[replies.ChatChunkChoice],
        usage: replies.Usage | None,
        prompt: list[int] | msgspec.UnsetType | None = msgspec.UNSET,
    ) -> replies.ChatCompletionChunk:
        header = self.header
        return replies.ChatCompletionChunk(
            header.id, "chat.completion.chunk", header.created, header.model, header.fingerprint, choices, usage, prompt
        )


MAX_CONTENT_PARTS: Final = 1_024
"""Parts of one message's content."""
MAX_TOOLS: Final = 128
MAX_DOCUMENTS: Final = 128
MAX_ATTACHED_BYTES: Final = 64 * 1024
"""Bytes of tools, and of documents, as JSON."""
TOKENISE_TIMEOUT_SECONDS: Final = 5.0
"""Time for a conversation to become ids, waiting included."""
RETRY_AFTER_SECONDS: Final = 2
_TEMPLATE_THREADS: Final = ThreadPoolExecutor(4, "template")
"""Threads of their own: conversations that make a template expensive hold up other conversations and nothing else."""


async def tokenise_chat(payload: wire.ChatCompletionRequest | wire.TokenizeRequest, model: Model, notes: Notes) -> list[int]:
    """The ids of the prompt. Raises ApiError and RequestError for what is no conversation, or none that this model can have."""
    template = model.chat
    if template is None:
        raise no_template(model.name)
    for name in ("tools", "documents"):
        if getattr(payload, name) and template.is_usable and name not in template.variables:
            raise ApiError("unsupported_parameter", f"this model's chat template does not read {name}; leave them out", param=name)
    salt = None
    if isinstance(payload, wire.ChatCompletionRequest):
        salt = payload.cache_salt
        _check_tools(payload)
    encoder = model.prompt_encoder(salt)
    asked = conversation(payload, _arguments(payload, template, notes))
    if template.is_usable:
        notes.folded += template.folded_roles(asked)
    encoding = asyncio.get_running_loop().run_in_executor(_TEMPLATE_THREADS, template.encode, asked, encoder)
    try:
        async with asyncio.timeout(TOKENISE_TIMEOUT_SECONDS):
            return await encoding
    except TimeoutError:
        message = f"chats wait longer than {TOKENISE_TIMEOUT_SECONDS:g} s for the template; try again"
        raise OverloadedError(message, RETRY_AFTER_SECONDS) from None


def _arguments(payload: wire.ChatCompletionRequest | wire.TokenizeRequest, template: ChatTemplate, notes: Notes) -> dict[str, object]:
    """`chat_template_kwargs` that the template reads, and what `reasoning_effort` means to it; notes the others.

    Raises ApiError for an effort that the template does not read.
    """
    given = payload.chat_template_kwargs or {}
    unread = template.unread(given) if template.is_usable else ()
    for name in unread:
        notes.ignore(f"chat_template_kwargs.{name}", "this model's chat template does not read it")
    found = {name: value for name, value in given.items() if name not in unread}
    effort = payload.reasoning_effort if isinstance(payload, wire.ChatCompletionRequest) else None
    if effort == "none":
        if "enable_thinking" in template.variables:
            found.setdefault("enable_thinking", False)
    elif effort is not None:
        if "reasoning_effort" not in template.variables:
            message = 'this model\'s chat template does not read reasoning_effort; leave it out, or send "none"'
            raise ApiError("unsupported_parameter", message, param="reasoning_effort")
        found.setdefault("reasoning_effort", effort)
    return found


def conversation(payload: wire.ChatCompletionRequest | wire.TokenizeRequest, arguments: Mapping[str, object]) -> Conversation:
    """The part of the body that a template reads. A final message is continued, or else followed by the assistant's turn."""
    continued = bool(payload.continue_final_message)
    return Conversation(
        messages=[_message(at, each) for at, each in enumerate(_checked_messages(payload.messages))],
        tools=_plain_objects("tools", payload.tools, MAX_TOOLS),
        documents=_plain_objects("documents", payload.documents, MAX_DOCUMENTS),
        add_generation_prompt=not continued if payload.add_generation_prompt is None else payload.add_generation_prompt,
        continue_final_message=continued,
        arguments=arguments,
    )


def _check_tools(payload: wire.ChatCompletionRequest) -> None:
    """Raises ApiError where a client may expect tool calls: answers are text here, and nothing parses calls out of them. Tools that the
    template does not read have been rejected before, so that no hint leads to another error."""
    if payload.tool_choice not in (None, "none", "auto"):
        message = "this server does not parse tool calls yet, so an answer cannot be made to be one; leave tool_choice out"
        raise ApiError("unsupported_parameter", message, param="tool_choice")
    if payload.tools and payload.tool_choice != "none":
        raise ApiError(
            "unsupported_parameter",
            'this server does not parse tool calls yet; send tool_choice: "none" to show the tools to the model and get its answer as text',
            param="tools",
        )


def _checked_messages(messages: list[wire.ChatMessage] | None) -> list[wire.ChatMessage]:
    if messages is None:
        raise ApiError("missing_field", "messages is missing; send a list of messages with role and content", param="messages")
    if not 0 < len(messages) <= MAX_MESSAGES:
        raise ApiError("invalid_value", f"messages has {len(messages)}; send 1 to {MAX_MESSAGES}", param="messages")
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
        if len(content) > MAX_CONTENT_PARTS:
            message_text = f"messages[{at}].content has {len(content)} parts; send at most {MAX_CONTENT_PARTS}"
            raise ApiError("invalid_value", message_text, param="messages")
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


def _plain_objects(name: str, values: Sequence[Any] | None, limit: int) -> list[dict[str, object]] | None:
    """Tools or documents as plain objects, within their bounds; None for none."""
    if not values:
        return None
    if len(values) > limit:
        raise ApiError("invalid_value", f"{name} has {len(values)}; at most {limit} are taken", param=name)
    size = len(msgspec.json.encode(values))
    if size > MAX_ATTACHED_BYTES:
        raise ApiError("invalid_value", f"{name} has {size} bytes as JSON; at most {MAX_ATTACHED_BYTES} are taken", param=name)
    plain: list[dict[str, object]] = msgspec.to_builtins(values)
    return plain
