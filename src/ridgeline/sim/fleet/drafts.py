"""Drafts of a simulated fleet: as many as pay by the real depth, each right with an assumed chance."""

from typing import Final

from ridgeline.core.drafts.depth import Offer, StepCost, choose_depths
from ridgeline.core.drafts.drafter import Outlook, outlook_of
from ridgeline.core.plan import DraftSpan, Plan, Result
from ridgeline.core.sequence import Sequence as CoreSequence

SAMPLED_TOKEN: Final = 7
"""The id that every row samples; a wrong draft is replaced by another id."""


class AssumedDrafter:
    """Implements `core.drafts.drafter.Drafter`: `max_drafts` ids per row, each right with probability `acceptance` if all before it are."""

    def __init__(self, max_drafts: int, acceptance: float, prices: tuple[tuple[int, int, float], ...], barrier: bool) -> None:
        self._max_drafts = max_drafts
        self._acceptance = acceptance
        self._cost = StepCost(prices)
        self._barrier = barrier

    def should_wait(self, running: list[CoreSequence]) -> bool:
        """True if drafts save more time than planning ahead."""
        limits = [sequence.limit - sequence.target - 1 for sequence in running if sequence.target < sequence.limit]
        return any(choose_depths(self._cost, len(limits), self._offers(limits), 0, len(limits) * self._max_drafts, self._barrier))

    def propose(self, rows: list[tuple[CoreSequence, int]], tokens: int, max_drafts: int) -> list[tuple[int, ...]]:
        """Drafts as many ids per row as save time."""
        depths = choose_depths(self._cost, tokens, self._offers([limit for _, limit in rows]), 0, max_drafts, self._barrier)
        return [(SAMPLED_TOKEN,) * depth for depth in depths]

    def _offers(self, limits: list[int]) -> list[Offer]:
        return [(self._acceptance, self._acceptance, max(0, min(self._max_drafts, limit))) for limit in limits]

    def outlook(self, running: list[CoreSequence]) -> Outlook:
        """The outlook for the rows that run."""
        offers, rows = self._offers([each.limit - len(each.known) - 1 for each in running]), len(running)
        return outlook_of(self._cost, rows, offers, choose_depths(self._cost, rows, offers, 0, rows * self._max_drafts, self._barrier))

    def spans(self, rows: list[CoreSequence], tokens: int) -> tuple[DraftSpan, ...]:
        """Empty: drafts are assumed to cost nothing."""
        return ()

    def on_commit(self, sequences: list[CoreSequence], plan: Plan, result: Result) -> None:
        """Ignores results: acceptance and prices are fixed."""


class AssumedAcceptance:
    """Acceptance of drafts as a function of sequence and position, so that it does not depend on the batch."""

    def __init__(self, acceptance: float) -> None:
        self._threshold = round(acceptance * (1 << 32))
        self._sequences: dict[int, int] = {}

    def submit(self, plan: Plan) -> None:
        """Records the sequence of each new row."""
        for new in plan.new_rows:
            self._sequences[new.row] = new.sequence

    def sampled(self, plan: Plan, index: int) -> tuple[int, ...]:
        """The ids of a row: its drafts up to the first wrong one, and the id in its place."""
        sequence, start, drafts = self._sequences[plan.row[index]], plan.start[index] + plan.count[index], plan.sample[index] - 1
        for acceptance in range(drafts):
            if hash((sequence, start - drafts + acceptance, 13)) & 0xFFFFFFFF >= self._threshold:
                return (*(SAMPLED_TOKEN,) * acceptance, SAMPLED_TOKEN + 1)
        return (SAMPLED_TOKEN,) * (drafts + 1)
