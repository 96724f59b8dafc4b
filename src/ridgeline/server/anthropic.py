"""The shapes of Anthropic's API beside those of `wire` and `replies`: typed structs. Endpoints fill them, `server.openapi` has them."""

from typing import Literal

import msgspec
from msgspec import Struct

from ridgeline.server.wire import ContentPart

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "model_context_window_exceeded"]


# ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────────


class InputMessage(Struct, frozen=True):
    """A turn, or instructions between turns. One of the assistant at the end is continued."""

    role: Literal["user", "assistant", "system"]
    content: str | list[ContentPart]


class CountTokensRequest(Struct, frozen=True):
    model: str | None = None
    messages: list[InputMessage] | None = None
    system: str | list[ContentPart] | None = None


class MessagesRequest(CountTokensRequest, frozen=True):
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class MessageUsage(Struct, frozen=True):
    """`input_tokens` are those of the prompt that were not in the prefix cache; in a stream's first event all of them."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class TextBlock(Struct, frozen=True):
    text: str
    type: Literal["text"] = "text"


class Message(Struct, frozen=True):
    """A whole answer; in a stream's first event without content and end."""

    id: str
    model: str
    content: list[TextBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"


class MessageStart(Struct, frozen=True, tag="message_start"):
    message: Message


class ContentBlockStart(Struct, frozen=True, tag="content_block_start"):
    index: int
    content_block: TextBlock


class Ping(Struct, frozen=True, tag="ping"):
    pass


class NewText(Struct, frozen=True):
    text: str
    type: Literal["text_delta"] = "text_delta"


class ContentBlockDelta(Struct, frozen=True, tag="content_block_delta"):
    index: int
    delta: NewText


class ContentBlockStop(Struct, frozen=True, tag="content_block_stop"):
    index: int


class MessageEnd(Struct, frozen=True):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(Struct, frozen=True, tag="message_delta"):
    delta: MessageEnd
    usage: MessageUsage


class MessageStop(Struct, frozen=True, tag="message_stop"):
    pass


Event = MessageStart | ContentBlockStart | Ping | ContentBlockDelta | ContentBlockStop | MessageDelta | MessageStop


def encode_event(event: Event) -> bytes:
    """An event of a stream with the line that names it, as `transport.ANTHROPIC_EVENTS` takes them."""
    return named(event, msgspec.json.encode(event))


def named(event: Event, payload: bytes) -> bytes:
    """The payload of an event of this type, after the line that names it."""
    return f"{event.__struct_config__.tag}\ndata: ".encode() + payload


class TokenCount(Struct, frozen=True):
    input_tokens: int


class ModelInfo(Struct, frozen=True, kw_only=True):
    """A model. `max_tokens`: the longest answer, which shares the context with its prompt."""

    id: str
    created_at: str
    display_name: str
    max_input_tokens: int
    max_tokens: int
    lifecycle: Literal["active"] = "active"
    type: Literal["model"] = "model"


class ModelPage(Struct, frozen=True, kw_only=True):
    """All models on one page."""

    data: list[ModelInfo]
    first_id: str
    last_id: str
    has_more: Literal[False] = False
