"""The scheduler's own cost. The bars are a night's work; by day the benchmark must run and mean what it says."""

from statistics import median

import pytest

from ridgeline.bench.scheduler import TARGET_MS, measure_decode


def test_every_measured_step_is_a_steady_one() -> None:
    seconds = measure_decode(rows=8, steps=40, depth=2)
    assert len(seconds) == 40
    assert 0 < median(seconds) < 0.01


@pytest.mark.night
@pytest.mark.parametrize("rows", sorted(TARGET_MS))
def test_schedule_and_commit_stay_below_their_bar(rows: int) -> None:
    assert min(median(measure_decode(rows, 256)) for _ in range(3)) * 1e3 <= TARGET_MS[rows]
