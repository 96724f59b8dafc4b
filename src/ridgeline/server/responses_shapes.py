"""The shapes of OpenAI's Responses API: typed structs of requests, items, answers and events. Endpoints fill them, `server.openapi`
publishes them."""

from typing import Any, Literal

import msgspec
from msgspec import Struct

from ridgeline.server import wire
from ridgeline.server.replies import ChatLogprob

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


# ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Part(Struct, frozen=True, omit_defaults=True):
    """One part of a content: `input_text`, `output_text`, `text`, `reasoning_text`, `summary_text` or `refusal`."""

    type: str
    text: str | None = None
    refusal: str | None = None


class Item(Struct, frozen=True, omit_defaults=True):
    """One item of a conversation, as clients send it and as answers had it. Without a type it is a message."""

    type: str | None = None
    id: str | None = None
    role: str | None = None
    content: str | list[Part] | None = None
    status: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[Part] | None = None
    summary: list[Part] | None = None
    encrypted_content: str | None = None


class Reasoning(Struct, frozen=True):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: str | None = None


class TextFormat(Struct, frozen=True, omit_defaults=True):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextConfig(Struct, frozen=True, omit_defaults=True):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesRequest(wire.SamplerOptions, frozen=True):
    """OpenAI's fields, and those of chat that vLLM takes here too."""

    model: str | None = None
    input: str | list[Item] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: wire.StreamOptions | None = None
    include: list[str] | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = None
    prompt_cache_key: str | None = None
    reasoning: Reasoning | None = None
    safety_identifier: str | None = None
    text: TextConfig | None = None
    tool_choice: str | dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    top_logprobs: int | None = None
    truncation: Literal["auto", "disabled"] | None = None
    user: str | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    logit_bias: dict[str, float] | None = None
    bad_words: list[str] | None = None
    structured_outputs: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    thinking_token_budget: int | None = None
    priority: int | None = None
    ttft_ms: int | None = None
    itl_ms: int | None = None
    deadline_ms: int | None = None
    cache_salt: str | None = None


# ── items of an answer ──────────────────────────────────────────────────────────────────────────────────────────────


class OutputText(Struct, frozen=True, tag="output_text"):
    text: str
    annotations: list[Any] = []
    logprobs: list[ChatLogprob] = []


class ReasoningText(Struct, frozen=True, tag="reasoning_text"):
    text: str


class OutputMessage(Struct, frozen=True, tag="message"):
    id: str
    status: ItemStatus
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"


class ReasoningItem(Struct, frozen=True, tag="reasoning"):
    """The reasoning of the model. It is given as it is, without a summary; in `encrypted_content` again where that is asked for, in a form
    that clients pass back as they got it. It hides nothing."""

    id: str
    status: ItemStatus
    content: list[ReasoningText]
    summary: list[Any] = []
    encrypted_content: str | None = None


class FunctionCall(Struct, frozen=True, tag="function_call"):
    """A call of a function. `arguments` is a text of JSON, as the model wrote it; `namespace` that of the tool, where it has one."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus
    namespace: str | msgspec.UnsetType = msgspec.UNSET


class CustomCall(Struct, frozen=True, tag="custom_tool_call"):
    """A call of a tool of type custom, whose input is any text."""

    id: str
    call_id: str
    name: str
    input: str
    status: ItemStatus
    namespace: str | msgspec.UnsetType = msgspec.UNSET


OutputItem = OutputMessage | ReasoningItem | FunctionCall | CustomCall


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class InputTokensDetails(Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(Struct, frozen=True):
    reasoning_tokens: int


class ResponseUsage(Struct, frozen=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(Struct, frozen=True):
    code: str
    message: str


class IncompleteDetails(Struct, frozen=True):
    reason: Literal["max_output_tokens"]


class ResponseObject(Struct, frozen=True, kw_only=True):
    """An answer, whole or so far, with the fields of its request. `store`: it can be asked for by its id, and continued."""

    id: str
    created_at: int
    status: Status
    model: str
    output: list[OutputItem]
    object: Literal["response"] = "response"
    completed_at: int | None = None
    background: bool = False
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] = {}
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    reasoning: Reasoning
    safety_identifier: str | None = None
    service_tier: Literal["default"] = "default"
    store: bool
    temperature: float
    text: TextConfig
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int = 0
    top_p: float
    truncation: str = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None


class ItemPage(Struct, frozen=True):
    """Items of a conversation, a page of them."""

    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


class InputTokens(Struct, frozen=True):
    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


class Deleted(Struct, frozen=True):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


# ── events ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Event(Struct, frozen=True, kw_only=True):
    """`sequence_number` counts the events of a stream from 0."""

    sequence_number: int


class _OfResponse(_Event, frozen=True):
    response: ResponseObject


class Created(_OfResponse, frozen=True, tag="response.created"):
    pass


class InProgress(_OfResponse, frozen=True, tag="response.in_progress"):
    pass


class Completed(_OfResponse, frozen=True, tag="response.completed"):
    pass


class Incomplete(_OfResponse, frozen=True, tag="response.incomplete"):
    pass


class Failed(_OfResponse, frozen=True, tag="response.failed"):
    pass


class _OfItem(_Event, frozen=True, kw_only=True):
    output_index: int
    item: OutputItem


class ItemAdded(_OfItem, frozen=True, tag="response.output_item.added"):
    pass


class ItemDone(_OfItem, frozen=True, tag="response.output_item.done"):
    pass


class _InItem(_Event, frozen=True, kw_only=True):
    item_id: str
    output_index: int


class _OfPart(_InItem, frozen=True, kw_only=True):
    part: OutputText | ReasoningText
    content_index: Literal[0] = 0


class PartAdded(_OfPart, frozen=True, tag="response.content_part.added"):
    pass


class PartDone(_OfPart, frozen=True, tag="response.content_part.done"):
    pass


class TextDelta(_InItem, frozen=True, kw_only=True, tag="response.output_text.delta"):
    delta: str
    logprobs: list[ChatLogprob] = []
    content_index: Literal[0] = 0


class TextDone(_InItem, frozen=True, kw_only=True, tag="response.output_text.done"):
    text: str
    logprobs: list[ChatLogprob] = []
    content_index: Literal[0] = 0


class ReasoningDelta(_InItem, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    delta: str
    content_index: Literal[0] = 0


class ReasoningDone(_InItem, frozen=True, kw_only=True, tag="response.reasoning_text.done"):
    text: str
    content_index: Literal[0] = 0


class ArgumentsDelta(_InItem, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"):
    delta: str


class ArgumentsDone(_InItem, frozen=True, kw_only=True, tag="response.function_call_arguments.done"):
    name: str
    arguments: str


class InputDelta(_InItem, frozen=True, kw_only=True, tag="response.custom_tool_call_input.delta"):
    delta: str


class InputDone(_InItem, frozen=True, kw_only=True, tag="response.custom_tool_call_input.done"):
    input: str


Event = (
    Created | InProgress | Completed | Incomplete | Failed | ItemAdded | ItemDone | PartAdded | PartDone | TextDelta | TextDone
    | ReasoningDelta | ReasoningDone | ArgumentsDelta | ArgumentsDone | InputDelta | InputDone
)  # fmt: skip
