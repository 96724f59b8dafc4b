"""The prompt of a conversation: what a template reads of a body, within its bounds, as text and as ids.

Owns the limits of a conversation and the fields that say how it is rendered, for every route that takes messages. Templates are
`text.chat`'s.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from ridgeline.server import reasoning, wire
from ridgeline.server.encoding import run_encoding
from ridgeline.server.errors import ApiError
from ridgeline.server.loading import Model
from ridgeline.server.notes import Notes
from ridgeline.server.workers import Workers
from ridgeline.text.chat import ChatTemplate, no_template
from ridgeline.text.chat_content import MAX_MESSAGES, Conversation
from ridgeline.text.prompt_cache import Encoder
from ridgeline.text.tokenizer import Tokenizer

Payload = wire.ChatCompletionRequest | wire.TokenizeRequest
Result = TypeVar("Result")

MAX_CONTENT_PARTS: Final = 1_024
"""Parts of one message's content."""
MAX_TOOLS: Final = 512
MAX_DOCUMENTS: Final = 128
MAX_ATTACHED_BYTES: Final = 256 * 1024
"""Bytes of tools, and of documents, as JSON."""
TOKENISE_TIMEOUT_SECONDS: Final = 5.0
"""Time for a conversation to become ids, waiting included."""
_WORKERS: Final = Workers("template", 4, "chats wait for the template", TOKENISE_TIMEOUT_SECONDS)
"""Threads of their own: conversations that make a template expensive hold up other conversations and nothing else."""


async def tokenise_chat(payload: Payload, model: Model, notes: Notes, wish: reasoning.Wish | None = None) -> list[int]:
    """The ids of the prompt. `wish`: the body's for reasoning, where it has been read. Raises ApiError and RequestError for what is no
    conversation, or none that this model can have."""
    encoder = model.prompt_encoder(payload.cache_salt if isinstance(payload, wire.ChatCompletionRequest) else None)
    return await tokenise_by(_template(model), model.tokenizer, encoder, payload, notes, wish)


async def tokenise_by(
    template: ChatTemplate, tokenizer: Tokenizer, encoder: Encoder, payload: Payload, notes: Notes, wish: reasoning.Wish | None = None
) -> list[int]:
    """The same by a template and a tokenizer alone."""
    asked = _asked(payload, template, notes, wish)
    notes.encoding = time.monotonic()
    text = await template.masked_from_loop(asked)
    if text is None:
        ids = await _run_template(template.encode, asked, encoder, notes.note_rendered)
    else:
        notes.note_rendered()
        ids = await run_encoding(tokenizer, len(text), partial(encoder.encode, text, add_bos=False, special=True), "messages")
    notes.tokenised = time.monotonic()
    return ids


async def render_chat(payload: wire.ChatCompletionRequest, model: Model, notes: Notes) -> str:
    """The prompt as text, for display. Raises as `tokenise_chat`."""
    template = _template(model)
    return await _run_template(template.render, _asked(payload, template, notes))


def _template(model: Model) -> ChatTemplate:
    """Raises RequestError where the model has none."""
    if model.chat is None:
        model.check_generates()
        raise no_template(model.name)
    return model.chat


def _asked(payload: Payload, template: ChatTemplate, notes: Notes, wish: reasoning.Wish | None = None) -> Conversation:
    """The conversation as the template is told of it. Raises ApiError and RequestError."""
    for name in ("tools", "documents"):
        if getattr(payload, name) and template.is_usable and name not in template.variables:
            raise ApiError("unsupported_parameter", f"this model's chat template does not read {name}; leave them out", param=name)
    asked = conversation(payload, _arguments(payload, template, notes, wish))
    if template.is_usable:
        notes.folded += template.folded_roles(asked)
    return asked


async def _run_template(work: Callable[..., Result], *arguments: object) -> Result:
    """The result of work with a template, in its threads. Raises OverloadedError where that takes too long."""
    try:
        return await _WORKERS.run(partial(work, *arguments))
    except TimeoutError:
        raise _WORKERS.overloaded() from None


def _arguments(payload: Payload, template: ChatTemplate, notes: Notes, wish: reasoning.Wish | None) -> dict[str, object]:
    """`chat_template_kwargs` that the template reads, and what a wish about reasoning means to it; notes the others. Raises ApiError."""
    given = payload.chat_template_kwargs or {}
    unread = template.unread(given) if template.is_usable else ()
    for name in unread:
        notes.ignore(f"chat_template_kwargs.{name}", "this model's chat template does not read it")
    found = {name: value for name, value in given.items() if name not in unread}
    if not isinstance(payload, wire.ChatCompletionRequest):
        return found
    return reasoning.template_arguments(wish or reasoning.wish(payload), found, template, notes)


def conversation(payload: Payload, arguments: Mapping[str, object]) -> Conversation:
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
