"""The shapes of llama-server's own API: bodies of requests and answers. Owns which fields exist; `server.ggml` fills them."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from ridgeline.server import wire

SLOTS: Final[Mapping[str, Mapping[str, Any]]] = {"fail_on_no_slot": {"type": "string"}}
"""Parameters of the list of slots."""


class GgmlCompletionRequest(wire.CompletionRequest, frozen=True):
    """A completion with llama.cpp's fields. n_probs: likeliest tokens given beside each; 0: none. logit_bias: also pairs of an id and its
    bias, of which false is the least."""

    n_probs: int | None = None
    return_tokens: bool | None = None
    response_fields: list[str] | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    logit_bias: dict[str, float] | list[tuple[int | str, float | bool]] | None = None  # type: ignore[assignment]


class ExtraContext(Struct, frozen=True):
    text: str
    filename: str


class InfillRequest(GgmlCompletionRequest, frozen=True):
    """The text between prefix and suffix, behind `prompt`."""

    input_prefix: str | None = None
    input_suffix: str | None = None
    input_extra: list[ExtraContext] | None = None


class GgmlEmbeddingRequest(Struct, frozen=True):
    content: str | list[str | int | list[int]] | None = None
    input: str | list[str | int | list[int]] | None = None
    model: str | None = None


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class TopProb(Struct, frozen=True):
    id: int
    token: str
    bytes: list[int]
    logprob: float


class TokenProb(TopProb, frozen=True):
    top_logprobs: list[TopProb]


class Timings(Struct, frozen=True):
    """Milliseconds and rates. cache_n of the prompt's tokens were in the cache, prompt_n were computed; waiting is part of prompt_ms."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class Chunk(Struct, frozen=True, omit_defaults=True):
    """New text of a stream."""

    index: int
    content: str
    tokens: list[int]
    stop: bool
    id_slot: int
    tokens_predicted: int
    tokens_evaluated: int
    completion_probabilities: list[TokenProb] | None = None


class GgmlCompletion(Struct, frozen=True, omit_defaults=True):
    """A whole answer, or the end of a stream, which has no text. stop_type: eos, limit or word."""

    index: int
    content: str
    tokens: list[int]
    id_slot: int
    stop: bool
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: dict[str, Any]
    prompt: str
    has_new_line: bool
    truncated: bool
    stop_type: str
    stopping_word: str
    tokens_cached: int
    timings: Timings
    completion_probabilities: list[TokenProb] | None = None


class DefaultSettings(Struct, frozen=True):
    n_ctx: int
    params: dict[str, Any]


class Props(Struct, frozen=True):
    """`model_path` is the model's name: no path is told."""

    default_generation_settings: DefaultSettings
    total_slots: int
    model_alias: str
    model_path: str
    chat_template: str
    bos_token: str
    eos_token: str
    modalities: dict[str, bool]
    build_info: str
    is_sleeping: bool = False


class Slot(Struct, frozen=True):
    """A row of the engine; nothing of what it computes."""

    id: int
    n_ctx: int
    speculative: bool
    is_processing: bool


class Prompt(Struct, frozen=True):
    prompt: str


class GgmlEmbedding(Struct, frozen=True):
    index: int
    embedding: list[list[float]]
