"""The shapes of response bodies: typed structs. Endpoints fill them, `server.openapi` publishes them.

Owns which fields answers have. Beside OpenAI's, whole answers have vLLM's, null where nothing was asked for: its clients read them without
looking whether they are there.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ridgeline.engine.answer import Election


class PromptTokensDetails(Struct, frozen=True):
    cached_tokens: int


class CompletionTokensDetails(Struct, frozen=True):
    reasoning_tokens: int


class TimeSpent(Struct, frozen=True):
    """Milliseconds by cause (`docs/explain.md`), to the first token and to the last, and the cause to look at first."""

    first: str | None
    ttft_ms: dict[str, float]
    total_ms: dict[str, float]


class Usage(Struct, frozen=True, omit_defaults=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    """Absent while the answer is under way."""
    completion_tokens_details: CompletionTokensDetails | None = None
    """Given for a chat with a model that thinks, at its end."""
    ridgeline: TimeSpent | None = None
    """Given at its end where the request has `explain`."""


class PromptLogprob(Struct, frozen=True):
    """`rank` 1 is the likeliest id, of equals the lower."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]
"""Log-probabilities by id, per token of the prompt; null for the first, which nothing precedes."""


class Logprobs(Struct, frozen=True):
    """Columns over tokens. The first token of an echoed prompt has null."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class Elected(Struct, frozen=True):
    """The result of the vote that elected an answer; `answer` is null where no text had one."""

    answer: str | None
    votes: int
    voters: int


def elected(election: Election | None) -> Elected | msgspec.UnsetType:
    """The vote as an answer tells it; nothing where there was no vote."""
    return msgspec.UNSET if election is None else Elected(election.answer, election.votes, election.voters)


class Choice(Struct, frozen=True, kw_only=True):
    index: int
    text: str
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None
    vote: Elected | msgspec.UnsetType = msgspec.UNSET


class Completion(Struct, frozen=True):
    """A whole answer."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: Usage
    service_tier: None = None
    kv_transfer_params: None = None


class CompletionChunk(Struct, frozen=True, omit_defaults=True):
    """One event of a streamed answer."""

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


class CalledFunction(Struct, frozen=True):
    """`arguments` is a text of JSON, as the model wrote it."""

    name: str
    arguments: str


class ToolCall(Struct, frozen=True):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(Struct, frozen=True):
    """`content` is null for an answer of nothing but calls."""

    role: Literal["assistant"]
    content: str | None
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(Struct, frozen=True, kw_only=True):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None
    vote: Elected | msgspec.UnsetType = msgspec.UNSET


class ChatCompletion(Struct, frozen=True):
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
    service_tier: None = None
    kv_transfer_params: None = None


class FunctionDelta(Struct, frozen=True, omit_defaults=True):
    arguments: str
    name: str | None = None


class CallDelta(Struct, frozen=True, omit_defaults=True):
    """More of the call of that index: id and name once, then its arguments piece by piece."""

    index: int
    function: FunctionDelta
    id: str | None = None
    type: Literal["function"] | None = None


class Delta(Struct, frozen=True, omit_defaults=True):
    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CallDelta] | None = None


class ChatChunkChoice(Struct, frozen=True, kw_only=True):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class ChatCompletionChunk(Struct, frozen=True, omit_defaults=True):
    """One event of a streamed answer to a chat. `prompt_token_ids` is in the first alone, null unless asked for."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    prompt_token_ids: list[int] | msgspec.UnsetType | None = msgspec.UNSET


class Health(Struct, frozen=True):
    status: str = "ok"


class CheckFinding(Struct, frozen=True):
    """A problem that a check of the model found before the first request."""

    severity: Literal["error", "warning", "note"]
    check: str
    cause: str
    fix: str


class ModelNotes(Struct, frozen=True):
    """Findings of Ridgeline about a model.

    kind      base: it continues texts; instruct: it was trained to chat
    reason    from what that was concluded
    sampling  values that its authors recommend, which fields have that a client leaves out
    """

    kind: Literal["base", "instruct"]
    reason: str
    checks: list[CheckFinding]
    sampling: Mapping[str, int | float]


class ModelStatus(Struct, frozen=True):
    """State of one of several models: `loaded`, `unloaded`, `loading` or `unloading`; `progress`: of the stage of a load."""

    value: str
    progress: float | None


class ModelCard(Struct, frozen=True):
    """`chat`: whether the model has a template that works, so that `/v1/chat/completions` answers. `status`: where a server has several
    models. Of one that was never loaded its limits are unknown, and null."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int | None
    chat: bool | None
    ridgeline: ModelNotes | None
    status: ModelStatus | UnsetType = UNSET


class LoraAdapter(Struct, frozen=True):
    """An adapter as llama.cpp lists it; `scale` is 0 where no request names it, and each request has its own. `path` is its name."""

    id: int
    path: str
    scale: float


class ModelList(Struct, frozen=True):
    object: Literal["list"]
    data: list[ModelCard]


class TokenizeResponse(Struct, frozen=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class LlamaPiece(Struct, frozen=True):
    """A token and its text, or its bytes where these are no whole characters."""

    id: int
    piece: str | list[int]


class LlamaTokens(Struct, frozen=True):
    tokens: list[int | LlamaPiece]


class DetokenizeResponse(Struct, frozen=True):
    """The text, under vLLM's name and under llama.cpp's: their requests are the same."""

    prompt: str
    content: str


class Startup(Struct, frozen=True):
    """A start: `progress` is the fraction of the stage that is done, `eta_seconds` what the rest of it takes at its pace so far, null where
    nothing has been measured yet; `elapsed_seconds` counts from the process's start to now, or to the end of the start."""

    stage: str
    progress: float
    eta_seconds: float | None
    elapsed_seconds: float


class Version(Struct, frozen=True):
    version: str
