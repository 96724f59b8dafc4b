"""What steps take is measured over steps that write to the reserved block alone, as long as that takes little."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ridgeline.compute.graph import StepInputs
from ridgeline.compute.runtime import measure, queue
from ridgeline.compute.runtime.measure import PRICED_TOKENS, price, step_seconds, time_steps
from ridgeline.compute.runtime.queue import QueueBackend
from ridgeline.core.plan import KVGroup, KVShape

SHAPE = KVShape((KVGroup("full", (0,)), KVGroup("window", (1,), 8)), 16, 10, b"test")


class Line:
    """Takes 8 ms, 3 ms per sampled position and 1 ms per other token, on a clock of its own; its first steps half as long again. Behind an
    id it samples that and 2. `seen`: ids and positions of steps."""

    def __init__(self, scale: float = 1.0) -> None:
        self.now, self.steps, self.scale = 0.0, 0, scale
        self.seen: list[tuple[list[int], list[int]]] = []

    def clock(self) -> float:
        return self.now

    def run(self, inputs: StepInputs, kv: Any, taps: tuple[str, ...] = (), *, keep: Any = None) -> dict[str, np.ndarray]:
        sampled, tokens = len(inputs.select), len(inputs.ids)
        assert all(not table.any() for table in inputs.tables) and all(slots.max() < 16 for slots in inputs.slots)
        assert inputs.positions.max() < 120
        assert keep.tolist() == [1] * sampled, "priced as greedy rows are: a screened head need not find every logit"
        self.steps += 1
        self.now += self.scale * (0.008 + 0.003 * sampled + 0.001 * (tokens - sampled)) * (1.5 if self.steps < 4 else 1.0)
        self.seen.append((inputs.ids.tolist(), inputs.positions[0].tolist()))
        return {"best": (inputs.ids[inputs.select] + 2) % 8}

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        raise AssertionError("not asked for")

    def close(self) -> None: ...


def nobody(*given: object) -> Any:
    raise AssertionError("nothing is sampled or scored")


def backend(line: Line, monkeypatch: pytest.MonkeyPatch) -> QueueBackend:
    """Warm, as behind a start."""
    for module, name in ((queue, "process_time"), (queue, "perf_counter"), (measure, "perf_counter")):
        monkeypatch.setattr(module, name, line.clock)
    found = QueueBackend(line, None, SHAPE, nobody, nobody, rows=4, vocab=8, threads=2)
    found.seconds([1], [1])
    line.steps = 0
    return found


@pytest.mark.parametrize(("rows", "tokens"), [(16, 64), (4, 10), (16, 2)])
def test_the_line_is_found(monkeypatch: pytest.MonkeyPatch, rows: int, tokens: int) -> None:
    found = step_seconds(time_steps(backend(Line(0.01), monkeypatch).seconds, rows, tokens))
    assert found is not None
    assert 200 * np.array([found.fixed, found.row, found.token]) == pytest.approx([0.008, 0.003, 0.001])


def test_where_there_is_one_row_it_costs_what_a_step_does(monkeypatch: pytest.MonkeyPatch) -> None:
    found = step_seconds(time_steps(backend(Line(0.01), monkeypatch).seconds, 1, 64))
    assert found is not None and found.row == 0 and 200 * found.fixed == pytest.approx(0.011)


def test_one_token_a_step_leaves_nothing_to_measure() -> None:
    assert step_seconds(time_steps(nobody, 4, 1)) is None


def test_disturbances_are_left_out() -> None:
    asked: list[tuple[int, int]] = []

    def seconds(counts: Sequence[int], samples: Sequence[int]) -> float:
        asked.append((sum(counts), len(counts)))
        return 0.003 + len(counts) * 1e-5 + (sum(counts) - len(counts)) * 2e-5 + (len(asked) % 2) * 1e-3

    law = step_seconds(time_steps(seconds, 64, 2048))
    assert law is not None and set(asked) == {(1, 1), (64, 64), (2048, 1)}
    assert (law.fixed, law.row, law.token) == pytest.approx((0.003, 1e-5, 2e-5))


def test_what_is_timed_goes_on_with_a_text_of_the_model_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line()
    timed = backend(line, monkeypatch)
    assert [ids for ids, _ in line.seen] == [[1], [3], [5], [7], [1], [3], [5], [7]], "seven that begin it, and the one that warms up"
    timed.seconds([1] * 9, [1] * 9)
    assert line.seen[-1] == ([7, 5, 3, 1, 7, 5, 3, 1, 7], [7, 6, 5, 4, 3, 2, 1, 0, 7])
    timed.seconds([10], [1])
    assert line.seen[-1] == ([1, 3, 5, 7, 1, 3, 5, 7, 1, 3], [*range(10)])
    timed.seconds([1], [1])
    assert line.seen[-2:] == [([1, 3, 5, 7, 1, 3, 5, 7], [*range(8)]), ([7], [7])], "the long row has overwritten block 0"


def test_a_slow_model_s_text_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line(100.0)
    backend(line, monkeypatch)
    assert len(line.seen) == 2


def test_drafts_have_a_price(monkeypatch: pytest.MonkeyPatch) -> None:
    found = price(backend(Line(0.01), monkeypatch).seconds, 512)
    assert found == tuple((count, count, pytest.approx(0.005 * (0.008 + 0.003 * count))) for count in sorted(PRICED_TOKENS))
    assert [count for count, _, _ in price(backend(Line(0.01), monkeypatch).seconds, 5)] == [1, 2, 3, 4]


def test_a_price_is_no_longer_sought_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line(100.0)
    assert [count for count, _, _ in price(backend(line, monkeypatch).seconds, 512)] == [1, 4] and line.steps == 2


def test_a_step_that_was_held_up_is_no_dearer_than_a_larger_one() -> None:
    held = {2: 2.55, 8: 3.25}
    found = price(lambda counts, samples: held.get(counts[0], 1.0 + counts[0] / 8), 16)
    assert {tokens: seconds for tokens, _, seconds in found} == {1: 1.125, 2: 1.375, 3: 1.375, 4: 1.5, 6: 1.75, 8: 2.5, 12: 2.5, 16: 3.0}
