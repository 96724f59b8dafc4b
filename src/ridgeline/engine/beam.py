"""Beam search as a policy over requests: which sequences to extend by one token, and which of the extensions live on.

Owns the beams of one prompt and nothing else: it is a state machine without an engine. Who drives it submits each sequence of `frontier`
as a request for one greedy token with `logprobs` log-probabilities, and hands the answers back; the prefix cache makes that cheap.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ridgeline.core.events import Finish
from ridgeline.core.plan import TokenLogprobs

MOST_BEAMS = 10
"""Twice so many log-probabilities are as many as a request may ask for."""


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
        self._width = width
        self._left = max_tokens
        self._eos_ids = frozenset() if ignore_eos else frozenset(eos_ids)
        self._length_penalty = length_penalty
        self._live = [self._beam((), 0.0, None)]
        self._complete: list[Beam] = []

    @property
    def logprobs(self) -> int:
        """How many log-probabilities to ask for at each sequence of the frontier."""
        return 2 * self._width

    @property
    def frontier(self) -> list[tuple[int, ...]]:
        """Prompt and outputs of every beam that lives, best first; empty when `done`."""
        return [self._prompt + beam.ids for beam in self._live] if self._left else []

    @property
    def done(self) -> bool:
        """Nothing is to be extended any more."""
        return not self._left or not self._live

    def advance(self, found: Sequence[TokenLogprobs]) -> None:
        """What came of the frontier: for each of its sequences the likeliest next tokens. Raises ValueError if these are others."""
        if self.done or len(found) != len(self._live):
            raise ValueError(f"{len(found)} answers to {len(self.frontier)} sequences")
        self._left -= 1
        end = None if self._left else Finish.LENGTH
        extended: list[Beam] = []
        for beam, answer in zip(self._live, found, strict=True):
            for token, logprob in answer.top[: self.logprobs]:
                finish = Finish.STOP if token in self._eos_ids else end
                made = self._beam((*beam.ids, token), beam.cumulative + logprob, finish)
                (self._complete if finish is Finish.STOP else extended).append(made)
        self._live = _ranked(extended)[: self._width]
        self._complete = _ranked(self._complete)[: self._width]

    def best(self, n: int) -> list[Beam]:
        """The n best so far, best first; at most `width` are there."""
        return _ranked([*self._complete, *self._live])[: min(n, self._width)]

    def _beam(self, ids: tuple[int, ...], cumulative: float, finish: Finish | None) -> Beam:
        length = len(self._prompt) + len(ids) - (finish is Finish.STOP)
        return Beam(ids, cumulative, cumulative / length**self._length_penalty if length else cumulative, finish)


def _ranked(beams: Sequence[Beam]) -> list[Beam]:
    """Best score first; of equals by ids, so that the order does not depend on how they came about."""
    return sorted(beams, key=lambda beam: (-beam.score, beam.ids))
