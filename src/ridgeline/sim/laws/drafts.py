"""A drafter that knows the answers: its drafts are right, wrong or half right as the seed says, past stop ids and beyond the limit asked.

Owns no decision of the engine: what it drafts must not change any answer (law 8).
"""

from collections.abc import Callable
from weakref import WeakKeyDictionary

from ridgeline.core.params import Admitted
from ridgeline.core.plan import Plan, Result
from ridgeline.core.sequence import Sequence
from ridgeline.sim.laws.model import FakeModel
from ridgeline.sim.laws.oracle import Source

RIGHT, HALF, WRONG, NONE, MANNERS = 3, 6, 7, 8, 9
"""Bounds of a draw below `MANNERS`: all right, right up to some place, wrong from the first on, none, and right but more than asked."""


class Guesses:
    """Implements `core.drafts.drafter.Drafter`."""

    def __init__(self, seed: int, most: int, model: FakeModel, source: Callable[[Admitted, int], Source], told: Callable[[], None]) -> None:
        self._seed = seed
        self._most = most
        self._model = model
        self._source = source
        self._told = told
        self._answers: WeakKeyDictionary[Sequence, tuple[Source, list[int]]] = WeakKeyDictionary()
        self._steps = 0

    def waits(self, running: list[Sequence]) -> bool:
        """True for some steps, whatever runs."""
        return bool(running) and hash((self._seed, self._steps >> 2, 5)) >> 8 & 1 == 0

    def propose(self, rows: list[tuple[Sequence, int]], tokens: int, most: int) -> list[tuple[int, ...]]:
        """The scheduler cuts what is too long. `told` is called before anything comes of it."""
        self._told()
        return [self._guess(sequence) for sequence, _ in rows]

    def committed(self, sequences: list[Sequence], plan: Plan, result: Result) -> None:
        self._steps += 1

    def _guess(self, sequence: Sequence) -> tuple[int, ...]:
        position = len(sequence.known)
        draw = hash((self._seed, sequence.request.seed, sequence.choice, position, 11)) >> 8
        manner, draw = draw % MANNERS, draw // MANNERS
        count = 1 + draw % self._most
        if WRONG <= manner < NONE:
            return ()
        right = self._answer(sequence, sequence.outputs, count + (manner >= NONE))
        alphabet = self._model.alphabet + self._model.stop_ids
        good = count if manner < RIGHT or manner >= NONE else draw // 8 % count if manner < HALF else 0
        wrong = [alphabet[hash((draw, index)) % len(alphabet)] for index in range(good, len(right))]
        return (*right[:good], *wrong) if manner < NONE else tuple(right)

    def _answer(self, sequence: Sequence, first: int, count: int) -> list[int]:
        """The right outputs from `first` on, as far as they are known."""
        if sequence not in self._answers:
            self._answers[sequence] = self._source(sequence.request, sequence.choice), []
        source, ids = self._answers[sequence]
        try:
            while len(ids) < first + count:
                ids.append(source.token(len(ids)))
        except IndexError:  # a recited answer ends
            pass
        return ids[first : first + count]
