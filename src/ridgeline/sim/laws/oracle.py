"""What a choice must answer: the reference of laws 7, 8 and 9.

Owns the comparison of emitted ids with the answer that a choice has alone. The fake model's is computed one token after the other
from the request; a real one's is recited from a run in which the request was alone. Never sees a plan, a block or another request.
"""

from collections.abc import Sequence
from typing import Protocol

from ridgeline.core.events import Finish
from ridgeline.core.params import Admitted, RowParams
from ridgeline.core.plan import TokenLogprobs
from ridgeline.errors import LawViolation
from ridgeline.sim.laws.model import FakeModel, extend, looks_back, next_stamp


def sampling(request: Admitted, choice: int) -> RowParams:
    """What the sampler must be told of this choice; made here anew, so that the engine's own way of making it is tested."""
    return RowParams(
        seed=request.seed,
        choice=choice,
        prompt_tokens=len(request.prompt),
        sampling=request.sampling,
        min_tokens=request.min_tokens,
        banned_until=tuple(request.stop_ids),
        prompt_logprobs=None if choice else request.prompt_logprobs,
    )


class Source(Protocol):
    """Where the right answer comes from."""

    def token(self, index: int) -> int:
        """The id of output `index`; asked for in order."""
        ...

    def logprobs(self, index: int) -> TokenLogprobs | None:
        """The log-probabilities of output `index`, the one asked for last."""
        ...

    def prompt_logprobs(self) -> Sequence[TokenLogprobs]:
        """Those of the prompt's tokens from the second on; empty where they are not asked for."""
        ...


class Computed:
    """The fake model's answer, token by token."""

    def __init__(self, request: Admitted, choice: int, model: FakeModel) -> None:
        self._model = model
        self._params = sampling(request, choice)
        self._prompt = request.prompt
        self._stamp = extend(model.origin(self._params), request.prompt)[-1]
        self._past = list(request.prompt) if looks_back(request.sampling) else None
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
        stamps = extend(self._model.origin(self._params), self._prompt[:-1])
        return [self._model.logprobs(stamp, token, best) for stamp, token in zip(stamps, self._prompt[1:], strict=True)]


class Oracle:
    """Follows one choice: each id that the engine emits is compared with the one that is right there."""

    __slots__ = ("_name", "_scored", "_source", "ended", "ids", "request")

    def __init__(self, request: Admitted, choice: int, source: Source) -> None:
        self.request = request
        self.ids: list[int] = []
        self.ended: Finish | None = None
        """Set when the ids so far demand an end."""
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
