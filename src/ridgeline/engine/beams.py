"""Beam search over requests of one token each: chooses which sequences to extend, and which of the extensions to keep.

`BeamSearch` is a state machine without an engine. Its driver submits each sequence of `frontier` as a request with the parameters
`step_params`, and passes the answers' `next_token_logprobs` back; the prefix cache makes that cheap. `beam_search` drives it for `LLM`,
with vLLM's names.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from ridgeline.core.events import Finish
from ridgeline.core.params import SamplingParams, with_known_arguments
from ridgeline.core.plan import TokenLogprobs
from ridgeline.engine.admit import ModelLimits
from ridgeline.engine.answer import CollectedChoice
from ridgeline.engine.outputs import LLMRequest
from ridgeline.errors import RequestError
from ridgeline.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from ridgeline.engine.adapters import LoRARequest

MAX_BEAMS: Final = 10
"""Twice as many log-probabilities are the most that a request may ask for."""
MAX_LENGTH_PENALTY: Final = 10
"""The largest exponent, of either sign."""


def step_params(width: int) -> SamplingParams:
    """Parameters of every step of every beam: the likeliest next tokens are asked for."""
    return SamplingParams(temperature=0.0, max_tokens=1, logprobs=2 * width, seed=0)


def next_token_logprobs(choice: CollectedChoice) -> TokenLogprobs:
    """The likeliest next tokens, from the answer to a step of one beam. Raises RequestError where the engine ended it with an error."""
    if choice.end.reason is Finish.ERROR or not choice.logprobs:
        message = choice.end.message or "the engine ended this request with an error"
        raise RequestError(message, code="engine_failed", status=500)
    return choice.logprobs[0]


@dataclass(frozen=True, slots=True)
class Beam:
    """One answer. `ids` are outputs, a stop id included; `cumulative` sums their log-probabilities; `finish` is None while it is live."""

    ids: tuple[int, ...]
    cumulative: float
    score: float
    finish: Finish | None = None


class BeamSearch:
    """The beams of one prompt, with vLLM's semantics.

    Each live beam is extended by its 2 · width likeliest tokens; extensions that end with a stop id are complete, and the `width` best of
    the others are kept as live. At the end the best are chosen among complete and live beams.

    score  cumulative log-probability / (tokens of prompt and outputs but for a stop id) ** length_penalty, as in vLLM (not Wu et al. 2016)
    """

    def __init__(
        self,
        prompt: Sequence[int],
        width: int,
        max_tokens: int,
        eos_ids: Collection[int] = (),
        length_penalty: float = 1.0,
        ignore_eos: bool = False,
    ) -> None:
        """1 ≤ width ≤ `MAX_BEAMS`, max_tokens ≥ 1; with `ignore_eos` every beam has `max_tokens` outputs."""
        if not 1 <= width <= MAX_BEAMS or max_tokens < 1:
            raise ValueError(f"a beam search of width {width} over {max_tokens} tokens; 1 to {MAX_BEAMS} beams, at least 1 token")
        self._prompt = tuple(prompt)
        self.width = width
        self._steps_left = max_tokens
        self._eos_ids = frozenset() if ignore_eos else frozenset(eos_ids)
        self._length_penalty = length_penalty
        self._live = [self._beam((), 0.0, None)]
        self._complete: list[Beam] = []

    @property
    def frontier(self) -> list[tuple[int, ...]]:
        """Prompt and outputs of every live beam, best first; empty when `is_done`."""
        return [self._prompt + beam.ids for beam in self._live] if self._steps_left else []

    @property
    def is_done(self) -> bool:
        """True if no beam is to be extended any more."""
        return not self._steps_left or not self._live

    def advance(self, logprobs: Sequence[TokenLogprobs]) -> None:
        """Extends the live beams by the likeliest next tokens of each sequence of the frontier. Raises ValueError for another number."""
        if self.is_done or len(logprobs) != len(self._live):
            raise ValueError(f"{len(logprobs)} answers to {len(self.frontier)} sequences")
        self._steps_left -= 1
        end = None if self._steps_left else Finish.LENGTH
        extended: list[Beam] = []
        for beam, scored in zip(self._live, logprobs, strict=True):
            for token, logprob in scored.top[: 2 * self.width]:
                finish = Finish.STOP if token in self._eos_ids else end
                new = self._beam((*beam.ids, token), beam.cumulative + logprob, finish)
                (self._complete if finish is Finish.STOP else extended).append(new)
        self._live = _sorted(extended)[: self.width]
        self._complete = _sorted(self._complete)[: self.width]

    def best(self, n: int) -> list[Beam]:
        """The n best so far, best first; at most `width` are there."""
        return _sorted([*self._complete, *self._live])[: min(n, self.width)]

    def _beam(self, ids: tuple[int, ...], cumulative: float, finish: Finish | None) -> Beam:
        length = len(self._prompt) + len(ids) - (finish is Finish.STOP)
        return Beam(ids, cumulative, cumulative / length**self._length_penalty if length else cumulative, finish)


def _sorted(beams: Sequence[Beam]) -> list[Beam]:
    """Best score first; of equals by ids, so that the order does not depend on how they came about."""
    return sorted(beams, key=lambda beam: (-beam.score, beam.ids))


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """Parameters of a search.

    beam_width                  number of live beams, and of answers
    max_tokens                  largest number of outputs of a beam
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
    def longest_params(self) -> SamplingParams:
        """Parameters of the longest beam, which must fit."""
        return SamplingParams(max_tokens=self.max_tokens, ignore_eos=self.ignore_eos)

    def check(self) -> None:
        """Raises RequestError for what is out of range."""
        for name, value, limit in (("beam_width", self.beam_width, MAX_BEAMS), ("max_tokens", self.max_tokens, 2**31 - 1)):
            if type(value) is not int or not 1 <= value <= limit:
                raise RequestError(f"{name} is {value!r:.40}; it must be an integer, at least 1 and at most {limit}.", param=name)
        if not -MAX_LENGTH_PENALTY <= self.length_penalty <= MAX_LENGTH_PENALTY:
            bounds = f"at least -{MAX_LENGTH_PENALTY} and at most {MAX_LENGTH_PENALTY}"
            raise RequestError(f"length_penalty is {self.length_penalty!r:.40}; it must be {bounds}.", param="length_penalty")


BeamSearchParams.__init__ = with_known_arguments(BeamSearchParams.__init__)  # type: ignore[method-assign]


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


class Driver(Protocol):
    """The part of an `LLM` that a search needs."""

    limits: ModelLimits
    tokenizer: Tokenizer

    def prepare(self, prompt: Sequence[int], params: SamplingParams, *, lora: "str | LoRARequest | None" = None) -> LLMRequest: ...

    def run(self, requests: Iterable[LLMRequest]) -> Iterator[LLMRequest]: ...


def beam_search(
    model: Driver, prompts: Sequence[tuple[int, ...]], params: BeamSearchParams, lora: "str | LoRARequest | None" = None
) -> list[BeamSearchOutput]:
    """The beams of each prompt; all searches advance together. Raises RequestError for parameters out of range."""
    params.check()
    eos_ids = model.limits.eos_ids
    width, max_tokens, penalty = params.beam_width, params.max_tokens, params.length_penalty
    searches = [BeamSearch(each, width, max_tokens, eos_ids, penalty, params.ignore_eos) for each in prompts]
    step = step_params(params.beam_width)
    while active := [each for each in searches if not each.is_done]:
        frontiers = [each.frontier for each in active]
        answered = model.run([model.prepare(ids, step, lora=lora) for frontier in frontiers for ids in frontier])
        logprobs = iter([next_token_logprobs(request.choices[0]) for request in answered])
        for each, frontier in zip(active, frontiers, strict=True):
            each.advance([next(logprobs) for _ in frontier])
    return [
        BeamSearchOutput(tuple(_sequence(model, prompt, beam, params) for beam in each.best(params.beam_width)))
        for prompt, each in zip(prompts, searches, strict=True)
    ]


def _sequence(model: Driver, prompt: tuple[int, ...], beam: Beam, params: BeamSearchParams) -> BeamSearchSequence:
    reason = beam.finish.value if beam.finish else "length"
    ids = beam.ids[:-1] if reason == "stop" and not params.include_stop_str_in_output else beam.ids
    tokens = (*prompt, *ids)
    return BeamSearchSequence(tokens, beam.cumulative, model.tokenizer.decode(tokens, skip_special=True), reason)
