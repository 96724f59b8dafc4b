"""Speculative drafts from the sequence's own ids (prompt lookup), as deep as they have been worth.

Every id that comes is compared with what would have been drafted, whether it was or not: so it costs no step to see that a sequence has
begun, or ceased, to repeat itself.
"""

from typing import Final
from weakref import WeakKeyDictionary

from ridgeline.core.drafts.depth import StepCost, choose_depths
from ridgeline.core.drafts.ngram import MAX_MATCH_LENGTH, NgramIndex
from ridgeline.core.plan import Plan, Result
from ridgeline.core.sequence import Sequence, State

RIGHT: Final = (0.0, 0.0, 0.35, 0.45, 0.6, 0.7, 0.8, 0.85, 0.92)
"""Share of first proposed ids that are right, by how many ids agree, before a sequence has told more: as seen in edits and stories."""
DOUBT: Final = 6.0
"""Comparisons of a sequence that count as much as that share."""
MEMORY: Final = 0.93
"""Weight of a comparison at the next one."""
MOST_RESTS: Final = 64
"""Steps without waiting, at most, after a wait for which nothing came of it."""
assert len(RIGHT) == MAX_MATCH_LENGTH + 1


class _Row:
    """Experience with one sequence: `proposed` may come behind its known ids; `right` of `compared` ids were, fading."""

    __slots__ = ("compared", "index", "known", "proposed", "right")

    def __init__(self, sequence: Sequence) -> None:
        self.index = NgramIndex(sequence.known)
        self.known = len(sequence.known)
        self.proposed: tuple[int, ...] = ()
        self.right = 0.0
        self.compared = 0.0

    def look(self, ids: list[int], most: int) -> None:
        """Compares the ids that came since the last call with what was proposed, and proposes anew."""
        for token, proposed in zip(ids[self.known :], self.proposed, strict=False):
            self.compared = MEMORY * self.compared + 1.0
            self.right = MEMORY * self.right + (token == proposed)
            if token != proposed:
                break
        self.known = len(ids)
        self.proposed = self.index.propose(most) if self.index.update() else ()

    def chance(self) -> float:
        """The chance that the first proposed id is right, and each further one where those before it are."""
        return (self.right + DOUBT * RIGHT[self.index.match_length]) / (self.compared + DOUBT)


class PromptLookupDrafter:
    """Implements `core.drafts.drafter.Drafter`.

    most     ids drafted for a row and step at most
    barrier  without drafts steps run ahead of each other, so that one that drafts makes the device wait for the host
    """

    def __init__(self, most: int, price: tuple[tuple[int, int, float], ...], barrier: bool) -> None:
        self._most = most
        self._price = StepCost(price)
        self._barrier = barrier
        self._rows: WeakKeyDictionary[Sequence, _Row] = WeakKeyDictionary()
        self._waited = False
        self._rests = self._rest = 0
        """Steps for which nothing is waited for: after the last wait in vain, and still."""

    def should_wait(self, running: list[Sequence]) -> bool:
        """Drafts would be worth it behind the ids that are in flight, if these come as proposed."""
        if self._rest:
            return False
        rows, get = [], self._rows.get
        for sequence in running:
            row, promised = get(sequence), sequence.promised
            if row is not None and len(row.proposed) > promised:
                room = sequence.limit - sequence.target - 1
                rows.append(self._chances(row, promised, min(self._most, room)))
        others = len(running) - len(rows)
        worth = bool(rows) and any(choose_depths(self._price, len(running), rows, others, len(rows) * self._most, self._barrier))
        self._waited = self._waited or worth
        return worth

    def propose(self, rows: list[tuple[Sequence, int]], tokens: int, most: int) -> list[tuple[int, ...]]:
        """For each row what followed the last time, as much of it as is worth a step."""
        known = [(index, self._rows.get(sequence)) for index, (sequence, _) in enumerate(rows)]
        offers = [(index, row) for index, row in known if row is not None and row.proposed]
        found: list[tuple[int, ...]] = [()] * len(rows)
        if offers:
            chances = [self._chances(row, 0, min(self._most, rows[index][1])) for index, row in offers]
            chosen = choose_depths(self._price, tokens, chances, len(rows) - len(offers), most, self._barrier)
            for (index, row), depth in zip(offers, chosen, strict=True):
                found[index] = row.proposed[:depth]
        if any(found):
            self._rests = 0
        elif self._waited:
            self._rests = self._rest = min(MOST_RESTS, 2 * self._rests + 1)
        self._waited = False
        return found

    def _chances(self, row: _Row, ahead: int, most: int) -> list[float]:
        """The chance of each of the row's drafts to count, behind `ahead` ids that are in flight."""
        right = row.chance()
        chance, found = right**ahead, []
        for _ in range(min(most, len(row.proposed) - ahead)):
            chance *= right
            found.append(chance)
        return found

    def on_commit(self, sequences: list[Sequence], plan: Plan, result: Result) -> None:
        """Rows that sampled are looked at; a step of nothing but their tokens tells what it costs."""
        ahead = self._most + 4  # as many steps may be in flight
        self._rest = max(0, self._rest - 1)
        for sequence, ids in zip(sequences, result.sampled, strict=True):
            if ids and sequence.state is State.RUNNING:
                row = self._rows.get(sequence)
                if row is None:
                    row = self._rows[sequence] = _Row(sequence)
                row.look(sequence.known, ahead)
        if result.timings.run > 0 and sum(plan.sample) == len(plan.tokens):
            self._price.learn(len(plan.tokens), result.timings.run)
