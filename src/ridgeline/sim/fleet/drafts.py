"""Drafts of a simulated fleet: as many as pay by the real depth, each right with an assumed chance."""

from typing import Final, Protocol

from ridgeline.core.drafts.depth import Offer, StepCost, choose_depths
from ridgeline.core.drafts.drafter import Outlook, outlook_of
from ridgeline.core.plan import DraftSpan, Plan, Result
from ridgeline.core.sequence import Sequence as CoreSequence
from ridgeline.planning.deployment import Deployment, drafting
from ridgeline.planning.heads import PlannedHeads
from ridgeline.planning.step import RowGroup, pass_seconds, step_work
from ridgeline.sim.fleet.durations import DecodeTimeModel

SAMPLED_TOKEN: Final = 7
"""The id that every row samples; a wrong draft is replaced by another id."""


class DraftPrices(Protocol):
    """Seconds of drafts."""

    def pass_seconds(self, rows: int) -> float:
        """Seconds of a pass that drafts an id for each of so many rows, as it is measured at a start: over short texts."""
        ...

    def seconds(self, plan: Plan) -> float:
        """Seconds of all passes in front of the step of `plan`."""
        ...


class RooflineDrafts:
    """The planner's estimate for what drafts `alone`: a pass for each depth over the rows that draft so deep, and, of a draft model that
    `reads_prompts`, the prompts of the step, which it computes itself."""

    def __init__(self, alone: Deployment, reads_prompts: bool) -> None:
        self._alone, self._reads_prompts = alone, reads_prompts
        self._lines: dict[int, DecodeTimeModel] = {}

    def pass_seconds(self, rows: int) -> float:
        return self._pass(rows, 0)

    def seconds(self, plan: Plan) -> float:
        found = 0.0
        if self._reads_prompts and len(plan.tokens) > sum(plan.sample):
            columns = zip(plan.start, plan.count, plan.sample, strict=True)
            prompts = [RowGroup(start, count) for start, count, samples in columns if count > samples]
            found += pass_seconds(self._alone, step_work(self._alone, prompts))
        drafting = [(samples - 1, start) for samples, start in zip(plan.sample, plan.start, strict=True) if samples > 1]
        for depth in range(max(drafting, default=(0, 0))[0]):
            positions = [start + depth for count, start in drafting if count > depth]
            found += self._pass(len(positions), sum(positions))
        return found

    def _pass(self, rows: int, positions: int) -> float:
        if rows not in self._lines:
            self._lines[rows] = DecodeTimeModel.of(self._alone, rows)
        return self._lines[rows].seconds(positions + rows)


def draft_prices(deployment: Deployment) -> RooflineDrafts | None:
    """Seconds of a deployment's drafts; None where nothing beside it drafts."""
    alone = drafting(deployment)
    return None if alone is None else RooflineDrafts(alone, not isinstance(deployment.draft, PlannedHeads))


class AssumedDrafter:
    """Implements `core.drafts.drafter.Drafter`: `max_drafts` ids per row, each right with probability `acceptance` if all before it are;
    `drafting`: what they cost, None: nothing."""

    def __init__(
        self,
        max_drafts: int,
        acceptance: float,
        prices: tuple[tuple[int, int, float], ...],
        barrier: bool,
        drafting: DraftPrices | None = None,
    ) -> None:
        self._passes = None if drafting is None else drafting.pass_seconds
        self._max_drafts = max_drafts
        self._acceptance = acceptance
        self._cost = StepCost(prices)
        self._barrier = barrier

    def should_wait(self, running: list[CoreSequence]) -> bool:
        """True if drafts save more time than planning ahead."""
        limits = [sequence.limit - sequence.target - 1 for sequence in running if sequence.target < sequence.limit]
        return any(self._depths(len(limits), self._offers(limits), len(limits) * self._max_drafts))

    def runs_ahead(self, sequences: list[CoreSequence]) -> bool:
        """False: its drafts are ids."""
        return False

    def propose(self, rows: list[tuple[CoreSequence, int]], tokens: int, max_drafts: int) -> list[tuple[int, ...]]:
        """Drafts as many ids per row as save time."""
        depths = self._depths(tokens, self._offers([limit for _, limit in rows]), max_drafts)
        return [(SAMPLED_TOKEN,) * depth for depth in depths]

    def _depths(self, tokens: int, offers: list[Offer], max_drafts: int) -> list[int]:
        return choose_depths(self._cost, tokens, offers, 0, max_drafts, self._barrier, self._passes)

    def _offers(self, limits: list[int]) -> list[Offer]:
        return [(self._acceptance, self._acceptance, max(0, min(self._max_drafts, limit))) for limit in limits]

    def outlook(self, running: list[CoreSequence]) -> Outlook:
        """The outlook for the rows that run."""
        offers, rows = self._offers([each.limit - len(each.known) - 1 for each in running]), len(running)
        depths = self._depths(rows, offers, rows * self._max_drafts)
        return outlook_of(self._cost, rows, offers, depths, 0.0 if self._passes is None else self._passes(1))

    def spans(self, rows: list[tuple[CoreSequence, int]], tokens: int) -> tuple[DraftSpan, ...]:
        """Empty: nothing is computed for drafts but time."""
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
