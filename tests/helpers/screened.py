"""Plans of one screened product, beside the same matrix as it is packed without; weights and activations for them."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from calls import linear_codes, quantise
from single import single

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.packing import SCREENED, pack
from ridgeline.compute.cpu.sampling import Sampler
from ridgeline.compute.decoding.edits import needed
from ridgeline.core.params import RowParams, Sampling

LEVELS = ext.isa_levels() or ("none",)
NONE = np.zeros(1, np.int32)
BLOCK = 256


Masks = list[np.ndarray | None]
"""Of each row words of a bit for each output, to the end of a block of the sampler; None: all."""


def addresses(masks: Masks | None) -> np.ndarray:
    return np.array([0 if mask is None else mask.ctypes.data for mask in masks or []], np.int64)


@dataclass
class Head:
    """A plan of one screened product, and the same matrix as it is packed without."""

    rows: np.ndarray
    pool: ThreadPoolExecutor
    most: int
    level: str = LEVELS[-1]
    threads: int = 2
    group: int = 32
    arrays: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        n, k = len(self.rows), self.rows.shape[1] // 34 * 32
        self.plain = pack("Q8_0", self.rows, (n, k), self.pool)
        self.packed = pack("Q8_0", self.rows, (n, k), self.pool, form=SCREENED)
        self.x = np.zeros((self.most, k), np.float32)
        widths = ((k, np.int8), (k // 32, np.float32), (k // 16, np.int32), (n, np.float32))
        self.arrays = [np.zeros((self.most, width), dtype) for width, dtype in widths]
        self.out = self.arrays[3]
        codes, scales, sums, out = (int(array.ctypes.data) for array in self.arrays)
        self.team = ext.native().Team(self.threads)
        self.sampler = Sampler(n, self.team, level=self.level)
        self.plan = ext.native().Plan(ext.level_number(self.level), self.team)
        made = {"out_codes": codes, "out_scales": scales, "out_sums": sums}
        self.add("rows", "quantise", {"x": self.x.ctypes.data, **made, "width": k, "group": self.group, "stepped": 0})
        given = {"codes": codes, "scales": scales, "sums": sums}
        self.add("products", "linear_codes", {**given, "weight": self.packed.matrix, "out": out})
        self.plan.screen()

    def add(self, kind: str, op: str, fields: dict[str, Any]) -> None:
        """A phase of one op over the selected rows."""
        self.plan.begin(kind, True, 1)
        self.plan.add(op, ext.record(ext.params(op), fields))

    def run(self, x: np.ndarray, *wanted: int) -> None:
        """A step of x fp32 [M, K]; wanted: addresses of best, keep, masks, maxima."""
        self.x[: len(x)] = x
        self.plan.run((0, 0, len(x), 1), (*(NONE,) * 6, None, None), (NONE,), (NONE.astype(np.int64),), 0, self.plan.phases, 0, *wanted)

    def best(self, x: np.ndarray, masks: Masks | None = None) -> list[int]:
        """Ids of the largest outputs for x fp32 [M, K]."""
        found, allowed = np.full(len(x), -7, np.int32), addresses(masks)
        self.run(x, int(found.ctypes.data), 0, int(allowed.ctypes.data) if masks else 0)
        return found.tolist()

    def kept(self, x: np.ndarray, keep: np.ndarray, masks: Masks | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Outputs [M, N], NaN where nothing was written, and maxima of their blocks."""
        self.out[:] = np.nan
        maxima, allowed = np.full((len(x), -(-self.out.shape[1] // BLOCK)), np.nan, np.float32), addresses(masks)
        self.run(x, 0, int(keep.ctypes.data), int(allowed.ctypes.data) if masks else 0, int(maxima.ctypes.data))
        return self.out[: len(x)], maxima

    def outputs(self, x: np.ndarray) -> np.ndarray:
        return linear_codes(quantise(x, group=self.group), self.plain, level=self.level)

    def wanted(self, x: np.ndarray) -> list[int]:
        return self.outputs(x).argmax(axis=1).tolist()

    def check(self, x: np.ndarray) -> float:
        """Compares, and says which share of outputs the step computed."""
        before, found, after = self.plan.screened, self.best(x), self.plan.screened
        assert found == self.wanted(x)
        return (after[3] - before[3]) / max(1, after[2] - before[2])

    def check_kept(self, x: np.ndarray, params: Sequence[RowParams]) -> float:
        """Compares what `keep` leaves with whole rows: the largest, and what is sampled. The share of outputs the step computed."""
        keep = np.array([needed(row, 1) for row in params], np.int32)
        whole, before = self.outputs(x), self.plan.screened
        sampled = single(self.sampler.sample_rows, whole, params, [9] * len(x), [None] * len(x))
        outputs, maxima = self.kept(x, keep)
        after = self.plan.screened
        assert single(self.sampler.sample_rows, outputs, params, [9] * len(x), [None] * len(x), maxima) == sampled
        screened = after[0] > before[0]
        for row, expected, blocks, count in zip(outputs, whole, maxima, keep, strict=True):
            left = np.repeat(blocks, BLOCK)[: len(row)] == -np.inf if screened else np.zeros(len(row), bool)
            row, least = np.where(left, -np.inf, row), np.sort(expected)[-count] if count <= len(row) else -np.inf
            same = (row.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(row) & np.isnan(expected))
            assert same[~(expected < least)].all() and (same | (row == -np.inf)).all()
            starts = range(0, len(row), BLOCK)
            np.testing.assert_array_equal(blocks, [row[at : at + BLOCK].max() for at in starts])
        return (after[3] - before[3]) / max(1, after[2] - before[2])


def requests(rng: np.random.Generator, count: int, *, whole: bool = False) -> list[RowParams]:
    """Rows that depend on their largest logits, greedy ones among them; `whole`: and on all of them."""
    kinds = [
        Sampling(
            temperature=float(rng.choice([0.01, 0.7, 1.0, 5.0])),
            top_k=int(rng.choice([1, 2, 20, 64, 128])),
            top_p=float(rng.choice([1.0, 0.95, 0.3])),
            min_p=float(rng.choice([0.0, 0.02, 0.4])),
        )
        for _ in range(count)
    ]
    kinds[:: 1 + count // 3] = [Sampling(temperature=0.0)] * len(kinds[:: 1 + count // 3])
    if whole:
        kinds[-1] = Sampling(temperature=1.0, top_p=0.9)
    return [RowParams(seed=int(rng.integers(1 << 62)), choice=0, prompt_tokens=1, sampling=each) for each in kinds]


def rows_of(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """codes [N, K] and scales [N, K/32] as a file has them."""
    n, groups = scales.shape
    blocks = np.empty((n, groups, 34), np.uint8)
    blocks[..., :2] = scales.astype(np.float16)[..., None].view(np.uint8)
    blocks[..., 2:] = codes.astype(np.int8).reshape(n, groups, 32).view(np.uint8)
    return blocks.reshape(n, -1)


def random_rows(rng: np.random.Generator, n: int, k: int) -> np.ndarray:
    """As quantised weights are: codes near 0 oftener than far away, scales of several magnitudes."""
    codes = np.clip(rng.standard_normal((n, k)) * 45, -127, 127).round()
    return rows_of(codes, 0.001 * np.exp(rng.standard_normal((n, k // 32)) / 2))


def near(rows: np.ndarray, row: int, rng: np.random.Generator) -> np.ndarray:
    """Activations for which `row` stands out."""
    blocks = rows[row].reshape(-1, 34)
    weights = blocks[:, :2].copy().view(np.float16).astype(np.float32) * blocks[:, 2:].view(np.int8)
    return (40 * weights.reshape(-1) + 0.1 * rng.standard_normal(weights.size)).astype(np.float32)
