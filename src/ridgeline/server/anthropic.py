"""The shapes of Anthropic's API beside those of `wire` and `replies`: typed structs. Endpoints fill them, `server.openapi` has them."""

from typing import Any, Literal

import msgspec
from msgspec import Struct

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


# ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────────


class InputBlock(Struct, frozen=True):
    """A part of a turn. Which of the fields count depends on its type."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list["InputBlock"] | None = None
    is_error: bool | None = None
    tool_name: str | None = None
    title: str | None = None
    source: Any = None


class InputMessage(Struct, frozen=True):
    """A turn, or instructions between turns. One of the assistant at the end is continued. Some clients call a user's turn ctx or msg."""

    role: Literal["user", "assistant", "system", "ctx", "msg"]
    content: str | list[InputBlock]


class ToolDefinition(Struct, frozen=True):
    """A tool of the client's. type: absent or custom; others are tools that Anthropic defines."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    type: str | None = None
    strict: bool | None = None


class ToolChoice(Struct, frozen=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(Struct, frozen=True):
    """display: omitted: a block has its thoughts in its signature alone, where clients pass them back and show them to nobody."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(Struct, frozen=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Struct, frozen=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountTokensRequest(Struct, frozen=True):
    model: str | None = None
    messages: list[InputMessage] | None = None
    system: str | list[InputBlock] | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    context_management: dict[str, Any] | None = None
    thread: dict[str, Any] | None = None


class MessagesRequest(CountTokensRequest, frozen=True):
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    ttft_ms: int | None = None
    itl_ms: int | None = None
    deadline_ms: int | None = None


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class OutputTokensDetails(Struct, frozen=True):
    thinking_tokens: int


class MessageUsage(Struct, frozen=True, omit_defaults=True):
    """`input_tokens` are those of the prompt that were not in the prefix cache. A stream tells of both as it begins, and at its end."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokensDetails | None = None
    """Given where the model can reason, at the end."""


class TextBlock(Struct, frozen=True, tag="text"):
    text: str


class ThinkingBlock(Struct, frozen=True, tag="thinking"):
    """Reasoning. `signature` proves nothing; clients pass blocks without one back as text, or not at all."""

    thinking: str
    signature: str


class ToolUseBlock(Struct, frozen=True, tag="tool_use"):
    """A call. In a stream its input follows as pieces of JSON."""

    id: str
    name: str
    input: msgspec.Raw


Block = TextBlock | ThinkingBlock | ToolUseBlock


class Message(Struct, frozen=True):
    """A whole answer; in a stream's first event without content and end."""

    id: str
    model: str
    content: list[Block]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"


class MessageStart(Struct, frozen=True, tag="message_start"):
    message: Message


class ContentBlockStart(Struct, frozen=True, tag="content_block_start"):
    index: int
    content_block: Block


class Ping(Struct, frozen=True, tag="ping"):
    pass


class NewText(Struct, frozen=True, tag="text_delta"):
    text: str


class NewThinking(Struct, frozen=True, tag="thinking_delta"):
    thinking: str


class NewSignature(Struct, frozen=True, tag="signature_delta"):
    signature: str


class NewInput(Struct, frozen=True, tag="input_json_delta"):
    partial_json: str


class ContentBlockDelta(Struct, frozen=True, tag="content_block_delta"):
    index: int
    delta: NewText | NewThinking | NewSignature | NewInput


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
    """Models in the order of the server; `has_more`: there are others behind them."""

    data: list[ModelInfo]
    first_id: str | None
    last_id: str | None
    has_more: bool = False
