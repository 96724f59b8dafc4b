"""Outputs of `LLM`, with vLLM's names where the meaning coincides, and how it is made of an answer's pieces."""

from dataclasses import dataclass

from ridgeline.core.commands import Close, Output
from ridgeline.core.events import Closed
from ridgeline.core.params import Admitted, SamplingParams
from ridgeline.core.plan import TokenLogprobs
from ridgeline.engine.answer import Answer, Collected, best
from ridgeline.errors import RequestError
from ridgeline.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Logprob:
    """`rank` 1 is the most likely id; None: not among those asked for."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = tuple[dict[int, Logprob] | None, ...]
"""One per token of the prompt; None for the first, which nothing precedes."""


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One choice, or in a stream what is new of it. `logprobs` and `cumulative_logprob` are None unless asked for.

    cumulative_logprob  of all tokens so far
    finish_reason       "stop", "length", "abort", or "error" where the model's numbers were not finite; None while it goes on
    stop_reason         the client's stop string or id
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    cumulative_logprob: float | None
    logprobs: tuple[dict[int, Logprob], ...] | None
    finish_reason: str | None
    stop_reason: str | int | None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """The answer to one prompt, or in a stream what is new of it.

    prompt             None where ids or messages were given
    prompt_logprobs    None unless asked for; in a stream they come with the first output
    num_cached_tokens  of the prompt, taken from the prefix cache; None while a choice is under way
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    prompt_logprobs: PromptLogprobs | None
    outputs: tuple[CompletionOutput, ...]
    finished: bool
    num_cached_tokens: int | None


class LLMRequest:
    """One request of an `LLM` while it is answered: keeps what was shown and not yet taken. Never turns the engine."""

    def __init__(self, request: Admitted, prompt: str | None, params: SamplingParams, tokenizer: Tokenizer) -> None:
        self.request = request
        self._prompt = prompt
        self._params = params
        self._tokenizer = tokenizer
        self._answer = Answer(request, params, tokenizer)
        self._choices = [Collected() for _ in range(request.choices)]
        self._begun = False
        self._rejection: str | None = None

    @property
    def open(self) -> int:
        """Choices that have not ended."""
        return 0 if self._rejection is not None else self._answer.open

    @property
    def chosen_at_the_end(self) -> bool:
        """More choices are computed than are answered."""
        return self.request.choices > self._params.n

    def take(self, item: Output | Closed) -> Close | None:
        """Keeps what may be shown; returns the close that the engine waits for, if it does."""
        pieces, close = self._answer.take(item)
        for piece in pieces:
            self._choices[piece.index].add(piece)
        return close

    def reject(self, message: str) -> None:
        """The engine does not take the request."""
        self._rejection = message

    @property
    def has_news(self) -> bool:
        """True if `output` would bring something new."""
        return not self.open or any(choice.releases for choice in self._choices)

    @property
    def choices(self) -> list[Collected]:
        """All choices so far. Raises RequestError if the engine rejected the request."""
        if self._rejection is not None:
            raise RequestError(self._rejection)
        return self._choices

    def output(self) -> RequestOutput:
        """The output since the last call, choice by choice; everything, where this is the only one. Of more choices than were asked for the
        likeliest come, likeliest first. Raises RequestError if the engine rejected the request."""
        found, shown = self.choices, list(range(self.request.choices))
        if self.chosen_at_the_end:
            shown = best([self._answer.cumulative_logprob(index) or 0.0 for index in shown], self._params.n)
        outputs = tuple(self._completion(place, index) for place, index in enumerate(shown))
        cached = None if self.open else max(choice.ended.usage.cached_tokens for choice in found)
        ranked = None if self._begun else self._prompt_logprobs()
        self._begun = True
        return RequestOutput(self.request.request_id, self._prompt, self.request.prompt, ranked, outputs, not self.open, cached)

    def _completion(self, place: int, index: int) -> CompletionOutput:
        found = self._choices[index]
        asked = self._params.logprobs is not None
        ids, logprobs, text = tuple(found.ids), found.logprobs, found.text
        found.releases.clear()
        return CompletionOutput(
            index=place,
            text=text,
            token_ids=ids,
            cumulative_logprob=self._answer.cumulative_logprob(index) if asked else None,
            logprobs=tuple(self._ranked(token, each) for token, each in zip(ids, logprobs, strict=True)) if asked else None,
            finish_reason=found.ended.reason.value if found.over else None,
            stop_reason=found.ended.stop_reason if found.over else None,
        )

    def _prompt_logprobs(self) -> PromptLogprobs | None:
        if self._params.prompt_logprobs is None:
            return None
        found = self._choices[0].begun.prompt_logprobs
        return tuple(None if each is None else self._ranked(token, each) for token, each in zip(self.request.prompt, found, strict=False))

    def _ranked(self, token: int, found: TokenLogprobs) -> dict[int, Logprob]:
        ranked = {other: Logprob(value, rank, self._name(other)) for rank, (other, value) in enumerate(found.top, 1)}
        ranked.setdefault(token, Logprob(found.logprob, None, self._name(token)))
        return ranked

    def _name(self, token: int) -> str:
        return self._tokenizer.piece(token).decode("utf-8", "replace")
