"""The shapes of request bodies: typed structs. `server.body` reads them, `server.openapi` publishes them; `server.replies` has answers'.

Owns which fields exist. Null means absent, as clients send it for what they leave open; only a completion's `max_tokens` has a meaning for
it. Ranges are `engine.admit`'s business, what fields mean is `server.body`'s, which names are rejected `server.unsupported`'s.
"""

from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct

from ridgeline.core.params import OPTIONS


class StreamOptions(Struct, frozen=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class VoteOptions(Struct, frozen=True):
    """Options of `core.params.Vote`, without regular expressions: those of clients could take for ever."""

    marker: str | None = None
    json_pointer: str | None = None


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
    max_tokens: int | msgspec.UnsetType | None = msgspec.UNSET
    max_completion_tokens: int | None = None
    n_predict: int | None = None
    logprobs: bool | int | None = None
    top_logprobs: int | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    n: int | None = None
    best_of: int | None = None
    vote: VoteOptions | None = None
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
    thinking_token_budget: int | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    json_schema: dict[str, Any] | str | bool | None = None
    grammar: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    priority: int | None = None
    ttft_ms: int | None = None
    itl_ms: int | None = None
    deadline_ms: int | None = None
    explain: bool | None = None
    cache_salt: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class CompletionRequest(GenerationRequest, frozen=True):
    prompt: str | list[str | int | list[int]] | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    echo: bool | None = None


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


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ThinkingOptions(Struct, frozen=True):
    """Anthropic's words, which others took over."""

    type: Literal["enabled", "disabled", "adaptive"] | None = None
    budget_tokens: int | None = None


class ReasoningOptions(Struct, frozen=True):
    """OpenRouter's words. exclude: the reasoning is not told."""

    effort: Effort | None = None
    max_tokens: int | None = None
    exclude: bool | None = None
    enabled: bool | None = None


class ChatCompletionRequest(GenerationRequest, frozen=True):
    messages: list[ChatMessage] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    include_reasoning: bool | None = None
    thinking_budget: int | None = None
    thinking_budget_tokens: int | None = None
    reasoning_budget: int | None = None
    reasoning_budget_tokens: int | None = None
    enable_thinking: bool | None = None
    thinking: ThinkingOptions | None = None
    reasoning: ReasoningOptions | None = None
    think: bool | str | None = None


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


class LlamaTokenizeRequest(Struct, frozen=True):
    """A text, as llama.cpp's clients send it."""

    content: str
    model: str | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class TextsRequest(Struct, frozen=True):
    """Fields that all requests for vectors of texts have in common. truncate_prompt_tokens: the first tokens that are kept, -1: as many as
    the model takes."""

    model: str | None = None
    truncate_prompt_tokens: int | None = None
    priority: int | None = None
    deadline_ms: int | None = None
    cache_salt: str | None = None


class EmbeddingRequest(TextsRequest, frozen=True):
    """A text, texts, token ids, or lists of token ids."""

    input: str | list[str | int | list[int]] | None = None
    dimensions: int | None = None
    encoding_format: Literal["float", "base64"] | None = None
    add_special_tokens: bool | None = None


class ScoreRequest(TextsRequest, frozen=True):
    """Texts to compare: one with each of several, or pairs. The three pairs of names mean the same."""

    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    queries: str | list[str] | None = None
    documents: str | list[str] | None = None
    data_1: str | list[str] | None = None
    data_2: str | list[str] | None = None


class RerankDocument(Struct, frozen=True):
    text: str


class RerankRequest(TextsRequest, frozen=True):
    """Documents to order by their likeness to a query. top_n: those that are answered; 0: all. texts: as text-embeddings-inference
    calls them, which is answered in its form, with each text where `return_text` asks for it."""

    query: str | None = None
    documents: list[str | RerankDocument] | None = None
    top_n: int | None = None
    return_documents: bool | None = None
    texts: list[str] | None = None
    return_text: bool | None = None


class LoadLoraRequest(Struct, frozen=True):
    """`lora_path`: the name of what lies under --lora-root; None: as `lora_name`. `pinned`: it keeps its slot once it has one."""

    lora_name: str
    lora_path: str | None = None
    load_inplace: bool | None = None
    pinned: bool | None = None


class UnloadLoraRequest(Struct, frozen=True):
    """`lora_int_id` is vLLM's, and names nothing here."""

    lora_name: str
    lora_int_id: int | None = None


class ModelName(Struct, frozen=True):
    """One of the server's models."""

    model: str


class DetokenizeRequest(Struct, frozen=True):
    model: str | None = None
    tokens: list[int] | None = None
