"""From the body of a chat to what a template renders, and on to ids. Serves every route that takes messages.

Owns the limits of a conversation and the fields that say how it is rendered. Templates are `text.chat`'s.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec

from ridgeline.errors import OverloadedError
from ridgeline.server import wire
from ridgeline.server.errors import ApiError
from ridgeline.server.served import Model
from ridgeline.text.chat import no_template
from ridgeline.text.chat_content import Conversation

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
    """As a template reads it: fields that hold nothing are left out."""
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
