"""Generation, from what a body asks for to pieces of answers: admits, submits, reads streams, answers provisional ends, aborts.

Serves every endpoint that generates, and counts what it gave. Nothing is awaited between admission and submission: who comes next finds
this request in the queue. Knows no HTTP and no JSON; how outputs become pieces is `engine.answer`'s.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, Protocol

from ridgeline.core.commands import Output
from ridgeline.core.events import Finish, Usage
from ridgeline.core.params import Admitted, SamplingParams
from ridgeline.core.plan import TokenLogprobs
from ridgeline.engine import answer, beams
from ridgeline.engine.answer import Answer, Begun, Choice, Collected, Ended, Shown
from ridgeline.engine.client import EngineClient
from ridgeline.engine.streams import Wakeup
from ridgeline.errors import RequestError
from ridgeline.server import wire
from ridgeline.server.errors import ApiError
from ridgeline.server.service import Door, Service
from ridgeline.text.tokenizer import Tokenizer

SIDE_BY_SIDE: Final = 4
"""Beam searches of one HTTP request that run at once: each brings as many requests as it has beams."""
SCORES: Final = 400_000
"""Log-probabilities of prompt tokens in one answer: some 25 MB of JSON."""


@dataclass(frozen=True, slots=True)
class Quiet:
    """A sign of silence: nothing could be shown of any choice for as long as was asked."""


Piece = answer.Piece | Quiet


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
    """The pieces of one HTTP request. `abort` it whatever happens."""

    id: str
    tally: Tally

    def pieces(self, quiet_seconds: float | None = None) -> AsyncGenerator[Piece, None]: ...

    def abort(self) -> None: ...


def start(
    service: Service,
    asked: wire.GenerationRequest,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    stop_ids: frozenset[int] = frozenset(),
) -> Source:
    """`stop_ids` end a sequence as EOS does. Raises RequestError, OverloadedError, EngineDeadError; then nothing has been submitted."""
    door = service.door(params, priority=asked.priority or 0, salt=asked.cache_salt or "", stop_ids=stop_ids)
    requests = [door(prompt) for prompt in prompts]
    _check_scores(requests, params, "logprobs" if asked.prompt_logprobs is None else "prompt_logprobs")
    if asked.use_beam_search:
        engine = service.check_room(sum(request.choices for request in requests[:SIDE_BY_SIDE]))
        step_door = service.door(beams.one_token(requests[0].choices), priority=asked.priority or 0, salt=asked.cache_salt or "")
        penalty = 1.0 if asked.length_penalty is None else asked.length_penalty
        return Beams(engine, service.model.tokenizer, requests, params, step_door, penalty)
    return Generation(service.check_room(len(requests)), service.model.tokenizer, requests, params)


def _check_scores(requests: Sequence[Admitted], params: SamplingParams, param: str) -> None:
    """Raises RequestError where more log-probabilities of prompts are asked for than one answer should hold."""
    if params.prompt_logprobs is None:
        return
    scores = sum(len(request.prompt) for request in requests) * params.n * (1 + params.prompt_logprobs)
    if scores > SCORES:
        raise RequestError(
            f"{scores} log-probabilities of prompts are asked for; at most {SCORES} are given in one answer. Send fewer prompts, or lower "
            f"{param} or n.", param=param
        )  # fmt: skip


async def collect(source: Source, n: int) -> list[Collected]:
    """All choices, in order; where more were made than the `n` to be answered per prompt, the likeliest, likeliest first."""
    found: dict[int, Collected] = {}
    async with aclosing(source.pieces()) as pieces:
        async for piece in pieces:
            if not isinstance(piece, Quiet):
                found.setdefault(piece.index, Collected()).add(piece)
    made, kept = source.tally.choices_per_prompt, list[Collected]()
    for prompt, indices in groupby(sorted(found), lambda index: index // made):
        choices = [found[index] for index in indices]
        if made > n:
            choices = [choices[index] for index in answer.best([each.ended.cumulative_logprob or 0.0 for each in choices], n)]
            for place, each in enumerate(choices):
                each.renumber(prompt * n + place)
        kept += choices
    return kept


class Generation:
    """All choices of one HTTP request, submitted when it is made: who comes next sees it in the queue. `abort` it whatever happens."""

    def __init__(self, engine: EngineClient, tokenizer: Tokenizer, requests: Sequence[Admitted], params: SamplingParams) -> None:
        """Raises EngineDeadError while no engine takes requests."""
        self._engine = engine
        self._requests = requests
        self._wakeup = Wakeup()
        self.id = requests[0].request_id
        self.tally = Tally(requests[0].choices, sum(len(request.prompt) for request in requests))
        self._prompts = [
            (Answer(request, params, tokenizer, number * request.choices), engine.submit(request, self._wakeup))
            for number, request in enumerate(requests)
        ]

    def abort(self) -> None:
        """Ends what is still open in the engine. Safe to call at any time, more than once."""
        for request in self._requests:
            self._engine.abort(request.request_id)

    async def pieces(self, quiet_seconds: float | None = None) -> AsyncGenerator[Piece, None]:
        """Pieces of all choices as they come. Iterate it once. What is not asked for waits in the engine's streams, which have a bound.

        quiet_seconds  after so long without a piece there is a `Quiet` one; None: never
        Raises what the engine's client raises, and ApiError where the engine ended a choice with an error.
        """
        remaining = sum(request.choices for request in self._requests)
        try:
            while remaining:
                if not await self._wakeup.wait(quiet_seconds):
                    yield Quiet()
                for one, stream in self._prompts:
                    while (item := stream.take()) is not None:
                        pieces, close = one.take(item)
                        if close is not None:
                            self._engine.send(close)
                        for piece in pieces:
                            if isinstance(piece, Ended):
                                remaining -= 1
                                _check(piece)
                            self.tally.add(piece)
                            yield piece
        finally:
            self._wakeup.close()


class Beams:
    """Beam searches, one per prompt; `requests` were admitted as the bound on what they may take, and are never submitted.

    The best `n` beams of each are answered, out of as many as a request has choices; usage counts what is answered. Which beams live is
    `engine.beams`'s to say.
    """

    def __init__(
        self,
        engine: EngineClient,
        tokenizer: Tokenizer,
        requests: Sequence[Admitted],
        params: SamplingParams,
        step_door: Door,
        length_penalty: float,
    ) -> None:
        """`step_door` admits each step of each beam, with the parameters that `engine.beams.one_token` gives."""
        self._engine, self._tokenizer, self._requests, self._params = engine, tokenizer, requests, params
        self._door = step_door
        self._length_penalty = length_penalty
        self._steps: set[Generation] = set()
        self.id = requests[0].request_id
        self.tally = Tally(params.n, sum(len(request.prompt) for request in requests))

    def abort(self) -> None:
        """Ends what is still open in the engine. Safe to call at any time, more than once."""
        for step in self._steps:
            step.abort()

    async def pieces(self, quiet_seconds: float | None = None) -> AsyncGenerator[Piece, None]:
        """Pieces of the best beams of each prompt, best first, when all its beams have ended. Raises as `Generation.pieces`."""
        turns = asyncio.Semaphore(SIDE_BY_SIDE)
        searches = [asyncio.create_task(self._search(request, turns)) for request in self._requests]
        try:
            for number, (request, search) in enumerate(zip(self._requests, searches, strict=True)):
                found, cached = await search
                for place, beam in enumerate(found):
                    for piece in self._beam(request, beam, number * self._params.n + place, cached):
                        self.tally.add(piece)
                        yield piece
        finally:
            for search in searches:
                search.cancel()
            await asyncio.gather(*searches, return_exceptions=True)

    async def _search(self, request: Admitted, turns: asyncio.Semaphore) -> tuple[list[beams.Beam], int]:
        """The best beams, and the tokens of the prompt that were cached."""
        ends, penalty = request.stop_ids, self._length_penalty
        search = beams.BeamSearch(request.prompt, request.choices, request.max_tokens, ends, penalty, not ends)
        cached: int | None = None
        async with turns:
            while not search.done:
                found = await asyncio.gather(*(self._next(ids) for ids in search.frontier))
                cached = found[0][1] if cached is None else cached
                search.advance([likeliest for likeliest, _ in found])
        return search.best(self._params.n), cached or 0

    async def _next(self, ids: Sequence[int]) -> tuple[TokenLogprobs, int]:
        """The likeliest tokens after `ids`, and how many of these were cached."""
        step = Generation(self._engine, self._tokenizer, [self._door(ids)], SamplingParams())
        self._steps.add(step)
        (found,) = await collect(step, 1)
        self._steps.discard(step)
        return beams.likeliest(found), found.ended.usage.cached_tokens

    def _beam(self, request: Admitted, beam: beams.Beam, index: int, cached: int) -> list[answer.Piece]:
        choice = Choice(request, 0, self._params, self._tokenizer)
        releases, _ = choice.take(Output(request.request_id, 0, beam.ids, None, beam.finish))
        usage = Usage(len(request.prompt), len(beam.ids), cached)
        shown = [Shown(index, release) for release in releases if release.ids]
        return [Begun(index, request.prompt), *shown, Ended(index, beam.finish or Finish.LENGTH, choice.stop_reason, usage)]


def _check(ended: Ended) -> None:
    if ended.reason is Finish.ERROR:
        raise ApiError("engine_failed", ended.message or "the engine ended this request with an error")
