"""Outputs of `LLM`, with vLLM's names where the meaning coincides, and their construction from an answer's parts."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from ridgeline.core.commands import Close, Output
from ridgeline.core.events import Closed
from ridgeline.core.params import Admitted, SamplingParams
from ridgeline.core.plan import TokenLogprobs
from ridgeline.engine.answer import AnswerBuilder, CollectedChoice, Election, best_indices
from ridgeline.engine.voting import elect
from ridgeline.errors import RequestError
from ridgeline.text.stream import TextDelta
from ridgeline.text.tokenizer import Tokenizer
from ridgeline.text.tools.hearing import Listener, Reading
from ridgeline.text.tools.parser import CallArguments, CallBegin, CallEnd, Text, Thought


@dataclass(frozen=True, slots=True)
class Logprob:
    """`rank` 1 is the most likely id, of equals the lower."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = tuple[dict[int, Logprob] | None, ...]
"""One per token of the prompt; None for the first, which nothing precedes."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool. arguments: a text of JSON, as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One choice, or in a stream its new part. `logprobs` and `cumulative_logprob` are None unless asked for.

    text                all of it, without control tokens unless they are asked for
    content             the text without reasoning and calls, where a chat's are read; else None
    reasoning           what stood between the marks of reasoning
    tool_calls          the calls that are complete
    cumulative_logprob  of all tokens so far
    finish_reason       "stop", "length", "abort", or "error" where the model's numbers were not finite; None while it is not complete
    stop_reason         the client's stop string or id
    vote                how the vote went that elected it
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    cumulative_logprob: float | None
    logprobs: tuple[dict[int, Logprob], ...] | None
    finish_reason: str | None
    stop_reason: str | int | None
    content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    vote: Election | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """The answer to one prompt, or in a stream its new part.

    prompt             None where ids or messages were given
    prompt_logprobs    None unless asked for; in a stream they come with the first output
    num_cached_tokens  tokens of the prompt that came from the prefix cache; None while a choice is open
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    prompt_logprobs: PromptLogprobs | None
    outputs: tuple[CompletionOutput, ...]
    finished: bool
    num_cached_tokens: int | None


class _Said(NamedTuple):
    """Parts of an answer, by kind."""

    content: str | None
    reasoning: str | None
    calls: tuple[ToolCall, ...]


_NOTHING: Final = _Said(None, None, ())


class _Heard:
    """One choice of a chat, as far as it has been heard."""

    def __init__(self, reading: Reading) -> None:
        self._listener = Listener(reading)
        self._begun = CallBegin("", None)
        self._arguments: list[str] = []

    def take(self, deltas: Iterable[TextDelta], is_last: bool) -> _Said:
        """Parts that these tokens bring."""
        content, thought, calls = "", "", list[ToolCall]()
        events = [event for delta in deltas for event in self._listener.hear(delta, False)]
        for event in (*events, *(self._listener.hear(None, True) if is_last else ())):
            match event:
                case Text():
                    content += event.text
                case Thought():
                    thought += event.text
                case CallBegin():
                    self._begun, self._arguments = event, []
                case CallArguments():
                    self._arguments.append(event.text)
                case CallEnd():
                    calls.append(ToolCall(self._begun.id or "", self._begun.name, "".join(self._arguments)))
        return _Said(content, thought or None, tuple(calls))


class LLMRequest:
    """One request of an `LLM` while it is answered: collects its choices until they are read. Never runs the engine."""

    def __init__(
        self, request: Admitted, prompt: str | None, params: SamplingParams, tokenizer: Tokenizer, reading: Reading | None = None
    ) -> None:
        """reading: how answers of a chat are read; None: they are content as they are."""
        self.request = request
        self._reading = reading
        self._heard: dict[int, _Heard] = {}
        self._prompt = prompt
        self._params = params
        self._tokenizer = tokenizer
        self._answer = AnswerBuilder(request, params, tokenizer)
        self._choices = [CollectedChoice() for _ in range(request.choices)]
        self._has_output = False
        self._rejection: str | None = None

    @property
    def open_choices(self) -> int:
        """Number of choices that have not ended."""
        return 0 if self._rejection is not None else self._answer.open_choices

    @property
    def has_extra_choices(self) -> bool:
        """True if more choices are computed than are answered (`best_of`)."""
        return self.request.choices > self._params.n

    def process(self, item: Output | Closed) -> Close | None:
        """Adds an item to its choice; returns the close that the engine waits for, if it does."""
        parts, close = self._answer.process(item)
        for part in parts:
            self._choices[part.index].add(part)
        return close

    def reject(self, message: str) -> None:
        """Ends the request: the engine rejected it."""
        self._rejection = message

    @property
    def has_new_output(self) -> bool:
        """True if `output` would bring something new."""
        return not self.open_choices or any(choice.deltas for choice in self._choices)

    @property
    def choices(self) -> list[CollectedChoice]:
        """All choices so far. Raises RequestError if the engine rejected the request."""
        if self._rejection is not None:
            raise RequestError(self._rejection)
        return self._choices

    def output(self) -> RequestOutput:
        """The output since the last call, choice by choice; everything, where this is the only call. Of extra choices the `n` likeliest are
        given, likeliest first. Raises RequestError if the engine rejected the request."""
        choices, indices = self.choices, list(range(self.request.choices))
        if self.has_extra_choices:
            cumulative = [self._answer.cumulative_logprob(index) or 0.0 for index in indices]
            if self._params.vote is None:
                indices = best_indices(cumulative, self._params.n)
            else:
                index, election = elect(self._params.vote, [each.text for each in choices], cumulative)
                indices, choices[index].election = [index], election
        outputs = tuple(self._completion(place, index) for place, index in enumerate(indices))
        cached = None if self.open_choices else max(choice.end.usage.cached_tokens for choice in choices)
        prompt_logprobs = None if self._has_output else self._prompt_logprobs()
        self._has_output = True
        request, finished = self.request, not self.open_choices
        return RequestOutput(request.request_id, self._prompt, request.prompt, prompt_logprobs, outputs, finished, cached)

    def _completion(self, place: int, index: int) -> CompletionOutput:
        choice = self._choices[index]
        with_logprobs = self._params.logprobs is not None
        ids, logprobs, text = tuple(choice.ids), choice.logprobs, choice.text
        said = _NOTHING
        if self._reading is not None:
            heard = self._heard.setdefault(index, _Heard(self._reading))
            said = heard.take(choice.deltas, choice.has_ended)
            if self._reading.kept:  # the text has all control tokens, for their marks
                texts = [text for delta in choice.deltas for text in delta.texts]
                text = "".join(text for token, text in zip(ids, texts, strict=True) if not self._tokenizer.is_control(token))
        choice.deltas.clear()
        return CompletionOutput(
            index=place,
            text=text,
            token_ids=ids,
            cumulative_logprob=self._answer.cumulative_logprob(index) if with_logprobs else None,
            logprobs=tuple(self._by_id(token, each) for token, each in zip(ids, logprobs, strict=True)) if with_logprobs else None,
            finish_reason=choice.end.reason.value if choice.has_ended else None,
            stop_reason=choice.end.stop_reason if choice.has_ended else None,
            content=said.content,
            reasoning=said.reasoning,
            tool_calls=said.calls,
            vote=choice.election,
        )

    def _prompt_logprobs(self) -> PromptLogprobs | None:
        if self._params.prompt_logprobs is None:
            return None
        found = self._choices[0].start.prompt_logprobs
        return tuple(None if each is None else self._by_id(token, each) for token, each in zip(self.request.prompt, found, strict=False))

    def _by_id(self, token: int, found: TokenLogprobs) -> dict[int, Logprob]:
        by_id = {other: Logprob(value, rank, self._token_text(other)) for rank, (other, value) in enumerate(found.top, 1)}
        by_id.setdefault(token, Logprob(found.logprob, found.rank, self._token_text(token)))
        return by_id

    def _token_text(self, token: int) -> str:
        return self._tokenizer.piece(token).decode("utf-8", "replace")
