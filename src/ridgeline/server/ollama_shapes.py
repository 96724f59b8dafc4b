"""The shapes of Ollama's API: bodies of requests and answers, as its official clients write and read them.

Owns which fields exist. What they mean is `server.ollama_chat`'s, which names are rejected `server.unsupported`'s.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from ridgeline.server import wire
from ridgeline.server.replies import ChatLogprob


class Options(Struct, frozen=True):
    """Options of a request that count here."""

    num_predict: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    num_ctx: int | None = None


class _Generating(Struct, frozen=True):
    """Fields of all requests that generate. `stream` is true where it is left out."""

    model: str | None = None
    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    options: Options | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    truncate: bool | None = None


class OllamaFunction(Struct, frozen=True):
    name: str
    arguments: dict[str, Any] | str = ""


class OllamaToolCall(Struct, frozen=True):
    function: OllamaFunction
    id: str | None = None


class OllamaMessage(Struct, frozen=True):
    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[OllamaToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaTool(Struct, frozen=True):
    function: wire.FunctionDefinition
    type: str | None = None


class ChatRequest(_Generating, frozen=True):
    messages: list[OllamaMessage] | None = None
    tools: list[OllamaTool] | None = None


class GenerateRequest(_Generating, frozen=True):
    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    raw: bool | None = None


class EmbedRequest(Struct, frozen=True):
    """Texts. truncate: false refuses one that is too long, which is cut else."""

    model: str | None = None
    input: str | list[str] | None = None
    truncate: bool | None = None
    dimensions: int | None = None


class EmbeddingsRequest(Struct, frozen=True):
    """A text, as older clients send it."""

    model: str | None = None
    prompt: str | None = None


class ModelRequest(Struct, frozen=True):
    """A model, under the new name of the field or the old one."""

    model: str | None = None
    name: str | None = None
    stream: bool | None = None
    insecure: bool | None = None


class CopyRequest(Struct, frozen=True):
    source: str
    destination: str


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class OllamaCalledFunction(Struct, frozen=True):
    name: str
    arguments: msgspec.Raw


class Call(Struct, frozen=True, omit_defaults=True):
    function: OllamaCalledFunction
    id: str | None = None


class AnswerMessage(Struct, frozen=True, omit_defaults=True):
    role: str
    content: str
    thinking: str | None = None
    tool_calls: list[Call] | None = None


class _Answer(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A part of an answer; all from `done_reason` on only the last has. Durations are nanoseconds: `load_duration` until the prompt was
    ids, `prompt_eval_duration` from there to the first token, `eval_duration` from there to the end."""

    model: str
    created_at: str
    done: bool
    logprobs: list[ChatLogprob] | None = None
    done_reason: str | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None


class ChatAnswer(_Answer, frozen=True, omit_defaults=True, kw_only=True):
    message: AnswerMessage


class GenerateAnswer(_Answer, frozen=True, omit_defaults=True, kw_only=True):
    response: str
    thinking: str | None = None


class Vectors(Struct, frozen=True):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class Vector(Struct, frozen=True):
    embedding: list[float]


class Details(Struct, frozen=True):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class ListedModel(Struct, frozen=True):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: Details


class RunningModel(Struct, frozen=True):
    """`size_vram` is the memory of an accelerator; 0 on a CPU."""

    name: str
    model: str
    size: int
    digest: str
    details: Details
    expires_at: str
    size_vram: int
    context_length: int


class Tags(Struct, frozen=True):
    models: list[ListedModel]


class Running(Struct, frozen=True):
    models: list[RunningModel]


class Shown(Struct, frozen=True):
    modelfile: str
    parameters: str
    template: str
    details: Details
    model_info: Mapping[str, str | int | float]
    capabilities: list[str]
    modified_at: str


class Progress(Struct, frozen=True, omit_defaults=True):
    """Progress of a download, in bytes."""

    status: str
    digest: str | None = None
    total: int | None = None
    completed: int | None = None
