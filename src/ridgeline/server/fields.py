"""The fields of each endpoint's bodies: a body becomes a typed value and notes about what is ignored of it.

Owns which of the names that a client sends are known here, unsupported (`server.unsupported`) or unknown.
"""

from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from ridgeline.server import anthropic, ggml_shapes, ollama_shapes, unsupported, wire
from ridgeline.server.body import decode, parse
from ridgeline.server.errors import ApiError
from ridgeline.server.notes import Notes
from ridgeline.server.responses_shapes import ResponsesRequest

Body = TypeVar("Body", bound=msgspec.Struct)

_INNER: Final[Mapping[str, type[msgspec.Struct]]] = {"stream_options": wire.StreamOptions, "options": ollama_shapes.Options}
"""Fields that are objects of fields: theirs have names with a dot."""


class FieldTable(Generic[Body]):
    """The fields of one endpoint.

    shape        type of its bodies
    unsupported  name → values beside null that ask for nothing
    reasons      name → what to do instead of sending an unsupported one; others are to be left out
    known        all names that have a meaning here; those of inner objects with a dot
    """

    def __init__(self, shape: type[Body], unsupported_fields: unsupported.Fields, reasons: Mapping[str, str] = unsupported.REASONS) -> None:
        self.shape = shape
        self.unsupported = unsupported_fields
        self.reasons = reasons
        names = _names(shape)
        self.inner = [outer for outer in _INNER if outer in names]
        inner = {f"{outer}.{name}" for outer in self.inner for name in _names(_INNER[outer])}
        self.known: frozenset[str] = frozenset(names | inner | unsupported_fields.keys() | unsupported.WITHOUT_EFFECT)

    def read(self, body: bytes) -> tuple[Body, Notes]:
        """Raises ApiError for what is malformed, and for the first unsupported field that asks for something."""
        payload, notes = parse(self.shape, body), Notes(known=self.known)
        present = decode(dict[str, msgspec.Raw], body)
        for outer in self.inner:
            if getattr(payload, outer) is not None:
                of_outer = decode(dict[str, msgspec.Raw], present[outer])
                present |= {f"{outer}.{name}": value for name, value in of_outer.items()}
        for name, value in present.items():
            if name not in self.known:
                notes.ignore(name)
            elif name in self.unsupported:
                self._check_unsupported(name, decode(Any, value))
        return payload, notes

    def _check_unsupported(self, name: str, value: Any) -> None:
        if value is not None and value not in self.unsupported[name]:
            reason = self.reasons.get(name, f"{name} is not supported by this server; leave it out")
            raise ApiError("unsupported_parameter", reason, param=name)


def _names(shape: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(shape)}


COMPLETION: Final = FieldTable(wire.CompletionRequest, unsupported.COMPLETION)
CHAT: Final = FieldTable(wire.ChatCompletionRequest, unsupported.CHAT)
TOKENIZE: Final = FieldTable(wire.TokenizeRequest, unsupported.TOKENIZE)
LLAMA_TOKENIZE: Final = FieldTable(wire.LlamaTokenizeRequest, {})
DETOKENIZE: Final = FieldTable(wire.DetokenizeRequest, {})
EMBEDDING: Final = FieldTable(wire.EmbeddingRequest, unsupported.POOLING)
SCORE: Final = FieldTable(wire.ScoreRequest, unsupported.POOLING)
RERANK: Final = FieldTable(wire.RerankRequest, unsupported.POOLING)
MESSAGES: Final = FieldTable(anthropic.MessagesRequest, unsupported.MESSAGES, {})
COUNT_TOKENS: Final = FieldTable(anthropic.CountTokensRequest, unsupported.MESSAGES, {})
OLLAMA_CHAT: Final = FieldTable(ollama_shapes.ChatRequest, unsupported.OLLAMA, unsupported.OLLAMA_REASONS)
OLLAMA_GENERATE: Final = FieldTable(ollama_shapes.GenerateRequest, unsupported.OLLAMA_GENERATE, unsupported.OLLAMA_REASONS)
OLLAMA_MODEL: Final = FieldTable(ollama_shapes.ModelRequest, {})
OLLAMA_COPY: Final = FieldTable(ollama_shapes.CopyRequest, {})
OLLAMA_EMBED: Final = FieldTable(ollama_shapes.EmbedRequest, {})
OLLAMA_EMBEDDINGS: Final = FieldTable(ollama_shapes.EmbeddingsRequest, {})
GGML_COMPLETION: Final = FieldTable(ggml_shapes.GgmlCompletionRequest, unsupported.GGML)
INFILL: Final = FieldTable(ggml_shapes.InfillRequest, unsupported.GGML)
GGML_EMBEDDING: Final = FieldTable(ggml_shapes.GgmlEmbeddingRequest, unsupported.GGML_EMBEDDING)
RESPONSES: Final = FieldTable(ResponsesRequest, unsupported.RESPONSES, unsupported.RESPONSES_REASONS)
UNSUPPORTED: Final[Mapping[type, unsupported.Fields]] = {
    each.shape: each.unsupported
    for each in (
        COMPLETION, CHAT, TOKENIZE, DETOKENIZE, EMBEDDING, SCORE, RERANK, MESSAGES, COUNT_TOKENS, OLLAMA_CHAT, OLLAMA_GENERATE,
        GGML_COMPLETION, INFILL, GGML_EMBEDDING, RESPONSES,
    )
} | {ollama_shapes.Options: {name.partition(".")[2]: values for name, values in unsupported.OLLAMA.items() if "." in name}}  # fmt: skip
