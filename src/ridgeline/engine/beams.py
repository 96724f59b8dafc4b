"""Beam search as a policy over requests of one token: which sequences to extend, and which of the extensions live on.

`BeamSearch` is a state machine without an engine. Who drives it submits each sequence of `frontier` as a request with the parameters
`one_token`, and hands `likeliest` of the answers back; the prefix cache makes that cheap. `search` drives it for `LLM`, with vLLM's names.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from ridgeline.core.events import Finish
from ridgeline.core.params import SamplingParams
from ridgeline.core.plan import TokenLogprobs
from ridgeline.engine.admit import ModelLimits
from ridgeline.engine.answer import Collected
from ridgeline.engine.outputs import LLMRequest
from ridgeline.errors import RequestError
from ridgeline.text.tokenizer import Tokenizer

MOST_BEAMS: Final = 10
"""Twice so many log-probabilities are as many as a request may ask for."""
LENGTH_PENALTY: Final = 10
"""The largest exponent, of either sign."""


def one_token(width: int) -> SamplingParams:
    """Parameters of every step of every beam: the likeliest next tokens are asked for."""
    return SamplingParams(temperature=0.0, max_tokens=1, logprobs=2 * width, seed=0)


def likeliest(found: Collected) -> TokenLogprobs:
    """The next tokens in the answer to a step of one beam. Raises RequestError where the engine ended it with an error."""
    if found.ended.reason is Finish.ERROR or not found.logprobs:
        message = found.ended.message or "the engine ended this request with an error"
        raise RequestError(message, code="engine_failed", status=500)
    return found.logprobs[0]


@dataclass(frozen=True, slots=True)
class Beam:
    """One answer. `ids` are outputs, a stop id included; `cumulative` is the sum of their log-probabilities; `finish` None: it lives."""

    ids: tuple[int, ...]
    cumulative: float
    score: float
    finish: Finish | None = None


class BeamSearch:
    """The beams of one prompt, with vLLM's semantics.

    Each live beam offers its 2 · width likeliest extensions, those that end with a stop id are complete, and the `width` best of the others
    live on. At the end the best are chosen among the complete and those that still live.

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
        """1 ≤ width ≤ `MOST_BEAMS`, max_tokens ≥ 1; with `ignore_eos` every beam has `max_tokens` outputs."""
        if not 1 <= width <= MOST_BEAMS or max_tokens < 1:
            raise ValueError(f"a beam search of width {width} over {max_tokens} tokens; 1 to {MOST_BEAMS} beams, at least 1 token")
        self._prompt = tuple(prompt)
        self.width = width
        self._left = max_tokens
        self._eos_ids = frozenset() if ignore_eos else frozenset(eos_ids)
        self._length_penalty = length_penalty
        self._live = [self._beam((), 0.0, None)]
        self._complete: list[Beam] = []

    @property
    def frontier(self) -> list[tuple[int, ...]]:
        """Prompt and outputs of every beam that lives, best first; empty when `done`."""
        return [self._prompt + beam.ids for beam in self._live] if self._left else []

    @property
    def done(self) -> bool:
        """True if nothing is to be extended any more."""
        return not self._left or not self._live

    def advance(self, found: Sequence[TokenLogprobs]) -> None:
        """Takes for each sequence of the frontier the likeliest next tokens. Raises ValueError if these are others."""
        if self.done or len(found) != len(self._live):
            raise ValueError(f"{len(found)} answers to {len(self.frontier)} sequences")
        self._left -= 1
        end = None if self._left else Finish.LENGTH
        extended: list[Beam] = []
        for beam, answer in zip(self._live, found, strict=True):
            for token, logprob in answer.top[: 2 * self.width]:
                finish = Finish.STOP if token in self._eos_ids else end
                made = self._beam((*beam.ids, token), beam.cumulative + logprob, finish)
                (self._complete if finish is Finish.STOP else extended).append(made)
        self._live = _ranked(extended)[: self.width]
        self._complete = _ranked(self._complete)[: self.width]

    def best(self, n: int) -> list[Beam]:
        """The n best so far, best first; at most `width` are there."""
        return _ranked([*self._complete, *self._live])[: min(n, self.width)]

    def _beam(self, ids: tuple[int, ...], cumulative: float, finish: Finish | None) -> Beam:
        length = len(self._prompt) + len(ids) - (finish is Finish.STOP)
        return Beam(ids, cumulative, cumulative / length**self._length_penalty if length else cumulative, finish)


def _ranked(beams: Sequence[Beam]) -> list[Beam]:
    """Best score first; of equals by ids, so that the order does not depend on how they came about."""
    return sorted(beams, key=lambda beam: (-beam.score, beam.ids))


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """Parameters of a search.

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
        """Parameters of the longest beam, which must have room."""
        return SamplingParams(max_tokens=self.max_tokens, ignore_eos=self.ignore_eos)

    def check(self) -> None:
        """Raises RequestError for what is out of range."""
        for name, value, most in (("beam_width", self.beam_width, MOST_BEAMS), ("max_tokens", self.max_tokens, 2**31 - 1)):
            if type(value) is not int or not 1 <= value <= most:
                raise RequestError(f"{name} is {value!r:.40}; it must be an integer, at least 1 and at most {most}.", param=name)
        if not -LENGTH_PENALTY <= self.length_penalty <= LENGTH_PENALTY:
            message = f"length_penalty is {self.length_penalty!r:.40}; it must be at least -{LENGTH_PENALTY} and at most {LENGTH_PENALTY}."
            raise RequestError(message, param="length_penalty")


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
    """The part of an `LLM` that a search needs."""

    limits: ModelLimits
    tokenizer: Tokenizer

    def prepare(self, prompt: Sequence[int], params: SamplingParams) -> LLMRequest: ...

    def run(self, requests: Iterable[LLMRequest]) -> Iterator[LLMRequest]: ...


def search(model: Model, prompts: Sequence[tuple[int, ...]], params: BeamSearchParams) -> list[BeamSearchOutput]:
    """The beams of each prompt; all searches advance side by side. Raises RequestError for parameters out of range."""
    params.check()
    ends = model.limits.eos_ids
    searches = [BeamSearch(each, params.beam_width, params.max_tokens, ends, params.length_penalty, params.ignore_eos) for each in prompts]
    step = one_token(params.beam_width)
    while searching := [each for each in searches if not each.done]:
        frontiers = [each.frontier for each in searching]
        answered = model.run([model.prepare(ids, step) for frontier in frontiers for ids in frontier])
        found = iter([likeliest(request.choices[0]) for request in answered])
        for each, frontier in zip(searching, frontiers, strict=True):
            each.advance([next(found) for _ in frontier])
    return [
        BeamSearchOutput(tuple(_sequence(model, prompt, beam, params) for beam in each.best(params.beam_width)))
        for prompt, each in zip(prompts, searches, strict=True)
    ]


def _sequence(model: Model, prompt: tuple[int, ...], beam: Beam, params: BeamSearchParams) -> BeamSearchSequence:
    reason = beam.finish.value if beam.finish else "length"
    ids = beam.ids[:-1] if reason == "stop" and not params.include_stop_str_in_output else beam.ids
    tokens = (*prompt, *ids)
    return BeamSearchSequence(tokens, beam.cumulative, model.tokenizer.decode(tokens, skip_special=True), reason)
