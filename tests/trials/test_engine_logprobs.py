"""X4: log-softmax is right at any gap between logits, at every ISA level; what is not a number stays so."""

from typing import Any

import numpy as np
import pytest
from single import single

from ridgeline.compute.cpu import ext, sampling
from ridgeline.compute.decoding import sampler
from ridgeline.core.params import RowParams, Sampling

pytestmark = pytest.mark.skipif(not ext.isa_levels(), reason=f"native extension not built: {ext.lost()}")
LEVELS = ext.isa_levels() or ("none",)
VOCAB = 1000
HUGE = float(np.finfo(np.float32).max)

ROWS: dict[str, dict[int, float]] = {
    "a gap of 2.3e9": {7: 2.3e9, 400: 2.3e9 - 512},
    "two equal at 2.3e9": {7: 2.3e9, 400: 2.3e9},
    "all far below zero": dict.fromkeys(range(VOCAB), -2.3e9) | {3: -2.3e9 + 256},
    "the ends of float32": {7: HUGE, 8: -HUGE},
    "two equal at the end": {7: HUGE, 8: HUGE, 9: -HUGE},
    "beside -infinity": dict.fromkeys(range(VOCAB), -np.inf) | {5: 1.0, 6: 0.0},
    "beside -infinity, far up": dict.fromkeys(range(VOCAB), -np.inf) | {5: 2.3e9, 6: 2.3e9 - 256},
    "a gap of 87.5": {7: 87.5},
    "ordinary": {7: 3.0, 8: 2.0},
}


def expected(logits: Any) -> Any:
    """Log-softmax in longdouble."""
    with np.errstate(over="ignore", under="ignore"):
        apart = logits.astype(np.longdouble) - np.longdouble(logits.max())
        return (apart - np.log(np.exp(apart).sum())).astype(np.float64)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("level", [*LEVELS, "reference"])
def test_x4_log_softmax_is_right_at_any_gap(name: str, level: str) -> None:
    logits = np.zeros((1, VOCAB), np.float32)
    for token, value in ROWS[name].items():
        logits[0, token] = value
    row = RowParams(seed=7, choice=0, prompt_tokens=1, sampling=Sampling(temperature=0.0, logprobs=20))
    if level == "reference":
        sample_rows, score = sampler.sample_rows, sampler.score
    else:
        made = sampling.Sampler(VOCAB, ext.native().Team(1), level=level)
        sample_rows, score = made.sample_rows, made.score
    (token,), (found,) = single(sample_rows, logits, [row], [3])
    right = expected(logits[0])
    assert found is not None and token == int(logits[0].argmax())
    np.testing.assert_allclose(found.logprob, right[token], rtol=1e-6, atol=1e-6)
    best = np.lexsort((np.arange(VOCAB), -right))[:20]
    if not np.isinf(right[best]).any():  # which of equals at -infinity are named is not said
        assert [each for each, _ in found.top] == best.tolist()
    np.testing.assert_allclose([value for _, value in found.top], right[best], rtol=1e-6, atol=1e-6)
    (scored,) = score(logits, [8], [0])
    np.testing.assert_allclose(scored.logprob, right[8], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("level", LEVELS)
def test_x4_what_is_not_finite_stays_so(value: float, level: str) -> None:
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, 7] = value
    made = sampling.Sampler(VOCAB, ext.native().Team(1), level=level)
    (found,) = made.score(logits, [8], [2])
    assert np.isnan(sampler.score(logits, [8], [2])[0].top[0][1]) and np.isnan(found.top[0][1])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("asked", [{"top_p": 0.9}, {"top_p": 0.9, "top_k": 50}, {"min_p": 0.1}, {}])
def test_x4_filters_are_right_at_any_gap(asked: dict[str, Any], level: str) -> None:
    """The mass of what is far below the largest is none: a row with one large logit always gives it, whatever its seed."""
    logits = np.zeros((8, VOCAB), np.float32)
    logits[:, 400] = 2.3e9
    rows = [RowParams(seed=seed, choice=0, prompt_tokens=1, sampling=Sampling(temperature=1.0, **asked)) for seed in range(8)]
    made = sampling.Sampler(VOCAB, ext.native().Team(1), level=level)
    assert single(made.sample_rows, logits, rows, [3] * 8)[0] == [400] * 8 == single(sampler.sample_rows, logits, rows, [3] * 8)[0]
