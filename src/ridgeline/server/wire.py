"""The shapes of request and response bodies: typed structs. `server.body` reads them, `server.openapi` publishes them.

Owns which fields exist. Null means absent everywhere: clients send it for what they leave open. Ranges are `engine.admit`'s business,
what fields mean, and which known fields are rejected, is `server.body`'s.
"""

from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct

from ridgeline.core.params import OPTIONS

# ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────────


class StreamOptions(Struct, frozen=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


if TYPE_CHECKING:
    SamplerOptions = Struct
else:
    SamplerOptions = msgspec.defstruct(
        "SamplerOptions", [(name, (int if option.bound.whole else float) | None, None) for name, option in OPTIONS.items()], frozen=True
    )
    """Numbers of the sampler: `core.params` says which there are."""


class GenerationRequest(SamplerOptions, frozen=True):
    """Fields that all requests that generate have in common."""

    model: str | None = None
    max_tokens: int | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    n: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class CompletionRequest(GenerationRequest, frozen=True):
    prompt: str | list[str | int | list[int]] | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    echo: bool | None = None
    logprobs: int | None = None


class ContentPart(Struct, frozen=True):
    """One part of a message's content; only those of type `text` are taken."""

    type: str
    text: str | None = None


class FunctionCall(Struct, frozen=True, omit_defaults=True):
    name: str
    arguments: str | dict[str, Any] = ""


class ToolCall(Struct, frozen=True, omit_defaults=True):
    """A call in an earlier message of the assistant."""

    function: FunctionCall
    id: str | None = None
    type: Literal["function"] | None = None


class ChatMessage(Struct, frozen=True):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    audio: Any = None
    function_call: Any = None


class FunctionDefinition(Struct, frozen=True, omit_defaults=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Struct, frozen=True):
    type: Literal["function"]
    function: FunctionDefinition


class ChatCompletionRequest(GenerationRequest, frozen=True):
    messages: list[ChatMessage] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class TokenizeRequest(Struct, frozen=True):
    """A text, or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    tools: list[Tool] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Struct, frozen=True):
    model: str | None = None
    tokens: list[int] | None = None


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class PromptTokensDetails(Struct, frozen=True):
    cached_tokens: int


class Usage(Struct, frozen=True, omit_defaults=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    """Absent while the answer is under way."""


class PromptLogprob(Struct, frozen=True):
    """`rank` 1 is the likeliest id; null where the id is not among the likeliest that were asked for."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]
"""For each token of the prompt the log-probabilities by id; null for the first, which nothing precedes."""


class Logprobs(Struct, frozen=True):
    """Columns over tokens. The first token of an echoed prompt has null."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class Choice(Struct, frozen=True, kw_only=True):
    index: int
    text: str
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class Completion(Struct, frozen=True, omit_defaults=True):
    """A whole answer, or one event of a stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: Usage | None = None


class TopLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct, frozen=True):
    content: list[ChatLogprob]
    refusal: None = None


class AssistantMessage(Struct, frozen=True):
    role: Literal["assistant"]
    content: str
    refusal: None = None


class ChatChoice(Struct, frozen=True, kw_only=True):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str
    stop_reason: str | int | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatCompletion(Struct, frozen=True, omit_defaults=True):
    """A whole answer to a chat."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None


class Delta(Struct, frozen=True, omit_defaults=True):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(Struct, frozen=True, kw_only=True):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatCompletionChunk(Struct, frozen=True, omit_defaults=True):
    """One event of a streamed answer to a chat."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    prompt_token_ids: list[int] | None = None


class ModelCard(Struct, frozen=True):
    """`chat`: whether the model has a template, so that `/v1/chat/completions` answers."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int
    chat: bool


class ModelList(Struct, frozen=True):
    object: Literal["list"]
    data: list[ModelCard]


class TokenizeResponse(Struct, frozen=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeResponse(Struct, frozen=True):
    prompt: str


class Version(Struct, frozen=True):
    version: str
