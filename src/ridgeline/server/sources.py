"""Admits what a body asks for and starts it: choices that are sampled side by side, the best of many, or a beam search.

Owns which of these it is. Nothing is awaited between admission and submission: who comes next finds this request in the queue.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from ridgeline.core.params import Admitted, SamplingParams
from ridgeline.errors import RequestError
from ridgeline.server import wire
from ridgeline.server.beams import SIDE_BY_SIDE, Beams
from ridgeline.server.generate import Begun, Ended, Generation, Piece, Quiet, Shown, Source
from ridgeline.server.service import Service
from ridgeline.text.ranking import best

SCORES: Final = 400_000
"""Log-probabilities of prompt tokens in one answer: some 25 MB of JSON."""


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
        step_door = service.door(Beams.step(requests[0].choices), priority=asked.priority or 0, salt=asked.cache_salt or "")
        penalty = 1.0 if asked.length_penalty is None else asked.length_penalty
        return Beams(engine, service.model.tokenizer, requests, params, step_door, penalty)
    generation = Generation(service.check_room(len(requests)), service.model.tokenizer, requests, params)
    return Best(generation, requests[0].choices, params.n) if requests[0].choices > params.n else generation


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


class Best:
    """The `keep` likeliest of `made` choices of each prompt, likeliest first. Nothing comes before all have ended."""

    def __init__(self, source: Generation, made: int, keep: int) -> None:
        self._source, self._made, self._keep = source, made, keep
        self.id, self.tally = source.id, source.tally
        self.abort = source.abort

    async def pieces(self, quiet_seconds: float | None = None) -> AsyncGenerator[Piece, None]:
        """As `Generation.pieces`, with the choices that are kept numbered anew."""
        found: dict[int, list[Begun | Shown | Ended]] = {}
        ends: dict[int, float] = {}
        async with aclosing(self._source.pieces()) as pieces:
            async for piece in pieces:
                if not isinstance(piece, Quiet):
                    found.setdefault(piece.index, []).append(piece)
                if isinstance(piece, Ended):
                    ends[piece.index] = piece.cumulative_logprob or 0.0
        for prompt, first in enumerate(range(0, len(found), self._made)):
            for place, chosen in enumerate(best([ends[first + index] for index in range(self._made)], self._keep)):
                for piece in found[first + chosen]:
                    yield replace(piece, index=prompt * self._keep + place)
