"""What a choice must answer, computed one token after the other from its request alone: the reference of laws 7, 8 and 9.

Owns the sequential oracle; never sees a plan, a page or another request.
"""

from ridgeline.core.events import Finish
from ridgeline.core.params import Admitted, RowParams
from ridgeline.errors import LawViolation
from ridgeline.sim.model import FakeModel, extend, next_stamp


def sampling(request: Admitted, choice: int) -> RowParams:
    """What the sampler must be told of this choice; made here anew, so that the engine's own way of making it is tested."""
    return RowParams(
        seed=request.seed,
        choice=choice,
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        logprobs=request.logprobs,
        prompt_tokens=len(request.prompt),
        min_tokens=request.min_tokens,
        banned_until=tuple(request.stop_ids),
    )


class Oracle:
    """Follows one choice: each id that the engine emits is compared with the one that the context demands."""

    __slots__ = ("_model", "_params", "_stamp", "ended", "ids", "request")

    def __init__(self, request: Admitted, choice: int, model: FakeModel) -> None:
        self.request = request
        self.ids: list[int] = []
        self.ended: Finish | None = None
        """Set when the ids so far demand an end."""
        self._model = model
        self._params = sampling(request, choice)
        self._stamp = extend(model.origin(self._params), request.prompt)[-1]

    @property
    def length(self) -> int:
        """Prompt and outputs so far, in tokens."""
        return len(self.request.prompt) + len(self.ids)

    def follow(self, token: int) -> int:
        """Takes the next emitted id; raises on any that the sequential answer does not have there. Returns the stamp it came from."""
        request = self.request
        if self.ended is not None:
            raise LawViolation(1, f"{self._name} emits id {token} after its end ({self.ended})")
        expected = self._model.sample(self._stamp, self._params, self.length)
        if token != expected:
            raise LawViolation(8, f"{self._name} emits {token} as output {len(self.ids)}, alone it would be {expected}")
        before = self._stamp
        self._stamp = next_stamp(before, token)
        self.ids.append(token)
        if token in request.stop_ids and len(self.ids) > request.min_tokens:
            self.ended = Finish.STOP
        elif len(self.ids) == request.max_tokens:
            self.ended = Finish.LENGTH
        return before

    @property
    def _name(self) -> str:
        return f"{self.request.request_id}/{self._params.choice}"
