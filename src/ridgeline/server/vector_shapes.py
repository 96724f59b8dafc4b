"""The shapes of answers about vectors of texts: OpenAI's and vLLM's, and orders of documents in the forms of Cohere, Jina and
text-embeddings-inference."""

from typing import Literal

from msgspec import Struct


class EmbeddingUsage(Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int


class Embedding(Struct, frozen=True):
    """embedding: numbers, or their little-endian float32 in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(Struct, frozen=True):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Embedding]
    usage: EmbeddingUsage


class Pooled(Struct, frozen=True):
    object: Literal["pooling"]
    index: int
    data: list[float] | str


class PooledList(Struct, frozen=True):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Pooled]
    usage: EmbeddingUsage


class Score(Struct, frozen=True):
    index: int
    object: Literal["score"]
    score: float


class ScoreList(Struct, frozen=True):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Score]
    usage: EmbeddingUsage


class RankedText(Struct, frozen=True):
    text: str


class RankedDocument(Struct, frozen=True, omit_defaults=True):
    index: int
    relevance_score: float
    document: RankedText | None = None


class RerankResponse(Struct, frozen=True):
    id: str
    model: str
    usage: EmbeddingUsage
    results: list[RankedDocument]


class RankedByTei(Struct, frozen=True, omit_defaults=True):
    """A text of a request in the form of text-embeddings-inference."""

    index: int
    score: float
    text: str | None = None
