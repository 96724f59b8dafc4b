"""Beam search over the engine: the sequences of `engine.beam` as requests for one token each, answered from the prefix cache.

Owns the requests of one HTTP request's searches. What lives on is `engine.beam`'s to say.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from ridgeline.core.commands import Output
from ridgeline.core.events import Finish, Usage
from ridgeline.core.params import Admitted, SamplingParams
from ridgeline.core.plan import TokenLogprobs
from ridgeline.engine.beam import Beam, BeamSearch
from ridgeline.engine.client import EngineClient
from ridgeline.server.errors import ApiError
from ridgeline.server.generate import Begun, Ended, Piece, Shown, Tally
from ridgeline.server.service import Door
from ridgeline.text.choice import Choice
from ridgeline.text.tokenizer import Tokenizer

SIDE_BY_SIDE: Final = 4
"""Searches of one HTTP request that run at once: each brings as many requests as it has beams."""


class Beams:
    """Searches, one a prompt; `requests` were admitted as the bound on what they may take, and are never submitted.

    The best `n` beams of each are answered, out of as many as a request has choices; usage counts what is answered.
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
        """`step_door` admits each step of each beam, with the parameters that `step` gives."""
        self._engine, self._tokenizer, self._requests, self._params = engine, tokenizer, requests, params
        self._door = step_door
        self._length_penalty = length_penalty
        self._open: set[str] = set()
        self.id = requests[0].request_id
        self.tally = Tally(params.n, sum(len(request.prompt) for request in requests))

    @staticmethod
    def step(width: int) -> SamplingParams:
        """What a beam asks of the engine at each step: the likeliest next tokens."""
        return SamplingParams(temperature=0.0, max_tokens=1, logprobs=2 * width, seed=0)

    def abort(self) -> None:
        """Ends what is still open in the engine. Safe to call at any time, more than once."""
        for request_id in self._open:
            self._engine.abort(request_id)

    async def pieces(self, quiet_seconds: float | None = None) -> AsyncGenerator[Piece, None]:
        """Of each prompt the best beams, best first, when all its beams have ended. Raises as `Generation.pieces`."""
        turns = asyncio.Semaphore(SIDE_BY_SIDE)
        searches = [asyncio.create_task(self._search(request, turns)) for request in self._requests]
        try:
            for number, (request, search) in enumerate(zip(self._requests, searches, strict=True)):
                beams, cached = await search
                for place, beam in enumerate(beams):
                    for piece in self._beam(request, beam, number * self._params.n + place, cached):
                        self.tally.add(piece)
                        yield piece
        finally:
            for search in searches:
                search.cancel()
            await asyncio.gather(*searches, return_exceptions=True)

    async def _search(self, request: Admitted, turns: asyncio.Semaphore) -> tuple[list[Beam], int]:
        """The best beams, and the tokens of the prompt that were cached."""
        search = BeamSearch(
            request.prompt, request.choices, request.max_tokens, request.stop_ids, self._length_penalty, not request.stop_ids
        )
        cached: int | None = None
        async with turns:
            while not search.done:
                found = await asyncio.gather(*(self._next(ids) for ids in search.frontier))
                cached = found[0][1] if cached is None else cached
                search.advance([answer for answer, _ in found])
        return search.best(self._params.n), cached or 0

    async def _next(self, ids: Sequence[int]) -> tuple[TokenLogprobs, int]:
        """The likeliest tokens after `ids`, and how many of these were cached."""
        request = self._door(ids)
        stream, found = self._engine.submit(request), None
        self._open.add(request.request_id)
        async for item in stream:
            if isinstance(item, Output):
                found = item.logprobs[0] if item.logprobs else found
            else:
                end = item
        self._open.discard(request.request_id)
        if found is None or end.reason is Finish.ERROR:
            raise ApiError("engine_failed", end.message or "the engine ended this request with an error")
        return found, end.usage.cached_tokens

    def _beam(self, request: Admitted, beam: Beam, index: int, cached: int) -> list[Piece]:
        choice = Choice(request, 0, self._params, self._tokenizer)
        releases, _ = choice.take(Output(request.request_id, 0, beam.ids, None, beam.finish))
        usage = Usage(len(request.prompt), len(beam.ids), cached)
        shown: list[Piece] = [Shown(index, release) for release in releases if release.ids]
        return [Begun(index, request.prompt), *shown, Ended(index, beam.finish or Finish.LENGTH, choice.stop_reason, usage)]
