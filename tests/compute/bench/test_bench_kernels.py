"""Timing of products: every cell is there, its share is that of the same run's ceilings, and nothing is left out silently."""

import json

import numpy as np
import pytest

from ridgeline.compute.bench import kernels as bench
from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.packing import FORMATS
from ridgeline.errors import ConfigError
from ridgeline.facts.hardware import ceilings

native = pytest.mark.skipif(ext.lost() is not None, reason=f"no native extension: {ext.lost()}")


@pytest.fixture
def few_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "MAX_COPIES", 8)
    monkeypatch.setattr(bench, "MIN_TIMINGS", 3)
    monkeypatch.setattr(bench, "TIMINGS", 3)
    monkeypatch.setattr(bench, "CEILING_ROUNDS", 3)
    monkeypatch.setattr(ceilings, "MAX_DRAM_BYTES", ceilings.MIN_DRAM_BYTES)


@native
@pytest.mark.usefixtures("few_copies")
def test_products_are_told_beside_the_ceilings_of_their_run() -> None:
    asked = bench.cases(["Q8_0", "Q4_K", "BF16"], [1, 8], [(64, 512)])
    told: list[float] = []
    report = bench.kernels(asked, 2, told.append)
    found = json.loads(json.dumps(report.as_dict()))
    assert [(each["format"], each["m"], each["n"], each["k"]) for each in found["products"]] == [
        ("Q8_0", 1, 64, 512), ("Q8_0", 8, 64, 512), ("Q4_K", 1, 64, 512), ("Q4_K", 8, 64, 512),
        ("BF16", 1, 64, 512), ("BF16", 8, 64, 512),
    ]  # fmt: skip
    for each, product in zip(report.measured, found["products"], strict=True):
        assert 0 < product["seconds"] <= product["median_seconds"] < 1
        assert 0 < product["share_of_ceiling"] < 2
        one = next(other for other in report.measured if (other.case.kind, other.case.tokens) == (each.case.kind, 1))
        assert product["over_one_token"] == each.best / one.best
        assert product["bottleneck"] == ("memory" if each.memory_seconds > each.arithmetic_seconds else "arithmetic")
    assert told[-1] == 1.0 and told == sorted(told)
    assert report.measured[0].packed_bytes >= 64 * 512 + 64 * 512 // 16  # codes and halves
    assert report.measured[2].packed_bytes < report.measured[0].packed_bytes


def test_without_one_token_nothing_is_said_of_it() -> None:
    timings = [bench.Timing(1e-3, 1e10, 1e10)]
    products = tuple(bench._measured(bench.Case("Q4_0", tokens, 64, k), 10**6, timings) for tokens, k in ((1, 64), (4, 128)))
    report = bench.KernelReport(1, None, products, None)  # type: ignore[arg-type]
    assert [report.over_one_token(each) for each in products] == [1.0, None]


def test_a_share_is_of_the_ceiling_that_binds_in_the_same_moment() -> None:
    case = bench.Case("Q4_0", 1, 1000, 1000)
    one = bench._measured(case, 10**6, [bench.Timing(2e-4, 1e10, 1e11), bench.Timing(4e-4, 0.5e10, 1e11), bench.Timing(3e-4, 1e10, 1e11)])
    assert (one.bottleneck, one.share, one.best, one.median_seconds) == ("memory", pytest.approx(0.5), 2e-4, 3e-4)
    assert one.bytes_per_second == pytest.approx(5e9) and one.ops_per_second == pytest.approx(1e10)
    many = bench._measured(bench.Case("Q4_0", 100, 1000, 1000), 10**6, [bench.Timing(4e-3, 1e10, 1e11)])
    assert (many.bottleneck, many.share) == ("arithmetic", pytest.approx(0.5))
    assert bench._measured(bench.Case("F32", 1, 1000, 1000), 4 * 10**6, [bench.Timing(1e-3, 1e10, 1e10)]).share == pytest.approx(0.4)


@native
@pytest.mark.parametrize(
    ("kinds", "tokens", "shapes", "names"),
    [
        (["Q9"], [1], [(64, 64)], "Q9"), (["Q4_K"], [1], [(64, 64)], "256"), (["INT4"], [1], [(64, 64)], "64 inputs .* 128"),
        (["Q8_0"], [0], [(64, 64)], "--tokens"),
        (["Q8_0"], [1], [(64, 1 << 30)], "--shape"), (["Q8_0"], range(1, 8000), [(64, 64), (32, 64)], "15998"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_refused(kinds: list[str], tokens: list[int], shapes: list[tuple[int, int]], names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        bench.cases(kinds, tokens, shapes)


@native
def test_without_a_format_all_that_have_a_kernel_are_run_and_the_others_named() -> None:
    shapes = [(64, 256), (32, 96)]
    found, lost = {case.kind for case in bench.cases([], [1], shapes)}, set(bench.without_kernel(shapes))
    assert {"Q8_0", "INT8", "F16"} <= found and {"Q4_K", "Q6_K", "INT4"} == lost & {"Q4_K", "Q6_K", "INT4"}
    assert found | lost == set(FORMATS) and not found & lost
    assert not bench.without_kernel([(8192, 2048), (2048, 8192)])


@native
@pytest.mark.usefixtures("few_copies")
def test_copies_hold_numbers() -> None:
    """Products of made-up weights are finite, and not zero: what is timed is no special case."""
    for kind in bench.CODES:
        copies = bench.Copies(kind, 32, 256, 3, ext.native().Team(1))
        copies.timings(3, lambda: (1.0, 1.0))
        assert np.isfinite(copies._out).all() and (copies._out != 0).mean() > 0.9, kind
