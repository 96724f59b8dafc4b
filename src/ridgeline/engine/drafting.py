"""The decision on speculation: how deep drafts are expected to be at how many sequences, and by which prices. A start measures these,
`config explain` predicts them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ridgeline.config.groups import EngineConfig
from ridgeline.config.resolve import Decision
from ridgeline.core.drafts.depth import Passes, StepCost, choose_depths
from ridgeline.core.drafts.kinds import model_drafter
from ridgeline.engine.executor import ExecutorInfo

ASSUMED_ACCEPTANCE: Final = 0.8
"""Chance that a draft is right, all before it being right, for which a decision says how many there would be."""


@dataclass(frozen=True, slots=True)
class DraftPrices:
    """Costs of drafts.

    steps    (tokens, samples, seconds) of steps in which one row verifies drafts; fewer than two say nothing
    most     ids that are drafted per row and step, at most
    barrier  steps run ahead of each other without drafts, and wait for the host with them
    origin   "measured" or "predicted"
    passes   seconds of a pass that drafts an id for each of so many rows; None: drafts take no time of the device
    """

    steps: tuple[tuple[int, int, float], ...]
    most: int
    barrier: bool
    origin: str
    passes: Passes | None = None


def measured_prices(config: EngineConfig, info: ExecutorInfo) -> DraftPrices:
    """The prices of a start."""
    most, barrier, cache = config.num_speculative_tokens, config.depth > 1, info.drafts
    if cache is None:
        return DraftPrices(info.price, most, barrier, "measured")
    passes = model_drafter(most, info.price, barrier, cache).pass_seconds if cache.passes else None
    waits = barrier and (config.speculative == "auto" or not cache.ahead)
    return DraftPrices(info.price, min(most, cache.most or most), waits, "measured", passes)


def speculation_decision(config: EngineConfig, prices: DraftPrices, rows: int) -> Decision:
    """The decision on drafts of an engine of so many rows."""
    bound = f"--speculative: up to {prices.most} ids per sequence and step, as many as are worth their cost"
    if len(prices.steps) < 2:
        return Decision("speculative", config.speculative, "flag", f"{bound}; their cost is measured as it runs")
    none, all_of_them = (1e3 * StepCost(prices.steps).seconds(tokens) for tokens in (1, 1 + prices.most))
    cost = f"a step that verifies {prices.most} takes {all_of_them / none:.1f} times as long as one that verifies none"
    passes = f", an id of what drafts {1e3 * prices.passes(1):.3g} ms" if prices.passes else ""
    cost += f" ({all_of_them:.3g} over {none:.3g} ms{passes}, {prices.origin})"
    depths = expected_depths(prices)
    shown = ", ".join([f"{depths(each)} for {each}" for each in (1, 4, 16, 32) if each <= rows])
    last = next((each for each in range(rows, 0, -1) if depths(each)), 0)
    end = f"drafts pay up to all {rows}" if last == rows else f"nothing is drafted for more than {last}" if last else "nothing is drafted"
    assumed = f"where {ASSUMED_ACCEPTANCE:.0%} are right, which is assumed, drafts per sequence by sequences"
    return Decision("speculative", config.speculative, "flag", f"{bound}; {cost}; {assumed}: {shown}; {end}")


def expected_depths(prices: DraftPrices) -> Callable[[int], int]:
    """The depth of drafts, as the scheduler chooses it, of so many sequences of the same chance that all decode."""
    cost, offer = StepCost(prices.steps), (ASSUMED_ACCEPTANCE, ASSUMED_ACCEPTANCE, prices.most)
    return lambda rows: max(choose_depths(cost, rows, [offer] * rows, 0, rows * prices.most, prices.barrier, prices.passes))
