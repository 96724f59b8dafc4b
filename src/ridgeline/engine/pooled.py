"""Vectors of texts as `LLM` gives them, with vLLM's names, and what a vector's bytes mean. No array library."""

from array import array
from dataclasses import dataclass, replace
from math import fsum
from operator import mul
from typing import Generic, TypeVar

from ridgeline.core.commands import Output
from ridgeline.core.events import Closed, Finish
from ridgeline.core.params import Admitted, Pooling, with_known_arguments
from ridgeline.errors import EngineDeadError, RequestError


def numbers(vector: bytes) -> "array[float]":
    """The numbers of a vector, little-endian float32 as every machine that this runs on has them."""
    return array("f", vector)


def likeness(a: bytes, b: bytes) -> float:
    """Cosine of two vectors of length 1."""
    return fsum(map(mul, numbers(a), numbers(b)))


@dataclass(frozen=True, slots=True)
class PoolingParams:
    """Parameters of vectors. Names are vLLM's.

    dimensions  leading numbers that are kept; None: all
    normalize   their Euclidean length is 1
    """

    dimensions: int | None = None
    normalize: bool = True


PoolingParams.__init__ = with_known_arguments(PoolingParams.__init__)  # type: ignore[method-assign]


def pooled_as(by_model: Pooling | None, params: PoolingParams) -> Pooling:
    """The model's pooling with a caller's parameters. Raises RequestError."""
    if by_model is None:
        raise RequestError("this model's runner makes no vectors of texts; use another one", param="runner")
    if params.dimensions is not None and params.dimensions < 1:
        raise RequestError(f"dimensions is {params.dimensions}; give at least 1, or leave it out", param="dimensions")
    return replace(by_model, dimensions=params.dimensions or 0, normalise=params.normalize)


class TextRequest:
    """One text of an `LLM` until its vector has come."""

    def __init__(self, request: Admitted) -> None:
        self.request = request
        self.open_choices = 1
        self._vector: bytes | None = None
        self._failure: Exception | None = None

    def process(self, item: Output | Closed) -> None:
        """Adds what came."""
        if isinstance(item, Output):
            self._vector = item.vector
            return
        self.open_choices = 0
        if item.reason is not Finish.STOP:
            self._failure = EngineDeadError(item.message or f"the text ended with {item.reason}")

    def reject(self, message: str) -> None:
        """Ends the request: the engine rejected it."""
        self.open_choices, self._failure = 0, RequestError(message)

    @property
    def vector(self) -> bytes:
        """The text's vector. Raises what ended the request in its place."""
        if self._failure is not None:
            raise self._failure
        assert self._vector is not None, "the request is open"
        return self._vector


Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class PoolingRequestOutput(Generic[Made]):
    """The vector of a text."""

    request_id: str
    outputs: Made
    prompt_token_ids: tuple[int, ...]
    finished: bool = True


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """A text's vector."""

    embedding: list[float]

    @classmethod
    def of(cls, text: TextRequest) -> PoolingRequestOutput["EmbeddingOutput"]:
        """The output of an answered text."""
        return PoolingRequestOutput(text.request.request_id, cls(numbers(text.vector).tolist()), text.request.prompt)


@dataclass(frozen=True, slots=True)
class PoolingOutput:
    """A text's vector, by another name."""

    data: list[float]

    @classmethod
    def of(cls, text: TextRequest) -> PoolingRequestOutput["PoolingOutput"]:
        """The output of an answered text."""
        return PoolingRequestOutput(text.request.request_id, cls(numbers(text.vector).tolist()), text.request.prompt)


@dataclass(frozen=True, slots=True)
class ScoringOutput:
    """The similarity of two texts, from -1 to 1."""

    score: float

    @classmethod
    def of(cls, first: TextRequest, second: TextRequest) -> PoolingRequestOutput["ScoringOutput"]:
        """The output of two answered texts, under the id of the second."""
        return PoolingRequestOutput(
            second.request.request_id, cls(likeness(first.vector, second.vector)), first.request.prompt + second.request.prompt
        )
