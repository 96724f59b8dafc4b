"""Every ISA level of this machine gives the bits of the numpy reference."""

import os
import subprocess
import sys

import numpy as np
import pytest

from ridgeline.compute.cpu import ext, linear
from ridgeline.errors import ConfigError

pytestmark = pytest.mark.skipif(not ext.isa_levels(), reason=f"native extension not built: {ext.lost()}")
LEVELS = ext.isa_levels() or ("none",)


def weights(rng: np.random.Generator, n: int, k: int) -> np.ndarray:
    """Random Q8_0 rows with scales of every magnitude, subnormal halves, zeros and the code -128 among them."""
    blocks = rng.integers(0, 256, (n, k // 32, 34), np.uint8)
    scales = (rng.standard_normal((n, k // 32)) * 10.0 ** rng.integers(-8, 4, (n, k // 32))).astype(np.float16)
    blocks[..., :2] = np.ascontiguousarray(scales)[..., None].view(np.uint8)
    return blocks.reshape(n, -1)


def activations(rng: np.random.Generator, m: int, k: int) -> np.ndarray:
    x = rng.standard_normal((m, k)) * 10.0 ** rng.integers(-6, 6, (m, k // 32)).repeat(32, axis=1)
    return x.astype(np.float32)


def assert_same_bits(ours: np.ndarray, reference: np.ndarray) -> None:
    assert ours.shape == reference.shape
    nan = np.isnan(reference)
    assert np.array_equal(np.isnan(ours), nan)
    assert np.array_equal(ours[~nan].view(np.uint32), reference[~nan].view(np.uint32))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 32), (1, 37, 640), (5, 16, 2048), (17, 9, 96), (0, 3, 64)])
def test_linear_is_bit_equal(level: str, m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(m * 1000 + n)
    w, x = weights(rng, n, k), activations(rng, m, k)
    codes, scales = linear.quantise(x, level=level)
    reference_codes, reference_scales = linear.quantise_reference(x)
    assert np.array_equal(codes, reference_codes)
    assert_same_bits(scales, reference_scales)
    assert_same_bits(linear.q8_0_linear(w, x, level=level), linear.q8_0_linear_reference(w, x))


@pytest.mark.parametrize("level", LEVELS)
def test_extreme_values(level: str) -> None:
    rng = np.random.default_rng(3)
    x = activations(rng, 8, 64)
    x[0] = 0
    x[1, :32] = 1e-38
    x[2, 5] = np.inf
    x[3, 40] = np.nan
    x[4] = np.where(np.arange(64) % 2, 3.0e38, -3.0e38)
    x[5, 1:] = 0.5
    x[5, 0] = 127.0
    w = weights(rng, 6, 64)
    with np.errstate(over="ignore", invalid="ignore"):
        reference = linear.q8_0_linear_reference(w, x)
    assert_same_bits(linear.q8_0_linear(w, x, level=level), reference)
    assert np.isnan(reference[2:4]).all()


@pytest.mark.parametrize("level", LEVELS)
def test_saturation_corner(level: str) -> None:
    w = np.full((2, 34), 0x80, np.uint8)
    w[:, :2] = np.array([1.0], np.float16).view(np.uint8)
    w[1, 2:] = 0x7F
    x = np.full((2, 32), 5.0, np.float32)
    x[1] = -5.0
    assert_same_bits(linear.q8_0_linear(w, x, level=level), linear.q8_0_linear_reference(w, x))


def test_strided_rows() -> None:
    rng = np.random.default_rng(5)
    wide, x = weights(rng, 8, 128), activations(rng, 3, 64)
    w = wide[:, : 2 * 34]
    assert_same_bits(linear.q8_0_linear(w, x), linear.q8_0_linear_reference(w, x))


def test_dequantised_product_is_near() -> None:
    rng = np.random.default_rng(7)
    w, x = weights(rng, 12, 256), rng.standard_normal((4, 256)).astype(np.float32)
    blocks = w.reshape(12, 8, 34)
    scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float64)
    dense = (blocks[..., 2:].view(np.int8) * scales).reshape(12, 256)
    exact = x.astype(np.float64) @ dense.T
    assert np.abs(linear.q8_0_linear(w, x) - exact).max() <= 0.02 * np.abs(exact).max()


def test_misuse_is_refused() -> None:
    x = np.zeros((1, 64), np.float32)
    with pytest.raises(ValueError, match="multiple of 32"):
        linear.quantise(np.zeros((1, 40), np.float32))
    with pytest.raises(ValueError, match="contiguous float32"):
        linear.quantise(np.zeros((1, 64)))
    with pytest.raises(ValueError, match="Q8_0 weights"):
        linear.q8_0_linear(np.zeros((2, 34), np.uint8), x)
    with pytest.raises(ValueError, match="rows must ascend"):
        linear.q8_0_linear(np.zeros((4, 68), np.uint8)[::-1], x)
    with pytest.raises(ValueError, match="cannot run"):
        ext.native().quantise(99, 0, 0, 0, 0, 32)


def isa_of(value: str) -> subprocess.CompletedProcess[str]:
    program = "from ridgeline.compute.cpu import ext; print(ext.isa())"
    environment = {**os.environ, "RIDGELINE_ISA": value, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)


def test_level_is_the_fastest_unless_overridden() -> None:
    assert isa_of("").stdout.strip() == LEVELS[-1]
    assert isa_of("scalar").stdout.strip() == "scalar"
    assert "this machine runs scalar" in isa_of("pentium").stderr


def test_absence_says_what_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ext.lost() is None
    monkeypatch.setattr(ext, "_C", None)
    monkeypatch.setattr(ext, "_missing", "no such module")
    assert ext.isa_levels() == ()
    assert "Q8_0 kernel is lost" in str(ext.lost())
    assert "RIDGELINE_NO_EXT" in str(ext.lost())
    with pytest.raises(ConfigError, match="no such module"):
        ext.native()
