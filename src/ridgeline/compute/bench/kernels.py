"""`ridgeline bench kernels`: products with packed weights, as a step runs them, and their share of what the machine allows.

Owns the measurement. Weights come from memory: copies of a matrix are used in turn, more of them than all caches hold. The floor of a
product is the slower of reading its packed bytes once and of its multiply-adds. Both ceilings are measured before every timing, some
milliseconds earlier, and the share is the median over all timings: what disturbs the product disturbs its ceiling too. On one thread the
time is CPU time; on several it is wall time.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from statistics import median
from time import perf_counter, thread_time
from typing import Any, Final

import numpy as np

from ridgeline.compute.bench.roofline import Roofline, roofline
from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.packing import (
    FORMATS,
    INTEGER_BITS,
    PackedWeight,
    allocate,
    pack,
    pack_grouped,
    packable,
    packing_pool,
)
from ridgeline.compute.ops.quantised import quantise
from ridgeline.compute.quant.grouped import GroupedWeight
from ridgeline.compute.quant.scaled import ScaledWeight
from ridgeline.errors import ConfigError
from ridgeline.facts.files.formats import FORMATS as STORED
from ridgeline.facts.hardware.ceilings import RooflineLoops, read_caches
from ridgeline.facts.hardware.noise import Noise, NoiseMonitor

MAX_TOKENS, MAX_SIDE, MAX_CELLS = 8_192, 1 << 20, 10_000
TIMINGS: Final = 15
MIN_TIMINGS: Final = 5
CASE_SECONDS: Final = 0.5
"""Seconds for the timings of a product: a long product gets fewer."""
TIMING_SECONDS: Final = 0.004
"""Least seconds of one timing: long compared with a call, and no longer than its ceilings take."""
CEILING_ROUNDS: Final = 6
"""Rounds of the ceilings in the report; shares do not depend on them."""
MIN_BYTES: Final = 64 << 20
MAX_COPIES: Final = 1_024
"""More copies of a small matrix would cost more to make than to read."""
NO_ROWS: Final = (*(np.zeros(0, np.int32),) * 6, None, None)
"""Row arrays of a step that only multiplies."""
FINITE_BYTES: Final = 0x3C
"""Random bytes below this are halves below 1, whatever the format takes for its scales."""

CODES: Final = {
    "Q4_0": "int4", "Q4_1": "int4", "Q4_K": "int4", "Q2_K": "int4", "Q3_K": "int4",
    "Q5_0": "int5", "Q5_1": "int5", "Q5_K": "int5", "Q6_K": "int6",
    "TQ1_0": "int4", "TQ2_0": "int4", "IQ1_S": "int5", "IQ1_M": "int5", "IQ3_S": "int5", "MXFP4": "int5", "IQ3_XXS": "int6",
    "IQ2_XXS": "int8", "IQ2_XS": "int8", "IQ2_S": "int8",
    "Q8_0": "int8", "IQ4_NL": "int8", "IQ4_XS": "int8",
    "INT4": "int4", "INT8": "int8",
}  # fmt: skip
"""Type that a format's codes are multiplied as; formats that are absent are floats."""

GROUP: Final = 128
"""Inputs that share a scale, as GPTQ, AWQ and fp8 checkpoints mostly have them; of INT8 all inputs of a row do."""


@dataclass(frozen=True, slots=True)
class Case:
    """One product: [tokens, k] · [n, k]ᵀ."""

    kind: str
    tokens: int
    n: int
    k: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of one product.

    best, median_seconds                 seconds of the product
    memory_seconds, arithmetic_seconds   floors by each ceiling, at its best during the timings
    share                                of the bottleneck's ceiling; 1 is perfect; the median of all timings
    """

    case: Case
    packed_bytes: int
    best: float
    median_seconds: float
    memory_seconds: float
    arithmetic_seconds: float
    share: float

    @property
    def bytes_per_second(self) -> float:
        """Packed bytes per second: weights are read once per product."""
        return self.packed_bytes / self.best

    @property
    def ops_per_second(self) -> float:
        """Operations per second; a multiply-add counts two."""
        return 2 * self.case.tokens * self.case.n * self.case.k / self.best

    @property
    def bottleneck(self) -> str:
        """The resource whose floor is highest: memory or arithmetic."""
        return "memory" if self.memory_seconds > self.arithmetic_seconds else "arithmetic"

    def as_dict(self) -> dict[str, object]:
        """Fields for JSON: bytes, operations, seconds."""
        case = self.case
        return {
            "format": case.kind, "m": case.tokens, "n": case.n, "k": case.k, "packed_bytes": self.packed_bytes,
            "seconds": self.best, "median_seconds": self.median_seconds, "bytes_per_second": self.bytes_per_second,
            "ops_per_second": self.ops_per_second, "share_of_ceiling": self.share, "bottleneck": self.bottleneck,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one product; bytes and operations per second of its ceilings just before."""

    seconds: float
    memory: float
    arithmetic: float


@dataclass(frozen=True, slots=True)
class KernelReport:
    """All products, the ceilings of the same run, and what disturbed it."""

    threads: int
    ceilings: Roofline
    measured: tuple[Measured, ...]
    noise: Noise

    def over_one_token(self, product: Measured) -> float | None:
        """The ratio of its time to that of one token with the same matrix; None where that is not measured."""
        one = replace(product.case, tokens=1)
        return next((product.best / each.best for each in self.measured if each.case == one), None)

    def as_dict(self) -> dict[str, object]:
        """Fields for JSON."""
        products = [{**each.as_dict(), "over_one_token": self.over_one_token(each)} for each in self.measured]
        return {"threads": self.threads, "ceilings": self.ceilings.as_dict(), "products": products, "noise": self.noise.as_dict()}


def cases(kinds: Sequence[str], tokens: Sequence[int], shapes: Sequence[tuple[int, int]]) -> list[Case]:
    """All combinations; no kinds: all formats that have a kernel. Raises ConfigError for a combination that cannot be run, and where the
    extension is missing."""
    ext.native()
    for name, values, limit in (("--tokens", tokens, MAX_TOKENS), ("--shape", [side for shape in shapes for side in shape], MAX_SIDE)):
        invalid = next((value for value in values if not 1 <= value <= limit), None)
        if invalid is not None:
            raise ConfigError(f"{name} has {invalid}; 1 to {limit} are possible", fix={name: None})
    for kind in kinds:
        if kind not in FORMATS:
            raise ConfigError(f"--format {kind!r:.40} is not known; known: {', '.join(FORMATS)}", fix={"--format": "Q4_K"})
        for n, k in shapes:
            if not _has_kernel(kind, (n, k)):
                reason = f"its {k} inputs must be a multiple of {_span(kind)}"
                raise ConfigError(f"--format {kind} has no kernel for {n} x {k}: {reason}", fix={"--shape": f"{n}x{-(-k // 256) * 256}"})
    lost = without_kernel(shapes)
    selected = kinds or [kind for kind in FORMATS if kind not in lost]
    found = [Case(kind, count, n, k) for kind in selected for n, k in shapes for count in tokens]
    if not 0 < len(found) <= MAX_CELLS:
        raise ConfigError(f"{len(found)} products are requested; 1 to {MAX_CELLS} are possible")
    return found


def without_kernel(shapes: Sequence[tuple[int, int]]) -> list[str]:
    """Formats of which some of these shapes cannot be packed."""
    return [kind for kind in FORMATS if not all(_has_kernel(kind, shape) for shape in shapes)]


def _group(kind: str, k: int) -> int:
    """Inputs that share a scale where a checkpoint chooses; 0 for formats that fix it."""
    return {"INT4": GROUP, "FP8": GROUP, "INT8": k}.get(kind, 0)


def _span(kind: str) -> int:
    """Number that the inputs of a matrix must be a multiple of."""
    return {"INT4": GROUP, "FP8": 1, "INT8": 32}.get(kind) or STORED[kind].block_elements


def _has_kernel(kind: str, shape: tuple[int, int]) -> bool:
    return packable(kind, shape, _group(kind, shape[1]))


def kernels(cases: Sequence[Case], threads: int, on_progress: Callable[[float], None] = lambda done: None) -> KernelReport:
    """Measures the ceilings, then every product. Raises ConfigError where the extension is missing."""
    watch = NoiseMonitor()
    ceilings = roofline(threads, CEILING_ROUNDS, lambda done: on_progress(0.1 * done))
    loops = RooflineLoops(ext.native(), threads, ext.level_number())
    team = ext.native().Team(threads)
    measured: list[Measured] = []
    for (kind, n, k), tokens in _matrices(cases):
        copies = Copies(kind, n, k, max(tokens), team)
        for count in tokens:
            timings = copies.timings(count, partial(_ceilings, loops, kind, threads))
            measured.append(_measured(Case(kind, count, n, k), copies.packed_bytes, timings))
            on_progress(0.1 + 0.9 * len(measured) / len(cases))
    return KernelReport(threads, ceilings, tuple(measured), watch.stop())


def _matrices(cases: Sequence[Case]) -> Iterator[tuple[tuple[str, int, int], list[int]]]:
    """Each matrix with its token counts, in the order of the cases."""
    tokens_of: dict[tuple[str, int, int], list[int]] = {}
    for case in cases:
        tokens_of.setdefault((case.kind, case.n, case.k), []).append(case.tokens)
    yield from tokens_of.items()


def _ceilings(loops: RooflineLoops, kind: str, threads: int) -> tuple[float, float]:
    """Bytes per second from memory, and operations per second of the type that a format multiplies as, measured now."""
    key = f"{CODES[kind]}_ops_per_second" if kind in CODES else "f32_flops_per_second"
    return loops.rate("dram_bytes_per_second", threads) or 0.0, loops.rate(key, threads) or 0.0


def _measured(case: Case, packed_bytes: int, timings: Sequence[Timing]) -> Measured:
    operations = 2 * case.tokens * case.n * case.k
    shares = [max(packed_bytes / each.memory, operations / each.arithmetic) / each.seconds for each in timings]
    seconds = [each.seconds for each in timings]
    memory, arithmetic = max(each.memory for each in timings), max(each.arithmetic for each in timings)
    return Measured(case, packed_bytes, min(seconds), median(seconds), packed_bytes / memory, operations / arithmetic, median(shares))


class Copies:
    """One packed matrix over and over in memory, and a native plan whose phases multiply with one copy each."""

    def __init__(self, kind: str, n: int, k: int, most_tokens: int, team: Any) -> None:
        random = np.random.default_rng(0)
        with packing_pool(team.threads) as pool:
            first = _packed(random, kind, n, k, pool)
        self.packed_bytes = first.nbytes
        self.count = max(2, min(MAX_COPIES, ceil(max(MIN_BYTES, 4 * read_caches().l3) / first.nbytes)))
        self._weights = [first, *(_copy(first) for _ in range(self.count - 1))]
        self._inputs = _inputs(random, first, most_tokens)
        self._out = np.zeros((most_tokens, n), np.float32)
        self._plan = ext.native().Plan(ext.level_number(), team)
        self._clock = thread_time if team.threads == 1 else perf_counter
        op, names = ("linear_codes", ("codes", "scales", "sums")) if kind in CODES else ("linear", ("x",))
        fields = {name: array.ctypes.data for name, array in zip(names, self._inputs, strict=True)} | {"out": self._out.ctypes.data}
        for weight in self._weights:
            self._plan.begin("products", False, 1)
            self._plan.add(op, ext.record(ext.params(op), {**fields, "weight": weight.matrix}))

    def timings(self, tokens: int, ceilings: Callable[[], tuple[float, float]]) -> list[Timing]:
        """Timings of one product, each behind its ceilings. The copies continue where the last timing stopped."""
        at = 0
        self._run(tokens, 0, 1)
        once = max(self._run(tokens, 1, 1), 1e-7)
        products = min(self.count, ceil(TIMING_SECONDS / once))
        found: list[Timing] = []
        while len(found) < MIN_TIMINGS or len(found) < min(TIMINGS, CASE_SECONDS / (products * once)):
            at = at if at + products <= self.count else 0
            memory, arithmetic = ceilings()
            found.append(Timing(self._run(tokens, at, products) / products, memory, arithmetic))
            at += products
        return found

    def _run(self, tokens: int, first: int, count: int) -> float:
        began = self._clock()
        self._plan.run((tokens, 0, 0, 0), NO_ROWS, (), (), first, first + count, 0, 0)
        return self._clock() - began


def _packed(random: np.random.Generator, kind: str, n: int, k: int, pool: Executor) -> PackedWeight:
    """A matrix of made-up finite weights."""
    if kind == "FP8":
        scale = random.random((-(-n // GROUP), -(-k // GROUP)), np.float32)
        return pack_grouped(ScaledWeight(random.integers(8, 127, (n, k), np.uint8), scale, (GROUP, GROUP)), pool)
    if kind not in INTEGER_BITS:
        return pack(kind, random.integers(0, FINITE_BYTES, (n, STORED[kind].row_bytes(k)), np.uint8), (n, k), pool)
    bits, group = INTEGER_BITS[kind], _group(kind, k)
    codes = random.integers(0, 256, (n, k * bits // 8), np.uint8)
    scales, zeros = random.random((n, k // group), np.float32), random.integers(0, 1 << bits, (n, k // group), np.uint8)
    return pack_grouped(GroupedWeight((n, k), bits, group, codes, scales, zeros), pool)


def _copy(weight: PackedWeight) -> PackedWeight:
    data = allocate(weight.nbytes)
    data[:] = weight.data
    return PackedWeight(weight.kind, weight.shape, data, weight.group)


def _inputs(random: np.random.Generator, weight: PackedWeight, tokens: int) -> tuple[np.ndarray, ...]:
    """Activations as the kernels take them: codes, scales and sums of 16, or fp32."""
    k = weight.shape[1]
    if weight.kind not in CODES:
        return (random.standard_normal((tokens, k), np.float32),)
    return tuple(quantise(random.standard_normal((tokens, k), np.float32), group=weight.span))
