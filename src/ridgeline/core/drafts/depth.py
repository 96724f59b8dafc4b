"""The number of drafts per row: from the measured time of a step by its tokens, and the estimated acceptance of each draft.

Pure arithmetic. Seconds come from measurements at start-up and from results, which a recording holds, so that a replay decides alike.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

MAX_DRAFTS_PER_STEP: Final = 64
MIN_SPEEDUP: Final = 1.04
"""A step drafts only if that raises the expected ids per second by this factor: estimates err, and changing often costs too."""
MIN_ROW_RATE: Final = 0.98
"""The rate of every row of the step, with drafts of its own or not, stays above this share of its rate without drafts."""
BARRIER_SECONDS: Final = 0.0004
BARRIER_SECONDS_PER_ROW: Final = 0.00001
"""Time that the device waits for the host at a barrier. Steps that run ahead hide it."""
UPDATE_WEIGHT: Final = 1 / 16
"""Weight of a measurement in the estimate for its number of tokens."""
DECAY: Final = 1 / 1024
"""Share by which that estimate returns to the scaled table, per step of another size."""
MAX_RATIO: Final = 4.0
"""A measurement counts as this multiple of its estimate at most: one slow step says little."""
CHANCES: Final = 64
"""Steps of a chance that are told apart where one row decodes."""
STEPS_PER_UPDATE: Final = 16
"""Measurements between two updates of the estimates."""
TRIAL_PRICE: Final = 0.85
"""A size that no step has had yet counts as this share of its estimate while there are trials left: what a busy machine made look dear at
the start would never be tried."""
MAX_TRIALS: Final = 16.0
STEPS_PER_TRIAL: Final = 64
"""Measured steps that allow one more trial."""


class StepCost:
    """Seconds of a step by its number of tokens, for steps of rows that decode or verify drafts: a table, a scale that follows what is
    measured, and a ratio to the scaled table for each number of tokens that occurs.

    table  (tokens, samples, seconds) as measured at start-up. If it is empty, all sizes cost the same until steps are measured: this holds
           where reading the weights dominates.
    """

    __slots__ = ("_estimates", "_ranges", "_ratios", "_scale", "_table", "_tokens", "_trials", "depths", "measured", "wanted")

    def __init__(self, table: Sequence[tuple[int, int, float]]) -> None:
        self._table = sorted({tokens: seconds for tokens, _, seconds in table}.items()) or [(1, 1.0), (2, 1.0)]
        if len(self._table) == 1:
            self._table.append((self._table[0][0] + 1, self._table[0][1]))
        self._tokens = [tokens for tokens, _ in self._table]
        self._scale = 1.0
        self._ratios: dict[int, float] = {}
        self._trials = MAX_TRIALS
        """Steps of new sizes that may be tried; below 0 behind more of them."""
        self.measured: list[tuple[int, float]] = []
        """Measured steps since the last update, (tokens, seconds): who adds one calls `update` where there are `wanted`."""
        self.wanted = STEPS_PER_UPDATE if table else 1
        self._estimates: dict[int, float] = {}
        self._ranges: dict[tuple[int, int], list[float]] = {}
        """Answers of `seconds` and `range` since the last update."""
        self.depths: dict[tuple[int, int, int, int, bool], int] = {}
        """Answers of `choose_depth` since the last update."""

    def seconds(self, tokens: int) -> float:
        """Returns the estimated seconds of a step of `tokens` tokens: those of a larger step at most, since a size that was measured while
        the machine was busy would look dear for long, and never be tried."""
        found = self._estimates.get(tokens)
        if found is None:
            larger = [each for each in self._ratios if each > tokens]
            least = min([self._interpolate(each) * self._ratios.get(each, 1.0) for each in (tokens, *larger)])
            found = self._estimates[tokens] = least * self._scale
        return found

    def range(self, first: int, last: int) -> list[float]:
        """Returns the seconds by which steps of `first` … `last` tokens are compared: estimates, but for sizes that are to be tried."""
        found = self._ranges.get((first, last))
        if found is None:
            tries = self._trials > 0 and first in self._ratios
            found = self._ranges[first, last] = [
                self.seconds(tokens) * (TRIAL_PRICE if tries and tokens not in self._ratios else 1.0) for tokens in range(first, last + 1)
            ]
        return found

    def _interpolate(self, tokens: int) -> float:
        """Seconds from the table: linear between its entries, and with the slope of the last two beyond them."""
        right = min(max(1, bisect_left(self._tokens, tokens)), len(self._table) - 1)
        (few, less), (many, more) = self._table[right - 1], self._table[right]
        return max(less + (more - less) * (tokens - few) / (many - few), 1e-9)

    def update(self) -> None:
        """Moves the estimates towards the measurements: the ratio of each measured number of tokens, and the scale of all. The first
        measurement sets the scale where there was no table."""
        if self.wanted == 1:
            tokens, seconds = self.measured[0]
            self._scale = seconds / self._interpolate(tokens)
            self.wanted = STEPS_PER_UPDATE
            self._forget_answers()
            return
        found: dict[int, list[float]] = {}
        for tokens, seconds in self.measured:
            found.setdefault(tokens, []).append(min(seconds / self.seconds(tokens), MAX_RATIO))
        for tokens, ratio in self._ratios.items():
            others = STEPS_PER_UPDATE - len(found.get(tokens, ()))
            self._ratios[tokens] = 1.0 + (ratio - 1.0) * (1.0 - DECAY) ** others
        new = sum([len(ratios) for tokens, ratios in found.items() if tokens not in self._ratios])
        self._trials = min(MAX_TRIALS, self._trials + STEPS_PER_UPDATE / STEPS_PER_TRIAL - new)
        for tokens, ratios in found.items():
            change = (1.0 + (1.0 - (1.0 - UPDATE_WEIGHT) ** len(ratios)) * (sum(ratios) / len(ratios) - 1.0)) ** 0.5  # in each of two
            self._ratios[tokens] = self._ratios.get(tokens, 1.0) * change
            self._scale *= change
        self.measured.clear()
        self._forget_answers()

    def _forget_answers(self) -> None:
        self._estimates.clear()
        self._ranges.clear()
        self.depths.clear()


Offer = tuple[float, float, int]
"""Drafts that a row offers: the chance that the first is accepted, the factor of each further one, their number."""


Passes = Callable[[int], float]
"""Seconds of a pass of the draft model over so many rows, which drafts an id for each."""


def choose_depths(
    cost: StepCost,
    tokens: int,
    offers: Sequence[Offer],
    other_rows: int,
    max_drafts: int,
    barrier: bool,
    passes: Passes | None = None,
) -> list[int]:
    """Returns the number of drafts per offer that maximises the expected ids per second; all 0 where no number is worth it.

    tokens      of the step without drafts
    other_rows  rows of the step without drafts to offer
    max_drafts  of all rows together
    barrier     steps run ahead without drafts, so that the host's time at a barrier comes on top
    passes      of the model that drafts: pass j is over the rows that have j drafts or more; None: drafts cost no time of the device

    Drafts are added in the order of their chances; where one alone makes a step so long that no row may be without, the first of every row
    before further ones. Leviathan et al. 2023 derive the depth of one row from its acceptance; here rows of a step share its time.
    """
    rows = other_rows + len(offers)
    if rows == 1 and offers and passes is None:
        chance, factor, most = offers[0]
        return [choose_depth(cost, tokens, chance, factor, min(most, max_drafts), barrier)]
    count = min(sum([most for _, _, most in offers]), max_drafts, MAX_DRAFTS_PER_STEP)
    if count < 1:
        return [0] * len(offers)
    seconds = cost.range(tokens, tokens + count)
    plain, wait = seconds[0], BARRIER_SECONDS + BARRIER_SECONDS_PER_ROW * rows if barrier else 0.0
    best, chosen = MIN_SPEEDUP * rows / plain, 0
    longest = plain / MIN_ROW_RATE  # while a row has no drafts: it gets one id from the step, however long that takes
    is_for_all = seconds[1] + wait > longest
    if is_for_all and (other_rows or count < rows):
        return [0] * len(offers)  # most steps of several rows: nothing to sort
    order = _by_chance(offers, is_for_all)
    total, expected = float(rows), dict[int, float]()
    drafting = None if passes is None else _Drafting(passes)
    for drafts in range(1, count + 1):
        chance, row = order[drafts - 1]
        total += chance
        expected[row] = expected.get(row, 1.0) + chance
        duration = seconds[drafts] + wait
        if drafting is not None:
            duration += drafting.add(row)
        if total > best * duration and (duration <= longest or (len(expected) == rows and duration <= longest * min(expected.values()))):
            best, chosen = total / duration, drafts
    depths = [0] * len(offers)
    for _, row in order[:chosen]:
        depths[-row] += 1
    return depths


class _Drafting:
    """Seconds in the draft model, draft by draft."""

    def __init__(self, passes: Passes) -> None:
        self._passes, self._seconds = passes, 0.0
        self._depths: dict[int, int] = {}
        self._rows: list[int] = []

    def add(self, row: int) -> float:
        """One more draft of this row; returns the seconds of all."""
        depth = self._depths[row] = self._depths.get(row, 0) + 1
        if depth > len(self._rows):
            self._rows.append(0)
        before = self._rows[depth - 1]
        self._rows[depth - 1] = before + 1
        self._seconds += self._passes(before + 1) - (self._passes(before) if before else 0.0)
        return self._seconds


def choose_depth(cost: StepCost, tokens: int, chance: float, factor: float, count: int, barrier: bool) -> int:
    """Returns the number of drafts, `count` at most, of a step whose only decoding row offers them, as `choose_depths` does. Chances are
    rounded, so that most steps find an answer given before."""
    key = tokens, count, int(chance * CHANCES), int(factor * CHANCES), barrier
    found = cost.depths.get(key)
    if found is None:
        found = cost.depths[key] = _best_depth(cost, *key)
    return found


def _best_depth(cost: StepCost, tokens: int, most: int, chance_step: int, factor_step: int, barrier: bool) -> int:
    count = min(most, MAX_DRAFTS_PER_STEP)
    seconds = cost.range(tokens, tokens + max(0, count))
    wait = BARRIER_SECONDS + BARRIER_SECONDS_PER_ROW if barrier else 0.0
    best, chosen, total = MIN_SPEEDUP / seconds[0], 0, 1.0
    chance, factor = (chance_step + 0.5) / CHANCES, (factor_step + 0.5) / CHANCES
    for drafts in range(1, count + 1):
        total += chance
        chance *= factor
        duration = seconds[drafts] + wait
        if total > best * duration:
            best, chosen = total / duration, drafts
    return chosen


def _by_chance(offers: Sequence[Offer], is_for_all: bool) -> list[tuple[float, int]]:
    """(chance, −index of the offer) of every draft, best first; of equals that of the first row. is_for_all: the first of each row stands
    in front of the further ones."""
    first: list[tuple[float, int]] = []
    order: list[tuple[float, int]] = []
    for index, (chance, factor, count) in enumerate(offers):
        for number in range(count):
            (order if number or not is_for_all else first).append((chance, -index))
            chance *= factor
    order.sort(reverse=True)
    return first + order
