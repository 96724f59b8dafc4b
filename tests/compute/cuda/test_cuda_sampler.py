"""The device's sampler gives the ids of `compute/decoding`: random parameters, equal logits, the ends of every range."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from single import single
from tensors import DEVICE, on_device, poisoned, within

from ridgeline.compute.cuda.sampler import columns_of, is_sampled_on_device
from ridgeline.compute.cuda.step import SAMPLING_COLUMNS
from ridgeline.compute.cuda.triton import sampling
from ridgeline.compute.decoding.sampler import sample_rows
from ridgeline.core.params import RowParams, Sampling
from ridgeline.core.thinking import ReasoningMarks, Thinking


def ours(logits: torch.Tensor, rows: Sequence[RowParams], positions: Sequence[int]) -> list[int]:
    kinds = {"f64": torch.float64, "i32": torch.int32, "i64": torch.int64}
    numbers = zip(*(columns_of(row) for row in rows), strict=True)
    columns = [
        torch.tensor(column, dtype=kinds[kind], device=DEVICE) for kind, column in zip(SAMPLING_COLUMNS.values(), numbers, strict=True)
    ]
    ids = poisoned(len(rows), dtype=torch.int32)
    scratch = poisoned(sampling.scratch_bytes(len(rows)), dtype=torch.uint8)
    sampling.sample(logits, *columns, torch.tensor(positions, dtype=torch.int32, device=DEVICE), ids, scratch)()
    return ids.tolist()


def agree(logits: np.ndarray, rows: Sequence[RowParams], positions: Sequence[int], dtype: torch.dtype = torch.float32) -> None:
    placed = within(on_device(logits, dtype))
    expected, _ = single(sample_rows, placed.float().cpu().numpy(), rows, positions, [None] * len(rows))
    assert ours(placed, rows, positions) == expected


def random_row(random: np.random.Generator, vocab: int) -> RowParams:
    asked = Sampling(
        temperature=float(random.choice([0.0, 0.05, 0.7, 1.0, 1.3, 5.0])),
        top_k=int(random.choice([0, -1, 1, 2, 40, vocab - 1, vocab, 2 * vocab])),
        top_p=float(random.choice([1.0, 0.999, 0.95, 0.5, 1e-6])),
        min_p=float(random.choice([0.0, 1e-9, 0.05, 0.5, 1.0])),
    )
    return RowParams(seed=int(random.integers(0, 2**63)), choice=int(random.integers(0, 2**31)), prompt_tokens=1, sampling=asked)


@pytest.mark.parametrize("count", [8, pytest.param(200, marks=[pytest.mark.night, pytest.mark.timeout(900)])])
@pytest.mark.parametrize("vocab", [32, 1000, 4099])
def test_random_parameters(vocab: int, count: int) -> None:
    random = np.random.default_rng(vocab)
    rows = [random_row(random, vocab) for _ in range(count)]
    logits = (random.standard_normal((count, vocab)) * random.choice([0.1, 3.0, 30.0], (count, 1))).astype(np.float32)
    agree(logits, rows, random.integers(0, 2**31, count).tolist())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_many_equals(dtype: torch.dtype) -> None:
    random = np.random.default_rng(1)
    rows = [random_row(random, 600) for _ in range(6)]
    agree((random.standard_normal((6, 600)) * 2).astype(np.float32), rows, list(range(6)), dtype)


@pytest.mark.parametrize("vocab", [32_000, 131_072, 262_144])
def test_large_vocabularies(vocab: int) -> None:
    random = np.random.default_rng(vocab)
    settings = [Sampling(top_k=50, top_p=0.9, temperature=0.7), Sampling(), Sampling(top_p=0.95, min_p=0.01), Sampling(temperature=0.0)]
    rows = [RowParams(seed=7 + number, choice=0, prompt_tokens=1, sampling=asked) for number, asked in enumerate(settings)]
    agree((random.standard_normal((4, vocab)) * 4).astype(np.float32), rows, [5, 6, 7, 8])


def test_flat_logits_need_every_candidate() -> None:
    """More candidates of top-p than are listed."""
    random = np.random.default_rng(3)
    rows = [
        RowParams(seed=seed, choice=0, prompt_tokens=1, sampling=Sampling(top_p=p, top_k=k))
        for seed, p, k in [(1, 0.9, 0), (2, 0.5, 15_000)]
    ]
    agree((random.standard_normal((2, 20_000)) * 0.1).astype(np.float32), rows, [0, 1])


def test_a_broad_top_is_listed_again() -> None:
    """More candidates than are listed before the mass is known, fewer by the mass."""
    random = np.random.default_rng(6)
    logits = np.full((3, 20_000), -8, np.float32)
    logits[:, ::5] = random.uniform(-0.5, 0, (3, 4_000)).astype(np.float32)
    logits[2, ::5] = 0.0
    agree(logits, [RowParams(seed=seed, choice=0, prompt_tokens=1, sampling=Sampling(top_p=0.9)) for seed in range(3)], [0, 1, 2])


@pytest.mark.parametrize("asked", [Sampling(top_k=5), Sampling(top_p=0.3), Sampling(top_k=20, top_p=0.5), Sampling(min_p=1.0), Sampling()])
def test_equal_logits_keep_the_lowest_ids(asked: Sampling) -> None:
    rows = [RowParams(seed=seed, choice=1, prompt_tokens=1, sampling=asked) for seed in range(6)]
    logits = np.zeros((6, 50), np.float32)
    logits[3:, ::2] = -0.0
    logits[5:, ::3] = 1.0
    agree(logits, rows, list(range(6)))


def test_logits_at_the_ends_of_the_range() -> None:
    logits = np.random.default_rng(4).standard_normal((8, 64)).astype(np.float32)
    logits[0], logits[1, 1:], logits[2, 5] = -np.inf, -np.inf, np.inf
    logits[3, 9] = np.nan
    logits[4, ::2], logits[5], logits[6, 7] = -np.inf, 3e38, 3e38
    logits[7, :32] = -3e38
    asked = Sampling(temperature=1e-3, top_k=40, top_p=0.9)
    agree(logits, [RowParams(seed=3, choice=0, prompt_tokens=1, sampling=asked)] * 8, [2**31 - 1] * 8)


def test_rows_do_not_know_each_other() -> None:
    random = np.random.default_rng(5)
    rows = [random_row(random, 300) for _ in range(4)]
    logits = on_device(random.standard_normal((4, 300)).astype(np.float32) * 3)
    together = ours(logits, rows, list(range(4)))
    assert together == [ours(logits[i : i + 1], rows[i : i + 1], [i])[0] for i in range(4)]


def test_what_the_host_samples() -> None:
    plain = RowParams(seed=1, choice=0, prompt_tokens=1, sampling=Sampling(temperature=0.5, top_k=3, top_p=0.5, min_p=0.1))
    assert is_sampled_on_device(plain)
    for asked in (
        Sampling(logprobs=0),
        Sampling(presence_penalty=0.1),
        Sampling(repetition_penalty=1.1),
        Sampling(logit_bias=((1, 2.0),)),
        Sampling(allowed_ids=(1, 2)),
        Sampling(bad_words=((1,),)),
    ):
        assert not is_sampled_on_device(RowParams(seed=1, choice=0, prompt_tokens=1, sampling=asked)), asked
    thinking = Sampling(thinking=Thinking(ReasoningMarks(1, ((0, 5, 1),)), True, 9, (5,), 1))
    assert not is_sampled_on_device(RowParams(seed=1, choice=0, prompt_tokens=1, sampling=thinking)), "before the budget is spent too"
    assert not is_sampled_on_device(RowParams(seed=1, choice=0, prompt_tokens=1, min_tokens=2, banned_until=(3,)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_finite_rows(dtype: torch.dtype) -> None:
    x = torch.ones(6, 40, dtype=dtype, device=DEVICE)
    x[1, 39], x[4, 0] = math.nan, -math.inf
    flags = poisoned(5, dtype=torch.int32)
    sampling.finite(within(x), torch.tensor([0, 0, 1, 2, 3, 3], dtype=torch.int32, device=DEVICE), flags)()
    assert flags.tolist() == [0, 1, 1, 0, 1]


def test_equal_logits_at_the_end_of_the_mass() -> None:
    """Two of four equal ids have half the mass: a third would often be chosen."""
    rows = [RowParams(seed=seed, choice=0, prompt_tokens=1, sampling=Sampling(top_p=0.5)) for seed in range(16)]
    agree(np.zeros((16, 4), np.float32), rows, list(range(16)))
