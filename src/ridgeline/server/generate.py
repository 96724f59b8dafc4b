"""From admitted requests to what may be shown of them: submits, reads the engine's streams, answers provisional ends, aborts.

Serves every endpoint that generates, and counts what it gave. Knows no HTTP and no JSON.
"""

from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ridgeline.core.commands import Output
from ridgeline.core.events import Closed, Finish, Usage
from ridgeline.core.params import Admitted, SamplingParams
from ridgeline.core.plan import TokenLogprobs
from ridgeline.engine.client import EngineClient
from ridgeline.engine.streams import Wakeup
from ridgeline.server.errors import ApiError
from ridgeline.text.choice import Choice
from ridgeline.text.stream import Release
from ridgeline.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Begun:
    """The first of one choice, when its prompt is computed. `index` counts choices over all prompts.

    prompt_logprobs  one a token of the prompt, None for the first; empty unless asked for
    """

    index: int
    prompt: Sequence[int]
    prompt_logprobs: Sequence[TokenLogprobs | None] = ()


@dataclass(frozen=True, slots=True)
class Shown:
    """Text, ids and log-probabilities of one choice that may be shown now."""

    index: int
    release: Release


@dataclass(frozen=True, slots=True)
class Ended:
    """The last of one choice.

    stop_reason         the stop string or the client's stop id; None for EOS and for other ends
    cumulative_logprob  of its outputs; None where log-probabilities were not made
    """

    index: int
    reason: Finish
    stop_reason: str | int | None
    usage: Usage
    cumulative_logprob: float | None = None


@dataclass(frozen=True, slots=True)
class Quiet:
    """Nothing could be shown of any choice for as long as was asked."""


Piece = Begun | Shown | Ended | Quiet


@dataclass(slots=True)
class Tally:
    """Usage of one HTTP request so far: each prompt once, however many choices it has; outputs of all choices."""

    choices_per_prompt: int
    prompt_tokens: int
    cached_tokens: int = 0
    _completion: dict[int, int] = field(default_factory=dict)

    def add(self, piece: Piece) -> None:
        """Counts ids as they are shown; at its end a choice counts what the engine says."""
        if isinstance(piece, Shown):
            self._completion[piece.index] = self._completion.get(piece.index, 0) + len(piece.release.ids)
        elif isinstance(piece, Ended):
            self._completion[piece.index] = piece.usage.completion_tokens
            if piece.index % self.choices_per_prompt == 0:
                self.cached_tokens += piece.usage.cached_tokens

    @property
    def completion_tokens(self) -> int:
        """Over all choices."""
        return sum(self._completion.values())


class Source(Protocol):
    """Where an answer's pieces come from. `abort` it whatever happens."""

    id: str
    tally: Tally

    def pieces(self, quiet_seconds: float | None = None) -> AsyncGenerator[Piece, None]: ...

    def abort(self) -> None: ...


class Generation:
    """All choices of one HTTP request, submitted when it is made: who comes next sees it in the queue. `abort` it whatever happens."""

    def __init__(self, engine: EngineClient, tokenizer: Tokenizer, requests: Sequence[Admitted], params: SamplingParams) -> None:
        """Raises EngineDeadError while no engine takes requests."""
        self._engine = engine
        self._requests = requests
        self._choices = sum(request.choices for request in requests)
        self._wakeup = Wakeup()
        self.id = requests[0].request_id
        self.tally = Tally(requests[0].choices, sum(len(request.prompt) for request in requests))
        self._prompts = [
            _Prompt(engine, request, params, tokenizer, number * request.choices, self._wakeup) for number, request in enumerate(requests)
        ]

    def abort(self) -> None:
        """Ends what is still open in the engine. Safe to call at any time, more than once."""
        for request in self._requests:
            self._engine.abort(request.request_id)

    async def pieces(self, quiet_seconds: float | None = None) -> AsyncGenerator[Piece, None]:
        """Pieces of all choices as they come: of each one `Begun` first, one `Ended` last. Iterate it once. What is not asked for waits in
        the engine's streams, which have a bound.

        quiet_seconds  after so long without a piece there is a `Quiet` one; None: never
        Raises what the engine's client raises, and ApiError where the engine ended a choice with an error.
        """
        remaining = self._choices
        try:
            while remaining:
                if not await self._wakeup.wait(quiet_seconds):
                    yield Quiet()
                for prompt in self._prompts:
                    for piece in prompt.pieces():
                        self.tally.add(piece)
                        remaining -= isinstance(piece, Ended)
                        yield piece
        finally:
            self._wakeup.close()


class _Prompt:
    """The choices of one prompt: what the engine says in, pieces out. The engine hears of every end that is ours to decide."""

    def __init__(
        self, engine: EngineClient, request: Admitted, params: SamplingParams, tokenizer: Tokenizer, first_index: int, wakeup: Wakeup
    ) -> None:
        self._engine = engine
        self._stream = engine.submit(request, wakeup)
        self._ids = request.prompt
        self._choices = [Choice(request, index, params, tokenizer) for index in range(request.choices)]
        self._first_index = first_index
        self._begun: set[int] = set()
        self._scores: Sequence[TokenLogprobs | None] | None = None if request.prompt_logprobs is not None else ()
        self._early: list[Output | Closed] = []
        """Of other choices, before choice 0 has scored the prompt for all."""

    def pieces(self) -> Iterator[Piece]:
        """Of what has arrived."""
        while (item := self._stream.take()) is not None:
            if item.choice and self._scores is None:
                self._early.append(item)
                continue
            yield from self._take(item)
            while self._early and self._scores is not None:
                yield from self._take(self._early.pop(0))

    def _take(self, item: Output | Closed) -> Iterator[Piece]:
        number = item.choice
        choice, index = self._choices[number], self._first_index + number
        releases, close = choice.take(item) if isinstance(item, Output) else ([], None)
        if close is not None:
            self._engine.send(close)
        if number not in self._begun and (isinstance(item, Closed) or item.ids):
            self._begun.add(number)
            self._scores = (None, *choice.prompt_logprobs) if self._scores is None else self._scores
            yield Begun(index, self._ids, self._scores)
        if isinstance(item, Output):
            for release in releases:
                if release.ids:
                    yield Shown(index, release)
        elif item.reason is Finish.ERROR:
            raise ApiError("engine_failed", item.message or "the engine ended this request with an error")
        else:
            yield Ended(index, item.reason, choice.stop_reason, item.usage, choice.cumulative_logprob)
