"""Beam searches of one HTTP request, as a source of answers. Which beams live is `engine.beams`'s to say."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final

from ridgeline.core.commands import Output
from ridgeline.core.events import Finish, Usage
from ridgeline.core.params import Admitted, SamplingParams
from ridgeline.core.plan import TokenLogprobs
from ridgeline.engine.answer import AnswerPart, ChoiceBuilder, ChoiceDelta, ChoiceEnd, ChoiceStart
from ridgeline.engine.beams import Beam, BeamSearch, next_token_logprobs
from ridgeline.server.answer import AnswerSource, Part, UsageCounter, collect
from ridgeline.server.relay import Relay
from ridgeline.server.shortcut import Shortcut
from ridgeline.text.tokenizer import Tokenizer

MAX_CONCURRENT_SEARCHES: Final = 4
"""Beam searches of one HTTP request that run at once: each brings as many requests as it has beams."""


class BeamGeneration:
    """Beam searches, one per prompt; `requests` were admitted as the bound on what they may take, and are never submitted.

    The best `n` beams of each are answered, out of as many as a request has choices; usage counts what is answered.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        requests: Sequence[Admitted],
        params: SamplingParams,
        submit_step: Callable[[Sequence[int]], AnswerSource],
        length_penalty: float,
    ) -> None:
        """`submit_step` submits the ids of one beam, with the parameters `engine.beams.step_params`."""
        self._tokenizer, self._requests, self._params = tokenizer, requests, params
        self._submit_step = submit_step
        self._length_penalty = length_penalty
        self._steps: set[AnswerSource] = set()
        self.id = requests[0].request_id
        self.relay: Relay | None = None
        self.shortcut: Shortcut | None = None
        self.may_be_refused = False
        self.usage = UsageCounter(params.n, sum(len(request.prompt) for request in requests))

    def abort(self) -> None:
        """Ends what is still open in the engine. Safe to call at any time, more than once."""
        for step in self._steps:
            step.abort()

    async def parts(self, idle_seconds: float | None = None, *, whole: bool = False) -> AsyncGenerator[Part, None]:
        """Parts of the best beams of each prompt, best first, when all its beams have ended. Raises as `Generation.parts`."""
        slots = asyncio.Semaphore(MAX_CONCURRENT_SEARCHES)
        searches = [asyncio.create_task(self._search(request, slots)) for request in self._requests]
        try:
            for number, (request, search) in enumerate(zip(self._requests, searches, strict=True)):
                beams, cached_tokens = await search
                for rank, beam in enumerate(beams):
                    for part in self._beam_parts(request, beam, number * self._params.n + rank, cached_tokens):
                        self.usage.add(part)
                        yield part
        finally:
            for search in searches:
                search.cancel()
            await asyncio.gather(*searches, return_exceptions=True)

    async def _search(self, request: Admitted, slots: asyncio.Semaphore) -> tuple[list[Beam], int]:
        """The best beams, and the tokens of the prompt that were cached."""
        eos_ids, penalty = request.stop_ids, self._length_penalty
        search = BeamSearch(request.prompt, request.choices, request.max_tokens, eos_ids, penalty, not eos_ids)
        cached_tokens: int | None = None
        async with slots:
            while not search.is_done:
                found = await asyncio.gather(*(self._extend(ids) for ids in search.frontier))
                cached_tokens = found[0][1] if cached_tokens is None else cached_tokens
                search.advance([logprobs for logprobs, _ in found])
        return search.best(self._params.n), cached_tokens or 0

    async def _extend(self, ids: Sequence[int]) -> tuple[TokenLogprobs, int]:
        """The likeliest tokens after `ids`, and how many of these were cached."""
        step = self._submit_step(ids)
        self._steps.add(step)
        (choice,) = await collect(step, 1)
        self._steps.discard(step)
        self.usage.continued += step.usage.continued
        return next_token_logprobs(choice), choice.end.usage.cached_tokens

    def _beam_parts(self, request: Admitted, beam: Beam, index: int, cached_tokens: int) -> list[AnswerPart]:
        builder = ChoiceBuilder(request, 0, self._params, self._tokenizer)
        deltas, _ = builder.process(Output(request.request_id, 0, beam.ids, None, beam.finish))
        usage = Usage(len(request.prompt), len(beam.ids), cached_tokens)
        parts = [ChoiceDelta(index, delta) for delta in deltas if delta.ids]
        return [ChoiceStart(index, request.prompt), *parts, ChoiceEnd(index, beam.finish or Finish.LENGTH, builder.stop_reason, usage)]
