"""The native sampler against the reference at every ISA level: the same ids, the same order, log-probabilities within 1e-6."""

from collections.abc import Sequence
from dataclasses import replace
from math import exp
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from single import Answer, single

from ridgeline.compute.cpu import ext, sampling
from ridgeline.compute.decoding import sampler
from ridgeline.compute.decoding.edits import History, history_of
from ridgeline.compute.decoding.rng import gumbel
from ridgeline.core.params import RowParams, Sampling

pytestmark = pytest.mark.skipif(not ext.isa_levels(), reason=f"native extension not built: {ext.lost()}")
LEVELS = ext.isa_levels() or ("none",)
LARGE = 262_144

Floats = NDArray[np.float32]


def assert_same(ours: Answer, reference: Answer) -> None:
    assert ours[0] == reference[0]
    for mine, expected in zip(ours[1], reference[1], strict=True):
        assert (mine is None) == (expected is None)
        if mine is not None and expected is not None:
            assert [token for token, _ in mine.top] == [token for token, _ in expected.top]
            found = [mine.logprob, *(value for _, value in mine.top)]
            np.testing.assert_allclose(found, [expected.logprob, *(value for _, value in expected.top)], rtol=0, atol=1e-6)


def compare(logits: Floats, params: Sequence[RowParams], positions: Sequence[int], histories: Sequence[History | None]) -> None:
    """The reference and every level; the logits stay as they were."""
    before = logits.copy()
    reference = single(sampler.sample_rows, logits, params, positions, histories)
    for level in LEVELS:
        made = sampling.Sampler(logits.shape[1], ext.native().Team(1), level=level)
        assert_same(single(made.sample_rows, logits, params, positions, histories), reference)
    np.testing.assert_array_equal(logits, before)


def check(logits: Floats, params: Sequence[RowParams], ids: Sequence[Sequence[int]]) -> None:
    """`compare` for rows that know `ids`: a prompt of `prompt_tokens` and outputs."""
    histories = [history_of(asked, each) for asked, each in zip(params, ids, strict=True)]
    compare(logits, params, [len(each) for each in ids], histories)


def row(seed: int = 7, **fields: Any) -> RowParams:
    return RowParams(seed=seed, choice=0, prompt_tokens=1, sampling=Sampling(**fields))


# ── the whole parameter set ─────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def requests(draw: st.DrawFn, vocab: int) -> tuple[RowParams, list[int]]:
    """Parameters and ids of one row. Shares of mass and of probability are no numbers that sums of weights can meet."""
    few = st.integers(0, vocab - 1)
    asked = Sampling(
        temperature=draw(st.sampled_from((0.0, 0.01, 0.3, 1.0, 1.7, 10.0))),
        top_k=draw(st.sampled_from((0, -1, 1, 3, vocab // 2, vocab - 1, vocab, vocab + 5))),
        top_p=draw(st.sampled_from((1.0, 1.0, 1e-9, 0.313, 0.877, 0.99917))),
        min_p=draw(st.sampled_from((0.0, 0.0, 1e-9, 0.0137, 0.377, 1.0))),
        presence_penalty=draw(st.sampled_from((0.0, 0.0, -2.0, 1.3))),
        frequency_penalty=draw(st.sampled_from((0.0, 0.0, -0.7, 2.0))),
        repetition_penalty=draw(st.sampled_from((1.0, 1.0, 0.3, 1.7))),
        logit_bias=tuple(draw(st.dictionaries(few, st.sampled_from((-100.0, -0.3, 2.5, 100.0)), max_size=3)).items()),
        allowed_ids=draw(st.none() | st.sets(few, min_size=1, max_size=9).map(lambda found: tuple(sorted(found)))),
        bad_words=draw(st.lists(st.lists(few, min_size=1, max_size=3).map(tuple), max_size=4).map(tuple)),
        logprobs=draw(st.sampled_from((None, 0, 1, 5, vocab, vocab + 9))),
    )
    ids = draw(st.lists(few, min_size=1, max_size=12))
    stops = tuple(sorted(draw(st.sets(few, max_size=3))))
    numbers = draw(st.integers(0, 2**63 - 1)), draw(st.integers(0, 127)), draw(st.integers(1, len(ids)))
    return RowParams(*numbers, asked, draw(st.integers(0, 4)), stops), ids


def logits_of(number: int, rows: int, vocab: int) -> Floats:
    """Smooth, full of ties, flat, steep, or with half of them −∞."""
    rng = np.random.default_rng(number)
    logits = rng.normal(scale=rng.choice([0.0, 0.1, 3.0, 30.0, 1e30]), size=(rows, vocab)).astype(np.float32)
    if rng.random() < 0.4:
        logits = np.round(logits)
    if rng.random() < 0.3:
        logits[rng.random(logits.shape) < 0.5] = -np.inf
    return logits


def equals_the_reference(data: st.DataObject) -> None:
    vocab = data.draw(st.sampled_from((1, 7, 256, 300, 2053)))
    chosen = data.draw(st.lists(requests(vocab), min_size=1, max_size=3))
    logits = logits_of(data.draw(st.integers(0, 2**32 - 1)), len(chosen), vocab)
    check(logits, [params for params, _ in chosen], [ids for _, ids in chosen])


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_equals_the_reference(data: st.DataObject) -> None:
    equals_the_reference(data)


@pytest.mark.night
@settings(max_examples=20_000, deadline=None)
@given(data=st.data())
def test_equals_the_reference_on_many(data: st.DataObject) -> None:
    equals_the_reference(data)


# ── a whole vocabulary ──────────────────────────────────────────────────────────────────────────────────────────────


SAMPLINGS = (
    {"temperature": 0.0}, {}, {"temperature": 3.0}, {"temperature": 0.01}, {"temperature": 0.8, "top_k": 40, "top_p": 0.95}, {"top_p": 0.9},
    {"top_p": 0.9, "min_p": 0.01}, {"min_p": 0.05}, {"top_k": 20_000}, {"top_k": LARGE - 1}, {"temperature": 0.0, "logprobs": 20},
    {"logprobs": 5000, "allowed_ids": (262_143,)}, {"allowed_ids": tuple(range(5, LARGE, 777)), "top_p": 0.5},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "logit_bias": ((77, 9.0), (LARGE - 1, 11.0)), "bad_words": ((17,),)},
)  # fmt: skip


@pytest.mark.parametrize("scale", [0.0, 1.0, 6.0])
def test_a_large_vocabulary(scale: float) -> None:
    """Flat, nearly flat and peaked."""
    rng = np.random.default_rng(int(scale))
    params = [row(seed, **fields) for seed, fields in enumerate(SAMPLINGS)]
    logits = (rng.standard_normal((len(params), LARGE)) * scale).astype(np.float32)
    check(logits, params, [rng.integers(0, LARGE, 300).tolist() for _ in params])


def test_the_noise_that_decides_is_found_wherever_it_is() -> None:
    """Few distinct logits and many seeds: a bound that spares a token its noise too early would show."""
    logits = np.repeat(np.array([[0.0, -3.0, -9.0, -14.0]], np.float32), 2000, axis=1)
    for temperature in (1.0, 0.6):
        params = [row(seed, temperature=temperature) for seed in range(300)]
        check(np.broadcast_to(logits, (300, 8000)), params, [[0, 0]] * 300)


def test_equal_noise_goes_to_the_lowest_id() -> None:
    """With this seed the largest word of a whole flat vocabulary belongs to two ids."""
    drawn = gumbel(23_259, 0, 1, np.array([29_870, 213_403]))
    assert drawn[0] == drawn[1]
    logits = np.zeros((1, LARGE), np.float32)
    assert single(sampler.sample_rows, logits, [row(23_259)], [1], [None])[0] == [29_870]
    check(logits, [row(23_259)], [[0]])


@pytest.mark.parametrize("p", [0.25, 0.5, 0.75, 1 - 2**-53])
@pytest.mark.parametrize("count", [4, 1000, 4096])
def test_mass_that_meets_top_p_exactly(p: float, count: int) -> None:
    """Equals weigh 1 each, so that sums are exact: of `count` equals the lowest ids survive, as in the reference."""
    logits = np.full((60, 5000), -np.inf, np.float32)
    logits[:, np.random.default_rng(1).choice(5000, count, replace=False)] = 2.5
    check(logits, [row(seed, top_p=p) for seed in range(60)], [[0, 0]] * 60)


@pytest.mark.parametrize("beside", [-1e-13, 1e-13])
def test_mass_that_nearly_meets_top_p(beside: float) -> None:
    """Two candidates; whether the second survives is decided in the last digits of float64."""
    for second in np.linspace(-3, -0.1, 7, dtype=np.float32):
        logits = np.full((20, 300), -np.inf, np.float32)
        logits[:, 7], logits[:, 260] = 0.0, second
        p = (1 + beside) / (1 + exp(float(second)))
        check(logits, [row(seed, top_p=p) for seed in range(20)], [[0, 0]] * 20)


# ── what is not finite, and corners ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("vocab", [3, 300, 1024])
def test_rows_that_are_not_finite(vocab: int) -> None:
    """NaN, ∞ and nothing but −∞: the reference's answer, and no harm to the rows beside them."""
    logits = np.random.default_rng(vocab).normal(size=(8, vocab)).astype(np.float32)
    logits[0, 1] = logits[1, [0, vocab - 1]] = np.nan
    logits[2, vocab // 2] = np.inf
    logits[3, [1, 2]] = np.inf
    logits[4] = -np.inf
    logits[5] = np.nan
    logits[6, 1], logits[6, 2] = np.nan, np.inf
    edits: tuple[dict[str, Any], ...] = ({"logit_bias": ((1, 3.0),), "bad_words": ((0,), (2,))}, {"allowed_ids": (0, 2)})
    for fields in ({"temperature": 0.0}, {"top_k": 2, "top_p": 0.5}, *edits):
        check(logits, [row(logprobs=3, **fields)] * 8, [[0, 1]] * 8)


def test_bans_that_would_leave_nothing() -> None:
    logits = np.zeros((3, 600), np.float32)
    stops = replace(row(allowed_ids=(300, 301), bad_words=((301,),)), min_tokens=99, banned_until=(300,))
    check(logits, [row(allowed_ids=(5,), bad_words=((5,),)), stops, replace(stops, sampling=Sampling(allowed_ids=(300, 301)))], [[0]] * 3)


def test_extreme_logits_and_numbers() -> None:
    """The whole range of floats, zeros of both signs, subnormals; the greatest seed, choice and position."""
    values = [3.4e38, -3.4e38, 0.0, -0.0, 1e-45, -1e-45, 3.3999e38, 1.0]
    logits = np.array([values, [*values[1:], 0.0], [0.0, -0.0] * 4, [1e-45, 0.0] * 4], np.float32)
    for fields in ({"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.5}, {"temperature": 10.0, "logprobs": 8}, {"temperature": 0.01, "top_k": 7}):
        params = [RowParams(2**64 - 1, 2**32 - 1, 1, Sampling(**fields))] * 4
        compare(logits, params, [2**32 - 1] * 4, [None] * 4)


@pytest.mark.parametrize("size", [1, 15, 256, 1000])
def test_argmax_of_slices(size: int) -> None:
    rng = np.random.default_rng(size)
    for scale, special in ((2, None), (2, np.nan), (2, np.inf), (2, -np.inf), (0, -np.inf)):
        logits = np.round(rng.normal(size=size) * scale).astype(np.float32)
        if special is not None:
            logits[rng.integers(size, size=3)] = special
        for slice_size in (1, 7, 64, 300, size):
            for level in LEVELS:
                assert ext.native().argmax(ext.level_number(level), logits.ctypes.data, size, slice_size) == logits.argmax()


# ── the entry ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_rows_do_not_know_of_each_other() -> None:
    """One thread or three, together or alone, padded rows or not: bit-equal."""
    rng = np.random.default_rng(6)
    params = [row(seed, **(fields | {"logprobs": 4})) for seed, fields in enumerate(SAMPLINGS)]
    wide = rng.normal(size=(len(params), LARGE + 5)).astype(np.float32)
    logits = wide[:, :LARGE]
    histories = [history_of(each, [1, 2, 3]) for each in params]
    together = single(sampling.Sampler(LARGE, ext.native().Team(1)).sample_rows, logits, params, [3] * len(params), histories)
    shared = sampling.Sampler(LARGE, ext.native().Team(3))
    for _ in range(3):
        assert single(shared.sample_rows, logits, params, [3] * len(params), histories) == together
    for index, each in enumerate(params):
        alone = single(shared.sample_rows, logits[index : index + 1], [each], [3], [histories[index]])
        assert alone == ([together[0][index]], [together[1][index]])


def test_what_is_prepared_follows_the_rows() -> None:
    """Parameters of other rows may come to lie where those of rows that have ended did."""
    made = sampling.Sampler(50, ext.native().Team(1))
    logits = np.zeros((1, 50), np.float32)
    for token in range(50):
        assert single(made.sample_rows, logits, [row(allowed_ids=(token,))], [1], [None])[0] == [token]
    assert single(made.sample_rows, logits[:0], [], [], []) == ([], [])


def test_misuse_is_refused() -> None:
    made = sampling.Sampler(50, ext.native().Team(1))
    for logits in (np.zeros((1, 50)), np.zeros((1, 51), np.float32), np.zeros((2, 50), np.float32), np.zeros((1, 100), np.float32)[:, ::2]):
        with pytest.raises(ValueError, match="50 float32 logits"):
            single(made.sample_rows, logits, [row()], [1], [None])
    outside = row(logit_bias=((50, 1.0),)), row(bad_words=((50,),)), row(repetition_penalty=2.0), row(allowed_ids=(50,))
    for params in outside:
        with pytest.raises(IndexError, match="50"):
            single(made.sample_rows, np.zeros((1, 50), np.float32), [params], [2], [history_of(params, [3, 50])])
    with pytest.raises(IndexError, match="vocabulary of 50"):
        single(made.sample_rows, np.zeros((1, 50), np.float32), [RowParams(1, 0, 1, Sampling(), 5, (-1,))], [1], [None])
    with pytest.raises(ValueError, match="nothing"):
        ext.native().argmax(0, np.zeros(3, np.float32).ctypes.data, 3, 0)
