"""Speculative drafts in a simulated service: right with a given chance each, verified as deep as the scheduler's own arithmetic says."""

from array import array
from typing import Final

from ridgeline.core.drafts.depth import Price, depths
from ridgeline.core.plan import Plan, Result
from ridgeline.core.sequence import Sequence
from ridgeline.sim.fleet.durations import Durations

TOKEN: Final = 7
"""The id that every row samples; a draft that is wrong has another one sampled in its place."""
VERIFIED: Final = (1, 2, 3, 4, 6, 8, 12, 16, 32)
"""Tokens of the rows whose verification is priced."""


def price(durations: Durations) -> tuple[tuple[int, int, float], ...]:
    """Measures that an engine takes at its start: (tokens, samples, seconds) of steps in which one row verifies drafts."""
    found = []
    for tokens in VERIFIED:
        nothing, several = array("i", [0]), array("i", [tokens])
        plan = Plan(0, nothing, nothing, several, array("i", [TOKEN]) * tokens, bytearray([tokens]))
        found.append((tokens, tokens, durations.seconds(plan)))
    return tuple(found)


class Assumed:
    """Implements `core.drafts.drafter.Drafter`: `most` ids per row, each right with the chance `right` where those before it are."""

    def __init__(self, most: int, right: float, price: tuple[tuple[int, int, float], ...], barrier: bool) -> None:
        self._chances = [right**place for place in range(1, most + 1)]
        self._price = Price(price)
        self._barrier = barrier

    def waits(self, running: list[Sequence]) -> bool:
        """Drafts are worth more than running ahead."""
        rows = [self._chances[: sequence.limit - sequence.reach - 1] for sequence in running if sequence.reach < sequence.limit]
        return bool(rows) and any(depths(self._price, len(rows), rows, 0, len(rows) * len(self._chances), self._barrier))

    def propose(self, rows: list[tuple[Sequence, int]], tokens: int, most: int) -> list[tuple[int, ...]]:
        """Proposes as many as are worth it."""
        chosen = depths(self._price, tokens, [self._chances[:room] for _, room in rows], 0, most, self._barrier)
        return [(TOKEN,) * depth for depth in chosen]

    def committed(self, sequences: list[Sequence], plan: Plan, result: Result) -> None:
        """Nothing is learnt: chances and seconds are given."""


class Walks:
    """Samples of rows that draft: a function of sequence and position, so that no batch changes it."""

    def __init__(self, right: float) -> None:
        self._right = round(right * (1 << 32))
        self._sequences: dict[int, int] = {}

    def submit(self, plan: Plan) -> None:
        """Takes note of whose rows are whose."""
        for new in plan.new_rows:
            self._sequences[new.row] = new.sequence

    def sampled(self, plan: Plan, index: int) -> tuple[int, ...]:
        """The ids of a row: its drafts up to the first that is wrong, and what comes in its place."""
        sequence, start, drafts = self._sequences[plan.row[index]], plan.start[index] + plan.count[index], plan.sample[index] - 1
        for right in range(drafts):
            if hash((sequence, start - drafts + right, 13)) & 0xFFFFFFFF >= self._right:
                return (*(TOKEN,) * right, TOKEN + 1)
        return (TOKEN,) * (drafts + 1)
