"""The right answer of a choice: the reference of laws 7, 8 and 9; and a drafter that knows it (law 8).

Owns the comparison of emitted ids with the answer that a choice has alone. The fake model's answer is computed token by token from the
request; a real model's is recorded in a run in which the request was alone. Never sees a plan, a block or another request.
"""

from collections.abc import Callable, Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

from ridgeline.core.drafts.model import DraftCache, ModelDrafter
from ridgeline.core.events import Finish
from ridgeline.core.params import Admitted, RowParams
from ridgeline.core.plan import DraftSpan, Plan, Result, TokenLogprobs
from ridgeline.core.sequence import Sequence as CoreSequence
from ridgeline.errors import LawViolation
from ridgeline.sim.laws.model import FakeModel, chain_stamps, depends_on_history, next_stamp


def make_row_params(request: Admitted, choice: int) -> RowParams:
    """Row parameters of this choice, derived here independently of the engine, so that the engine's derivation is tested."""
    return RowParams(
        seed=request.seed,
        choice=choice,
        prompt_tokens=len(request.prompt),
        sampling=request.sampling,
        min_tokens=request.min_tokens,
        banned_until=tuple(request.stop_ids),
        prompt_logprobs=None if choice else request.prompt_logprobs,
    )


class AnswerSource(Protocol):
    """Source of the right answer of one choice."""

    def token(self, index: int) -> int:
        """The id of output `index`; called in order."""
        ...

    def logprobs(self, index: int) -> TokenLogprobs | None:
        """The log-probabilities of output `index`, the last one that `token` returned."""
        ...

    def prompt_logprobs(self) -> Sequence[TokenLogprobs]:
        """Log-probabilities of the prompt's tokens from the second on; empty where they are not requested."""
        ...


class ComputedAnswer:
    """The fake model's answer, token by token."""

    def __init__(self, request: Admitted, choice: int, model: FakeModel) -> None:
        self._model = model
        self._params = make_row_params(request, choice)
        self._prompt = request.prompt
        self._origin = model.origin(self._params, b"" if request.adapter is None else request.adapter.digest)
        self._stamp = chain_stamps(self._origin, request.prompt)[-1]
        self._past = list(request.prompt) if depends_on_history(request.sampling) else None
        self._before = self._token = 0

    def token(self, index: int) -> int:
        self._before = self._stamp
        self._token = self._model.sample(self._stamp, self._params, self._params.prompt_tokens + index, self._past)
        self._stamp = next_stamp(self._stamp, self._token)
        if self._past is not None:
            self._past.append(self._token)
        return self._token

    def logprobs(self, index: int) -> TokenLogprobs | None:
        best = self._params.sampling.logprobs
        return None if best is None else self._model.logprobs(self._before, self._token, best)

    def prompt_logprobs(self) -> Sequence[TokenLogprobs]:
        best = self._params.prompt_logprobs
        if best is None:
            return ()
        stamps = chain_stamps(self._origin, self._prompt[:-1])
        return [self._model.logprobs(stamp, token, best) for stamp, token in zip(stamps, self._prompt[1:], strict=True)]


class Oracle:
    """Compares each id that the engine emits for one choice with the right one."""

    __slots__ = ("_name", "_scored", "_source", "ended", "ids", "request")

    def __init__(self, request: Admitted, choice: int, source: AnswerSource) -> None:
        self.request = request
        self.ids: list[int] = []
        self.ended: Finish | None = None
        """Finish reason that the ids so far demand, None while the choice must go on."""
        self._name = f"{request.request_id}/{choice}"
        self._source = source
        self._scored = 0

    def follow_prompt(self, scores: Sequence[TokenLogprobs]) -> None:
        """Takes the next log-probabilities of the prompt: every position once, in order."""
        expected = self._source.prompt_logprobs()
        for score in scores:
            if self._scored == len(expected) or score != expected[self._scored]:
                raise LawViolation(8, f"{self._name} scores {score} as prompt position {self._scored + 1} of {len(expected)}")
            self._scored += 1

    def follow(self, ids: Sequence[int], logprobs: Sequence[TokenLogprobs] | None) -> None:
        """Takes the next emitted ids; raises on any that the right answer does not have there."""
        request = self.request
        if ids and (logprobs is None) != (request.sampling.logprobs is None):
            raise LawViolation(8, f"{self._name} asked for log-probabilities: {request.sampling.logprobs}, and got {logprobs}")
        if ids and not self.ids and self._scored != (prompt := len(self._source.prompt_logprobs())):
            raise LawViolation(8, f"{self._name} answers with {self._scored} of {prompt} prompt positions scored")
        for at, token in enumerate(ids):
            index = len(self.ids)
            if self.ended is not None:
                raise LawViolation(1, f"{self._name} emits id {token} after its end ({self.ended})")
            expected = self._source.token(index)
            if token != expected:
                raise LawViolation(8, f"{self._name} emits {token} as output {index}, alone it would be {expected}")
            if logprobs is not None and logprobs[at] != self._source.logprobs(index):
                raise LawViolation(8, f"{self._name}, output {index}: {logprobs[at]}, alone it would be {self._source.logprobs(index)}")
            self.ids.append(token)
            if token in request.stop_ids and len(self.ids) > request.min_tokens:
                self.ended = Finish.STOP
            elif len(self.ids) == request.max_tokens:
                self.ended = Finish.LENGTH


ALL_RIGHT, PARTLY_RIGHT, ALL_WRONG, NO_DRAFT, DRAFT_KINDS = 3, 6, 7, 8, 9
"""Upper bounds of a draw below `DRAFT_KINDS`: all right, right up to a position, all wrong, none; else right but longer than allowed."""


class OracleDrafter:
    """Implements `core.drafts.drafter.Drafter`: drafts are right, wrong or partly right by the seed, past stop ids and over the limit.

    Whatever it drafts must not change any answer (law 8).
    """

    def __init__(
        self,
        seed: int,
        max_drafts: int,
        model: FakeModel,
        source: Callable[[Admitted, int], AnswerSource],
        on_propose: Callable[[], None],
    ) -> None:
        self._seed = seed
        self._max_drafts = max_drafts
        self._model = model
        self._source = source
        self._on_propose = on_propose
        self._answers: WeakKeyDictionary[CoreSequence, tuple[AnswerSource, list[int]]] = WeakKeyDictionary()
        self._steps = 0

    def should_wait(self, running: list[CoreSequence]) -> bool:
        """True for a pseudo-random half of the steps, whatever runs."""
        return bool(running) and hash((self._seed, self._steps >> 2, 5)) >> 8 & 1 == 0

    def runs_ahead(self, sequences: list[CoreSequence]) -> bool:
        """False: its drafts are ids."""
        return False

    def propose(self, rows: list[tuple[CoreSequence, int]], tokens: int, max_drafts: int) -> list[tuple[int, ...]]:
        """Calls `on_propose`, then drafts for each row; the scheduler truncates drafts that are too long."""
        self._on_propose()
        return [self._draft(sequence) for sequence, _ in rows]

    def outlook(self, running: list[CoreSequence]) -> None:
        """None: it weighs nothing."""

    def spans(self, rows: list[tuple[CoreSequence, int]], tokens: int) -> tuple[DraftSpan, ...]:
        """Empty: there is no draft model."""
        return ()

    def on_commit(self, sequences: list[CoreSequence], plan: Plan, result: Result) -> None:
        self._steps += 1

    def _draft(self, sequence: CoreSequence) -> tuple[int, ...]:
        position = len(sequence.known)
        draw = hash((self._seed, sequence.request.seed, sequence.choice, position, 11)) >> 8
        kind, draw = draw % DRAFT_KINDS, draw // DRAFT_KINDS
        count = 1 + draw % self._max_drafts
        if ALL_WRONG <= kind < NO_DRAFT:
            return ()
        right = self._expected_ids(sequence, sequence.outputs, count + (kind >= NO_DRAFT))
        alphabet = self._model.alphabet + self._model.stop_ids
        num_right = count if kind < ALL_RIGHT or kind >= NO_DRAFT else draw // 8 % count if kind < PARTLY_RIGHT else 0
        wrong = [alphabet[hash((draw, index)) % len(alphabet)] for index in range(num_right, len(right))]
        return (*right[:num_right], *wrong) if kind < NO_DRAFT else tuple(right)

    def _expected_ids(self, sequence: CoreSequence, first: int, count: int) -> list[int]:
        """The right outputs from index `first` on, as far as the source has them."""
        if sequence not in self._answers:
            self._answers[sequence] = self._source(sequence.request, sequence.choice), []
        source, ids = self._answers[sequence]
        try:
            while len(ids) < first + count:
                ids.append(source.token(len(ids)))
        except IndexError:  # a recorded answer ends
            pass
        return ids[first : first + count]


class WatchedModelDrafter(ModelDrafter):
    """Drafts of a model, which `on_propose` is told of."""

    def __init__(self, max_drafts: int, barrier: bool, cache: DraftCache, on_propose: Callable[[], None]) -> None:
        super().__init__(max_drafts, (), barrier, cache)
        self._on_propose = on_propose

    def propose(self, rows: list[tuple[CoreSequence, int]], tokens: int, max_drafts: int) -> list[tuple[int, ...]]:
        """Drafts as `ModelDrafter` does."""
        self._on_propose()
        return super().propose(rows, tokens, max_drafts)
