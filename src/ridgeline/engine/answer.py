"""One request of an `LLM` while it is answered: outputs of the engine in, values for the caller out.

Owns what was released and not yet taken. Never turns the engine.
"""

from ridgeline.core.commands import Command, Output
from ridgeline.core.events import Closed
from ridgeline.core.params import Admitted, SamplingParams
from ridgeline.core.plan import TokenLogprobs
from ridgeline.engine.outputs import CompletionOutput, Logprob, PromptLogprobs, RequestOutput
from ridgeline.errors import RequestError
from ridgeline.text.choice import Choice
from ridgeline.text.ranking import best
from ridgeline.text.stream import Release
from ridgeline.text.tokenizer import Tokenizer


class Answer:
    """Its choices' text, ids and log-probabilities. `open`: choices that have not ended."""

    def __init__(self, request: Admitted, prompt: str | None, params: SamplingParams, tokenizer: Tokenizer) -> None:
        self.request = request
        self.open = request.choices
        self._prompt = prompt
        self._params = params
        self._tokenizer = tokenizer
        self._choices = [Choice(request, index, params, tokenizer) for index in range(request.choices)]
        self._released: list[list[Release]] = [[] for _ in self._choices]
        self._ends: dict[int, Closed] = {}
        self._begun = False
        self._refusal: str | None = None

    @property
    def chosen_at_the_end(self) -> bool:
        """More choices are computed than are answered."""
        return self.request.choices > self._params.n

    def take(self, output: Output) -> Command | None:
        """Keeps what may be shown; returns the close that the engine waits for, if it does."""
        releases, close = self._choices[output.choice].take(output)
        self._released[output.choice] += releases
        return close

    def end(self, closed: Closed) -> None:
        """One choice is over."""
        self._ends[closed.choice] = closed
        self.open -= 1

    def refuse(self, message: str) -> None:
        """The engine does not take the request."""
        self._refusal, self.open = message, 0

    @property
    def has_news(self) -> bool:
        """Whether `output` would bring something new."""
        return not self.open or any(release.ids for releases in self._released for release in releases)

    def output(self) -> RequestOutput:
        """What came since the last call, choice by choice; everything, where this is the only one. Of more choices than were asked for the
        likeliest come, likeliest first. Raises RequestError if the engine refused the request."""
        if self._refusal is not None:
            raise RequestError(self._refusal)
        shown = range(self.request.choices)
        if self.chosen_at_the_end:
            shown = best([choice.cumulative_logprob or 0.0 for choice in self._choices], self._params.n)  # type: ignore[assignment]
        outputs = tuple(self._completion(place, index) for place, index in enumerate(shown))
        cached = None if self.open else max(closed.usage.cached_tokens for closed in self._ends.values())
        ranked = None if self._begun else self._prompt_logprobs()
        self._begun = True
        return RequestOutput(self.request.request_id, self._prompt, self.request.prompt, ranked, outputs, not self.open, cached)

    def _completion(self, place: int, index: int) -> CompletionOutput:
        releases, self._released[index] = self._released[index], []
        choice, closed = self._choices[index], self._ends.get(index)
        asked = self._params.logprobs is not None
        ids = tuple(token for release in releases for token in release.ids)
        found = [logprobs for release in releases for logprobs in release.logprobs] if asked else []
        return CompletionOutput(
            index=place,
            text="".join(release.text for release in releases),
            token_ids=ids,
            cumulative_logprob=choice.cumulative_logprob if asked else None,
            logprobs=tuple(self._ranked(token, each) for token, each in zip(ids, found, strict=True)) if asked else None,
            finish_reason=closed.reason.value if closed else None,
            stop_reason=choice.stop_reason if closed else None,
        )

    def _prompt_logprobs(self) -> PromptLogprobs | None:
        if self._params.prompt_logprobs is None:
            return None
        found = self._choices[0].prompt_logprobs
        return (None, *(self._ranked(token, each) for token, each in zip(self.request.prompt[1:], found, strict=False)))

    def _ranked(self, token: int, found: TokenLogprobs) -> dict[int, Logprob]:
        ranked = {other: Logprob(value, rank, self._name(other)) for rank, (other, value) in enumerate(found.top, 1)}
        ranked.setdefault(token, Logprob(found.logprob, None, self._name(token)))
        return ranked

    def _name(self, token: int) -> str:
        return self._tokenizer.piece(token).decode("utf-8", "replace")
