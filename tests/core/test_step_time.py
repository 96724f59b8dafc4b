"""The linear model of a step's duration, and the prefill budget that follows from a target."""

import pytest

from ridgeline.config.groups import EngineConfig
from ridgeline.core.params import Limits
from ridgeline.core.step_time import UNBOUNDED, StepSeconds
from ridgeline.engine.compose import prefill_budget


def seconds(rows: int, tokens: int) -> float:
    return 0.008 + 0.0024 * rows + 0.0008 * tokens


def test_fit_recovers_a_linear_model() -> None:
    found = StepSeconds.fit(seconds(1, 0), seconds(16, 0), 16, seconds(1, 63), 64)
    assert (found.fixed, found.row, found.token) == pytest.approx((0.008, 0.0024, 0.0008))


@pytest.mark.parametrize("rows", [1, 4, 16, 31])
def test_a_mixed_step_meets_its_target(rows: int) -> None:
    each = StepSeconds(0.008, 0.0024, 0.0008)
    limits = Limits(token_budget=512, mixed_tokens=each.mixed_tokens(0.1), row_tokens=each.row_tokens)
    taken = seconds(rows, limits.prefill_budget(rows))
    assert 0.098 < taken <= 0.1


def test_prompts_advance_where_decoding_rows_alone_exceed_the_target() -> None:
    slow = StepSeconds(0.19, 0.02, 0.03)
    assert slow.target_seconds(0.1) == pytest.approx(0.92)
    assert slow.mixed_tokens(0.1) == 24


def test_free_prefill_tokens_are_not_bounded() -> None:
    free = StepSeconds.fit(0.01, 0.01, 16, 0.01, 64)
    assert (free.mixed_tokens(0.1), free.row_tokens) == (UNBOUNDED, 1.0)
    assert StepSeconds.fit(0.01, 0.02, 2, 0.01, 1).token == 0.0


def test_the_decision_gives_its_reason() -> None:
    decision = prefill_budget(EngineConfig("m", step_ms=100), StepSeconds(0.008, 0.0024, 0.0008))
    assert (decision.name, decision.value, decision.origin) == ("mixed_tokens", 114, "machine")
    assert "0.80 ms per prompt token" in decision.reason and "counts for 3.0" in decision.reason and "100 ms" in decision.reason
