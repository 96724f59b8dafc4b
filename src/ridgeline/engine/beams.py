"""Beam search of an `LLM`: turns the beams of all prompts into requests of one token, round by round. Names are vLLM's.

Which beams live is `engine.beam`'s business.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ridgeline.core.params import SamplingParams
from ridgeline.core.plan import TokenLogprobs
from ridgeline.engine.admit import ModelLimits
from ridgeline.engine.answer import Answer
from ridgeline.engine.beam import MOST_BEAMS, Beam, BeamSearch
from ridgeline.engine.outputs import RequestOutput
from ridgeline.errors import RequestError
from ridgeline.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """How a search goes.

    beam_width                  beams that live, and answers
    max_tokens                  outputs of a beam at most
    ignore_eos                  no beam ends before `max_tokens`
    length_penalty              beams are compared by log-probability / tokens ** length_penalty
    include_stop_str_in_output  a beam's tokens end with the stop id that ended it
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False

    @property
    def longest(self) -> SamplingParams:
        """What the longest beam needs room for."""
        return SamplingParams(max_tokens=self.max_tokens, ignore_eos=self.ignore_eos)


@dataclass(frozen=True, slots=True)
class BeamSearchSequence:
    """One beam: prompt and outputs as ids and as text, the sum of the outputs' log-probabilities, "stop" or "length"."""

    tokens: tuple[int, ...]
    cum_logprob: float
    text: str
    finish_reason: str


@dataclass(frozen=True, slots=True)
class BeamSearchOutput:
    """The beams of one prompt, best first."""

    sequences: tuple[BeamSearchSequence, ...]


class Model(Protocol):
    """Of an `LLM` what a search needs."""

    limits: ModelLimits
    tokenizer: Tokenizer

    def prepare(self, prompt: Sequence[int], params: SamplingParams) -> Answer: ...

    def run(self, answers: Iterable[Answer]) -> Iterator[RequestOutput]: ...


def search(model: Model, prompts: Sequence[tuple[int, ...]], params: BeamSearchParams) -> list[BeamSearchOutput]:
    """The beams of each prompt. Raises RequestError for parameters out of range."""
    for name, value, most in (("beam_width", params.beam_width, MOST_BEAMS), ("max_tokens", params.max_tokens, 2**31 - 1)):
        if type(value) is not int or not 1 <= value <= most:
            raise RequestError(f"{name} is {value!r:.40}; it must be an integer, at least 1 and at most {most}.", param=name)
    if not -10 <= params.length_penalty <= 10:
        message = f"length_penalty is {params.length_penalty!r:.40}; it must be at least -10 and at most 10."
        raise RequestError(message, param="length_penalty")
    ends = model.limits.eos_ids
    searches = [BeamSearch(each, params.beam_width, params.max_tokens, ends, params.length_penalty, params.ignore_eos) for each in prompts]
    one_token = SamplingParams(temperature=0, max_tokens=1, logprobs=2 * params.beam_width)
    while searching := [each for each in searches if not each.done]:
        frontiers = [each.frontier for each in searching]
        outputs = model.run([model.prepare(ids, one_token) for frontier in frontiers for ids in frontier])
        found = iter([_likeliest(output) for output in outputs])
        for each, frontier in zip(searching, frontiers, strict=True):
            each.advance([next(found) for _ in frontier])
    return [
        BeamSearchOutput(tuple(_sequence(model, prompt, beam, params) for beam in each.best(params.beam_width)))
        for prompt, each in zip(prompts, searches, strict=True)
    ]


def _likeliest(output: RequestOutput) -> TokenLogprobs:
    answer = output.outputs[0]
    if not answer.logprobs:
        raise RequestError("the model's numbers were not finite for one of the beams.", code="not_finite", status=500)
    ranked = sorted((each.rank, token, each.logprob) for token, each in answer.logprobs[0].items() if each.rank is not None)
    return TokenLogprobs(answer.logprobs[0][answer.token_ids[0]].logprob, tuple((token, logprob) for _, token, logprob in ranked))


def _sequence(model: Model, prompt: tuple[int, ...], beam: Beam, params: BeamSearchParams) -> BeamSearchSequence:
    reason = beam.finish.value if beam.finish else "length"
    ids = beam.ids[:-1] if reason == "stop" and not params.include_stop_str_in_output else beam.ids
    tokens = (*prompt, *ids)
    return BeamSearchSequence(tokens, beam.cumulative, model.tokenizer.decode(tokens, skip_special=True), reason)
