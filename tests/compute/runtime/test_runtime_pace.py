"""What a step takes is measured in processor time, over steps that write to the reserved page alone."""

from typing import Any

import numpy as np
import pytest

from ridgeline.compute.graph import StepInputs
from ridgeline.compute.runtime import pace
from ridgeline.core.plan import KVGroup, KVShape

SHAPE = KVShape((KVGroup("full", (0,)), KVGroup("window", (1,), 8)), 16, 10, b"test")


class Line:
    """Takes 8 ms, 3 ms a row and 1 ms a further token of a row, on a clock of its own; every other step half as long again."""

    def __init__(self) -> None:
        self.now, self.steps = 0.0, 0

    def clock(self) -> float:
        return self.now

    def run(self, inputs: StepInputs, kv: Any, taps: tuple[str, ...] = (), *, best: bool = False) -> dict[str, np.ndarray]:
        rows, tokens = len(inputs.kv_len), len(inputs.ids)
        assert len(inputs.select) == rows
        assert all(not table.any() for table in inputs.tables)
        assert inputs.positions.max() < 120
        self.steps += 1
        self.now += (0.008 + 0.003 * rows + 0.001 * (tokens - rows)) * (1.5 if self.steps < 4 else 1.0)
        return {}

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        raise AssertionError("not asked for")

    def close(self) -> None: ...


@pytest.mark.parametrize(("rows", "tokens"), [(64, 512), (1, 512), (4, 10), (64, 2)])
def test_the_line_is_found(monkeypatch: pytest.MonkeyPatch, rows: int, tokens: int) -> None:
    runner = Line()
    monkeypatch.setattr(pace, "process_time", runner.clock)
    found = pace.measure(runner, None, SHAPE, 2, rows, tokens)
    assert found is not None
    assert 2 * np.array([found.fixed, found.row, found.token]) == pytest.approx([0.008, 0.003, 0.001])


def test_one_token_a_step_leaves_nothing_to_measure() -> None:
    assert pace.measure(Line(), None, SHAPE, 2, 4, 1) is None
