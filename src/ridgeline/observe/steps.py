"""The log of steps: a ring of columns, one record a step, filled from the engine's events as they come.

Owns what is remembered of a step and for how long: at most `MAX_STEPS` steps and `MAX_ROWS` rows, some 25 MB, and less until they have
come. Consecutive steps of the same rows share them. Read by whoever explains a request (`observe.ledger`); nothing is computed before.
"""

from array import array
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, get_args

from ridgeline.core.events import Computed, Lack, Scheduled, StepTimed
from ridgeline.core.plan import IntColumn

MAX_STEPS: Final = 1 << 17
MAX_ROWS: Final = 1 << 21
LACKS: Final[tuple[Lack, ...]] = get_args(Lack)
MAX_DEPTH: Final = 8
"""More steps than are ever in flight."""
FLOOR_WEIGHT: Final = 0.02
"""Least weight of a new step in the mean time of steps that decode as many rows: some fifty are remembered, or a machine's busy moment
would be what such steps cost."""
LEAST_SEEN: Final = 32
"""Steps of a number of rows from which on they tell what such steps cost: the first one then counts for a thirtieth."""
PROMPT_TOKENS: Final = 4_096
"""Prompt tokens whose mean time is remembered, at least; `LEAST_PROMPT_TOKENS` tell what one costs."""
LEAST_PROMPT_TOKENS: Final = 256
MAX_FLOOR_ROWS: Final = 4_096


class Step(NamedTuple):
    """One step, in seconds of the engine's clock.

    planned, ended  when its plan was made and its result committed; `ended` is infinite while it is in flight
    seen     when the front end had its results
    run      seconds in which it computed
    prefill  tokens of prompts, of all rows; `decode` rows have one token, or verify drafts
    lack     what the first waiting sequence lacked
    """

    planned: float
    ended: float
    seen: float
    run: float
    prefill: int
    decode: int
    positions: int
    lack: Lack
    waiting: int
    free_blocks: int


def undrafted(counts: IntColumn, event: Computed) -> IntColumn:
    """Tokens of the rows of a step, 1 for those that verify drafts: they sampled, which of prompts the last piece alone does, and have no
    more tokens than were drafted."""
    most = 1 + event.drafted
    return array("i", [1 if ids and count <= most else count for count, ids in zip(counts, event.sampled, strict=True)])


class StepLog:
    """The ring. A step is called by its index, which goes on over restarts of the engine; indices from `first` to `end` − 1 are kept."""

    def __init__(self, max_steps: int = MAX_STEPS, max_rows: int = MAX_ROWS) -> None:
        self._max_steps, self._max_rows = max_steps, max_rows
        self.end = 0
        self._base = 0
        """Index of the engine's step 0."""
        self._planned, self._ended, self._seen = array("d"), array("d"), array("d")
        self._run = array("f")
        self._prefill, self._decode, self._waiting, self._free = array("i"), array("i"), array("i"), array("i")
        self._positions, self._rows_at, self._rows = array("q"), array("q"), array("i")
        self._lack = bytearray()
        self._numbers, self._counts = array("i"), array("i")
        self._rows_end = 0
        """Rows that have been appended since the start; of them the last `max_rows` are kept."""
        self._last: tuple[tuple[int, ...], IntColumn, int] = (), array("i"), 0
        self._floors, self._floor_steps = array("d"), array("q")
        self._prompt_seconds, self._prompt_tokens = 0.0, 0

    @property
    def first(self) -> int:
        """Index of the oldest step that is kept."""
        return max(0, self.end - self._max_steps)

    @property
    def bytes(self) -> int:
        """Bytes of all columns."""
        columns = (
            self._planned, self._ended, self._seen, self._run, self._prefill, self._decode, self._waiting, self._free, self._positions,
            self._rows_at, self._rows, self._numbers, self._counts, self._floors, self._floor_steps,
        )  # fmt: skip
        return sum(len(column) * column.itemsize for column in columns) + len(self._lack)

    # ── from events ─────────────────────────────────────────────────────────────────────────────────────────────

    def planned(self, event: Scheduled) -> None:
        """A step has been planned."""
        if event.step < self.end - self._base:
            self._lose()
        self._base = self.end - event.step
        numbers, counts = event.sequences, event.count
        if self._last[0] != numbers or self._last[1] != counts:
            self._last = numbers, counts, self._rows_end
            self._append_rows(numbers, counts)
        rows, ones = len(counts), counts.count(1)
        prefill = 0 if ones == rows else sum(counts) - ones
        columns: tuple[tuple[Any, float | int], ...] = (
            (self._planned, event.time), (self._ended, float("inf")), (self._seen, float("inf")), (self._run, 0.0),
            (self._prefill, prefill), (self._decode, ones), (self._waiting, event.waiting), (self._free, event.free_blocks),
            (self._positions, event.positions), (self._rows_at, self._last[2]), (self._rows, rows), (self._lack, LACKS.index(event.lack)),
        )  # fmt: skip
        if self.end < self._max_steps:
            for column, value in columns:
                column.append(value)
        else:
            at = self.end % self._max_steps
            for column, value in columns:
                column[at] = value
        self.end += 1

    def committed(self, event: Computed, seen: float) -> None:
        """A step has been committed; the front end had its results at `seen`."""
        at = self._place(event.step)
        if at is None:
            return
        self._ended[at], self._seen[at] = event.time, seen
        if event.drafted:  # rows that verify drafts decode
            rows = self._rows[at]
            drafting = rows - self._decode[at]
            self._prefill[at] = max(0, self._prefill[at] - event.drafted - drafting)
            self._decode[at] = rows if not self._prefill[at] else self._decode[at]

    def timed(self, event: StepTimed) -> None:
        """Notes what a step took, which follows its `Computed`. Steps that decode alone tell what such steps cost."""
        at = self._place(event.step)
        if at is None:
            return
        run = self._run[at] = event.timings.run
        rows, prefill = self._decode[at], self._prefill[at]
        if run > 0 and prefill:
            decoding = self.floor(rows)
            if decoding is not None:
                self._add_prompt(prefill, run - decoding)
        elif run > 0 and rows <= MAX_FLOOR_ROWS:
            floors, steps = self._floors, self._floor_steps
            if len(floors) <= rows:
                floors.extend([0.0] * (rows + 1 - len(floors)))
                steps.extend([0] * (rows + 1 - len(steps)))
            steps[rows] += 1
            floors[rows] += (run - floors[rows]) * max(FLOOR_WEIGHT, 1 / steps[rows])

    def _add_prompt(self, tokens: int, seconds: float) -> None:
        if self._prompt_tokens >= 2 * PROMPT_TOKENS:
            self._prompt_tokens, self._prompt_seconds = self._prompt_tokens // 2, self._prompt_seconds / 2
        self._prompt_tokens, self._prompt_seconds = self._prompt_tokens + tokens, self._prompt_seconds + seconds

    def _lose(self) -> None:
        """The engine has ended, and the next one counts from 0 again: steps that were in flight end when they were planned."""
        for index in range(max(self.first, self.end - MAX_DEPTH), self.end):
            at = index % self._max_steps
            if self._ended[at] == float("inf"):
                self._ended[at] = self._seen[at] = self._planned[at]

    def _place(self, step: int) -> int | None:
        index = self._base + step
        return index % self._max_steps if self.first <= index < self.end else None

    def _append_rows(self, numbers: Sequence[int], counts: IntColumn) -> None:
        """Rows of one step lie in one piece: those that would not fit in front of the ring's end begin at its start."""
        count, limit = len(numbers), self._max_rows
        at = self._rows_end % limit
        if at + count > limit:
            self._rows_end += limit - at
            self._numbers.extend([0] * (limit - len(self._numbers)))
            self._counts.extend([0] * (limit - len(self._counts)))
            at = 0
            self._last = self._last[0], self._last[1], self._rows_end
        self._numbers[at : at + count] = array("i", numbers)
        self._counts[at : at + count] = counts
        self._rows_end += count

    # ── for explanations ────────────────────────────────────────────────────────────────────────────────────────

    def __getitem__(self, index: int) -> Step:
        """The step of an index that is kept."""
        at = index % self._max_steps
        return Step(
            self._planned[at], self._ended[at], self._seen[at], self._run[at], self._prefill[at], self._decode[at], self._positions[at],
            LACKS[self._lack[at]], self._waiting[at], self._free[at],
        )  # fmt: skip

    def rows(self, index: int) -> tuple[IntColumn, IntColumn]:
        """Sequence numbers and tokens of a step's rows; empty where they have been overwritten."""
        at = index % self._max_steps
        begin, count = self._rows_at[at], self._rows[at]
        if begin + self._max_rows < self._rows_end:
            return array("i"), array("i")
        begin %= self._max_rows
        return self._numbers[begin : begin + count], self._counts[begin : begin + count]

    def occupied(self, index: int) -> float:
        """Seconds in which the step alone held up the next one: from its plan, or the end of the step before if that is later, to its end.
        What the host adds to its computing is in them."""
        at, before = index % self._max_steps, (index - 1) % self._max_steps
        return self._ended[at] - (max(self._planned[at], self._ended[before]) if index > self.first else self._planned[at])

    def sizes(self, index: int) -> tuple[int, int, float, int]:
        """(tokens, positions that attention reads, seconds, rows) of a step, as `sim.fleet.durations.ObservedStep` has them."""
        at = index % self._max_steps
        tokens = self._prefill[at] + self._decode[at]
        return tokens, self._positions[at] + tokens, self.occupied(index), self._rows[at]

    def floor(self, rows: int) -> float | None:
        """Seconds of a step that decodes so many rows and nothing else, as such steps took; between two numbers of rows in proportion.
        None where no step of the kind has been seen."""
        if not rows:
            return 0.0
        floors = self._floors
        if rows < len(floors) and floors[rows]:
            return floors[rows]
        below = next((each for each in range(min(rows, len(floors) - 1), 0, -1) if floors[each]), 0)
        above = next((each for each in range(rows, len(floors)) if floors[each]), 0)
        if below and above:
            return floors[below] + (floors[above] - floors[below]) * (rows - below) / (above - below)
        return floors[below or above] if below or above else None

    def floors(self) -> dict[int, float]:
        """Seconds of steps that decoded so many rows and nothing else, by rows, of those that have been seen often: the first ones of a
        size are often of cold code and memory."""
        return {rows: seconds for rows, seconds in enumerate(self._floors) if self._floor_steps[rows] >= LEAST_SEEN}

    def prompt_token(self) -> float:
        """Seconds that a prompt's token took beyond the decoding of its step, in the mean of the last ones; 0 where few have been seen."""
        return max(0.0, self._prompt_seconds) / self._prompt_tokens if self._prompt_tokens >= LEAST_PROMPT_TOKENS else 0.0

    def forget_floors(self) -> None:
        """Another model's steps come from now on."""
        del self._floors[:], self._floor_steps[:]
        self._prompt_seconds, self._prompt_tokens = 0.0, 0

    def index_at(self, time: float) -> int:
        """Index of the first step that ended at or after `time`."""
        low, high = self.first, self.end
        while low < high:
            middle = (low + high) // 2
            if self._ended[middle % self._max_steps] < time:
                low = middle + 1
            else:
                high = middle
        return low
