"""The sampler against itself written plainly: sorted lists, noise for every token, one row at a time. Filters, noise, order of ties."""

from collections.abc import Sequence
from dataclasses import replace
from math import exp, fsum, log

import numpy as np
import pytest
from numpy.typing import NDArray
from single import Answer, single

from ridgeline.compute.decoding.filters import top_k, top_p
from ridgeline.compute.decoding.rng import gumbel
from ridgeline.compute.decoding.sampler import sample_rows, score
from ridgeline.core.params import RowParams, Sampling

GREEDY = RowParams(seed=1, choice=0, prompt_tokens=0, sampling=Sampling(temperature=0.0))
HOT = replace(GREEDY, sampling=Sampling())


def asking(row: RowParams, **fields: object) -> RowParams:
    """The row with other sampling parameters."""
    return replace(row, sampling=replace(row.sampling, **fields))  # type: ignore[arg-type]


def sample(logits: NDArray[np.float32], params: Sequence[RowParams], positions: Sequence[int]) -> Answer:
    """Of rows that look back at nothing."""
    return single(sample_rows, logits, params, positions)


def ranked(logits: NDArray[np.float32]) -> list[int]:
    return sorted(range(len(logits)), key=lambda token: (-logits[token], token))


def plain_top_p(order: list[int], weights: dict[int, float], p: float) -> tuple[list[int], bool]:
    """The shortest beginning of `order` that reaches p, and whether rounding may decide it."""
    total, mass, close = fsum(weights.values()), 0.0, False
    for count, token in enumerate(order):
        mass += weights[token]
        close = close or abs(mass / total - p) < 1e-9
        if mass >= p * total:
            return order[: count + 1], close
    return order, close


def reference(logits: NDArray[np.float32], params: RowParams, position: int) -> int | None:
    """The token that must be sampled; None where rounding may decide it."""
    allowed, asked = logits.copy(), params.sampling
    for token in params.banned_until if position - params.prompt_tokens < params.min_tokens else ():
        allowed[token] = -np.inf
    if allowed.max() == -np.inf:  # a ban that would leave nothing is passed over
        allowed = logits
    order = ranked(allowed)
    if asked.temperature == 0:
        return order[0]
    if asked.top_k > 0:
        order = order[: asked.top_k]
    scaled = {token: (float(allowed[token]) - float(allowed[order[0]])) / asked.temperature for token in order}
    if asked.min_p > 0:
        if any(abs(exp(value) - asked.min_p) < 1e-12 for value in scaled.values()):
            return None
        order = [token for token in order if exp(scaled[token]) >= asked.min_p]
    if asked.top_p < 1:
        order, close = plain_top_p(order, {token: exp(scaled[token]) for token in order}, asked.top_p)
        if close:
            return None
    noise = gumbel(params.seed, params.choice, position, np.arange(len(logits)))
    return min(order, key=lambda token: (-(scaled[token] + noise[token]), token))


def random_logits(rng: np.random.Generator, size: int) -> NDArray[np.float32]:
    logits = rng.normal(scale=rng.choice([0.1, 1.0, 5.0, 30.0]), size=size).astype(np.float32)
    if rng.random() < 0.3:
        logits = np.round(logits)
    if rng.random() < 0.2:
        logits[rng.integers(size, size=size // 2)] = -np.inf
    logits[rng.integers(size)] = logits.max() if np.isfinite(logits.max()) else 0.0
    return logits


def random_params(rng: np.random.Generator, size: int) -> RowParams:
    return RowParams(
        seed=int(rng.integers(2**63)),
        choice=int(rng.integers(4)),
        prompt_tokens=int(rng.integers(2**10)),
        sampling=Sampling(
            temperature=float(rng.choice([0.0, 1e-5, 0.3, 1.0, 2.0, 100.0])),
            top_k=int(rng.choice([-1, 0, 1, 2, size // 2, size, size + 5])),
            top_p=float(rng.choice([0.0123, 0.5137, 0.877, 0.991, 1.0, 1.0])),
            min_p=float(rng.choice([0.0, 0.0, 0.0, 0.0137, 0.3, 0.93])),
        ),
        min_tokens=int(rng.integers(3)),
        banned_until=tuple(rng.choice(size, size=2, replace=False).tolist()),
    )


def test_equals_the_plain_sampler() -> None:
    rng = np.random.default_rng(3)
    undecided = 0
    for _ in range(700):
        size = int(rng.choice([4, 17, 64, 333, 1500], p=[0.3, 0.3, 0.2, 0.15, 0.05]))
        rows = int(rng.integers(1, 4))
        logits = np.stack([random_logits(rng, size) for _ in range(rows)])
        params = [random_params(rng, size) for _ in range(rows)]
        positions = [row.prompt_tokens + int(rng.integers(3)) for row in params]
        tokens, _ = sample(logits, params, positions)
        for token, *arguments in zip(tokens, logits, params, positions, strict=True):
            expected = reference(*arguments)
            undecided += expected is None
            assert expected in (token, None)
    assert undecided < 10


def test_a_large_vocabulary_equals_noising_every_token() -> None:
    """The bound that spares most tokens their noise changes nothing, and the filters hold at 262,144 entries."""
    rng = np.random.default_rng(4)
    for scale, temperature in ((0.0, 1.0), (0.5, 1.0), (3.0, 1.0), (3.0, 5.0), (30.0, 1.0)):
        logits = (rng.standard_normal(262_144) * scale).astype(np.float32)
        for position in range(3):
            noise = gumbel(9, 0, position, np.arange(len(logits)))
            scaled = (logits.astype(np.float64) - float(logits.max())) / temperature
            tokens, _ = sample(logits[None], [replace(asking(HOT, temperature=temperature), seed=9)], [position])
            assert tokens == [int(np.argmax(scaled + noise))]


@pytest.mark.parametrize("size", [1, 7, 1000, 262_144])
def test_filters_keep_the_likeliest_and_of_equals_the_lowest_ids(size: int) -> None:
    rng = np.random.default_rng(5)
    for digits in (0, 1, 6):
        logits = np.round(rng.normal(size=size) * 3, digits).astype(np.float32)
        order = np.lexsort((np.arange(size), -logits))
        for k in {1, min(size, 5), size // 2 + 1, size}:
            assert np.array_equal(top_k(logits, k), np.sort(order[:k]))
        scaled = logits.astype(np.float64)
        mass = np.cumsum(np.exp(scaled[order] - scaled.max()))
        for p in rng.uniform(0.01, 0.999, size=5 if size > 1000 else 50):
            count = int(np.searchsorted(mass, p * mass[-1])) + 1
            if np.abs(mass / mass[-1] - p).min() > 1e-9:
                assert np.array_equal(top_p(scaled, p), np.sort(order[:count]))


def test_rows_do_not_know_of_each_other() -> None:
    """Bit-equal results alone, in a batch of 8 and shuffled; an odd width, so that rows are aligned differently in memory."""
    rng = np.random.default_rng(6)
    size = 5_003
    logits = np.stack([random_logits(rng, size) for _ in range(8)])
    params = [asking(random_params(rng, size), logprobs=int(rng.integers(6))) for _ in range(8)]
    positions = [row.prompt_tokens + index % 4 for index, row in enumerate(params)]
    tokens, logprobs = sample(logits, params, positions)
    for order in (rng.permutation(8), rng.permutation(8), *([row] for row in range(8))):
        picked = [[values[row] for row in order] for values in (params, positions)]
        again = sample(logits[order], *picked)
        assert again == ([tokens[row] for row in order], [logprobs[row] for row in order])


def test_ties_go_to_the_lowest_id() -> None:
    logits = np.array([[0, 3, 1, 3, 3]], dtype=np.float32)
    assert sample(logits, [GREEDY], [0])[0] == [1]
    assert sample(logits, [asking(HOT, top_k=1)], [0])[0] == [1]
    assert set(sampled(logits[0], asking(HOT, top_k=2), 200)) == {1, 3}


def test_stop_ids_wait_for_min_tokens() -> None:
    logits = np.array([[9, 8, 1, 0]], dtype=np.float32)
    params = replace(GREEDY, min_tokens=2, banned_until=(0, 1))
    assert [sample(logits, [params], [outputs])[0] for outputs in (0, 1, 2)] == [[2], [2], [0]]
    hot = replace(asking(params, temperature=5.0), min_tokens=100)
    assert not {0, 1} & {sample(logits, [hot], [position])[0][0] for position in range(100)}
    assert logits[0, 0] == 9


def sampled(logits: NDArray[np.float32], params: RowParams, count: int) -> list[int]:
    return sample(np.broadcast_to(logits, (count, len(logits))), [params] * count, range(count))[0]


@pytest.mark.parametrize(
    ("temperature", "k", "p", "survivors"),
    [(1.0, 0, 1.0, 12), (0.5, 0, 1.0, 12), (2.0, 0, 1.0, 12), (1.0, 5, 1.0, 5), (1.0, 0, 0.8, 5), (1.5, 6, 0.7, 4)],
)
def test_distribution(temperature: float, k: int, p: float, survivors: int) -> None:
    """Chi-square over 3,000 samples at consecutive positions, critical value at 0.001 (Wilson and Hilferty 1931)."""
    logits = np.array([2.0, 1.5, 1.5, 1.0, 0.5, 0.0, 0.0, -0.5, -1.0, -1.0, -1.5, -2.0], dtype=np.float32)[::-1].copy()
    order = ranked(logits)[: k or None]
    weights = {token: exp(float(logits[token]) / temperature) for token in order}
    kept = plain_top_p(order, weights, p)[0] if p < 1 else order
    assert len(kept) == survivors
    total = fsum(weights[token] for token in kept)
    count = 3_000
    counts = np.bincount(sampled(logits, asking(HOT, temperature=temperature, top_k=k, top_p=p), count), minlength=len(logits))
    assert counts[kept].sum() == count
    statistic = sum((counts[token] - (mean := count * weights[token] / total)) ** 2 / mean for token in kept)
    free = survivors - 1
    assert statistic < free * (1 - 2 / (9 * free) + 3.09 * (2 / (9 * free)) ** 0.5) ** 3


def test_logprobs_are_those_of_the_raw_logits() -> None:
    rng = np.random.default_rng(7)
    for size in (3, 50, 1003):
        logits = np.round(rng.normal(scale=3, size=size), 1).astype(np.float32)
        params = replace(asking(HOT, temperature=0.5, top_k=2, logprobs=5), min_tokens=9, banned_until=(0,))
        (token,), (found,) = sample(logits[None], [params], [0])
        total = log(fsum(exp(float(value)) for value in logits))
        best = ranked(logits)[:5]
        assert found is not None
        assert found.logprob == pytest.approx(float(logits[token]) - total, abs=1e-6)
        assert [top[0] for top in found.top] == best
        assert [top[1] for top in found.top] == pytest.approx([float(logits[token]) - total for token in best], abs=1e-6)
        order = ranked(logits)
        assert found.rank == order.index(token) + 1
        asked = [int(token) for token in rng.integers(0, size, 20)]  # any ids, those among equals too
        assert [each.rank for each in score(np.broadcast_to(logits, (20, size)), asked, [3] * 20)] == [order.index(t) + 1 for t in asked]


def test_logprobs_zero_gives_the_sampled_token_alone() -> None:
    found = sample(np.zeros((1, 4), dtype=np.float32), [asking(GREEDY, logprobs=0)], [0])[1][0]
    assert found is not None
    assert (found.logprob, found.top) == (pytest.approx(-log(4)), ())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "asked", [{"temperature": 0.0}, {}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.5}, {"temperature": 1e-300}], ids=str
)
def test_logits_that_are_not_finite_do_no_harm(value: float, asked: dict[str, float]) -> None:
    params = asking(HOT, **asked)
    logits = np.zeros((2, 50), dtype=np.float32)
    logits[1, 7] = value
    full = np.full((2, 50), value, dtype=np.float32)
    clean = sample(np.zeros((1, 50), dtype=np.float32), [params], [0])[0][0]
    for broken in (logits, full):
        tokens, _ = sample(broken, [asking(params, logprobs=3)] * 2, [0, 0])
        assert all(0 <= token < 50 for token in tokens)
        assert broken is full or tokens[0] == clean


def test_no_rows() -> None:
    assert sample(np.empty((0, 10), dtype=np.float32), [], []) == ([], [])
