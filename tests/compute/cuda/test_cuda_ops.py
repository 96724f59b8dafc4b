"""Norms, elements, gathers and rotations beyond the samples of their ops: fused twins, fp8, what is not finite, nothing at all."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from fp8_kernels import from_fp8_kernel, to_fp8_kernel
from tensors import DEVICE, error, numbers, on_device, poisoned, within

from ridgeline.compute.cuda.triton import elements, norm, rope
from ridgeline.compute.cuda.triton.quantise import quantise_fp8
from ridgeline.compute.ops.definition import floats
from ridgeline.compute.ops.table import OPS
from ridgeline.facts.model import Rope

FP8_TOLERANCE = 0.0625
"""Half a unit in the last place of e4m3 is 2^-4 of a number at most."""


@pytest.mark.parametrize("width", [40, 300])
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_fused_norms(rows: int, width: int) -> None:
    """A sum goes over the summand it came from; what follows sees it as it was stored, as a norm of its own would."""
    x, y, weight = on_device(floats(1, rows, width), torch.bfloat16), on_device(floats(2, rows, width), torch.bfloat16), floats(3, width)
    total, out, codes = within(x), within(poisoned(rows, width, dtype=torch.bfloat16)), poisoned(rows, width, dtype=torch.float8_e4m3fn)
    norm.add_rms_norm(total, y, on_device(weight), 1e-6, total, out)()
    assert torch.equal(total, x + y)
    alone = poisoned(rows, width, dtype=torch.bfloat16)
    norm.rms_norm(total, on_device(weight), 1e-6, alone)()
    assert torch.equal(alone, out)
    scales, again = poisoned(rows), poisoned(rows, width, dtype=torch.bfloat16)
    norm.add_rms_norm_fp8(x, y, on_device(weight), 1e-6, again, codes, scales)()
    assert torch.equal(again, total)
    expected = OPS["rms_norm"].reference(numbers(total), weight, eps=1e-6)
    check_fp8(codes, scales, expected)
    norm.rms_norm_fp8(total, on_device(weight), 1e-6, codes.fill_(0), scales.fill_(0))()
    check_fp8(codes, scales, expected)


def check_fp8(codes: torch.Tensor, scales: torch.Tensor, expected: np.ndarray) -> None:
    """Codes and scales of rows: the scale is the largest size / 448, each number is near."""
    np.testing.assert_allclose(numbers(scales), np.abs(expected).max(axis=1, initial=0) / 448, rtol=1e-5)
    near = np.abs(numbers(codes.float() * scales[:, None]) - expected)
    assert (near <= FP8_TOLERANCE * np.abs(expected) + 2.0**-10 * numbers(scales)[:, None] * 1.001).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_so(bad: float) -> None:
    x = floats(1, 3, 64)
    x[1, 5] = bad
    codes, scales, out = poisoned(3, 64, dtype=torch.float8_e4m3fn), poisoned(3), poisoned(3, 64)
    norm.rms_norm(on_device(x), on_device(floats(2, 64)), 1e-6, out)()
    quantise_fp8(on_device(x), codes, scales)()
    for made in (out, codes.float() * scales[:, None]):
        assert torch.equal(torch.isfinite(made).all(dim=1), torch.tensor([True, False, True], device=DEVICE))


@pytest.mark.parametrize("native", [True, False])
def test_fp8_as_bytes(native: bool) -> None:
    """An A100's arithmetic on bits and a Hopper's instruction give the same: every code back, halfway numbers to even, saturated."""
    codes = torch.arange(256, dtype=torch.uint8, device=DEVICE)
    exact, back = codes.view(torch.float8_e4m3fn).float(), poisoned(256)
    from_fp8_kernel[(1,)](codes, back, NATIVE=native)
    assert torch.equal(back.nan_to_num(-999), exact.nan_to_num(-999))
    ordered = exact[torch.isfinite(exact)].sort().values
    between = (ordered[1:] + ordered[:-1]) / 2
    x = torch.cat([exact, between, between * 1.0001, between * 0.9999, torch.tensor([1e9, -1e9, 449.0, 1e-12], device=DEVICE)])
    x = torch.cat([x, torch.zeros(1024 - len(x), device=DEVICE)])
    made = poisoned(1024, dtype=torch.uint8)
    to_fp8_kernel[(1,)](x, made, NATIVE=native)
    limited = torch.where(x.isnan(), x, x.clamp(-448, 448)).to(torch.float8_e4m3fn).float()
    assert torch.equal(made.view(torch.float8_e4m3fn).float().nan_to_num(-999), limited.nan_to_num(-999))


def test_rotation_far_away() -> None:
    """A million positions on, as near as at the start."""
    at, turned = np.array([[0, 999_983]], np.int32), Rope(500_000.0, 128)
    out = poisoned(2, 128)
    rope.rotation(on_device(at), rope.frequencies(turned, DEVICE), 1.0, out)()
    assert error(out, OPS["rotation"].reference(at, rope=turned)) <= OPS["rotation"].tolerance["cuda f32"]


def test_no_rows() -> None:
    """Nothing is written: not the memory behind the rows that are not there, nor what is read."""
    memory, weight = on_device(floats(2, 4, 64)), on_device(floats(1, 64))
    before, nothing = memory.view(torch.uint8).clone(), memory[:0]
    norm.rms_norm(nothing, weight, 1e-6, nothing)()
    norm.layer_norm(nothing, weight, weight, 1e-6, nothing)()
    elements.glu(nothing, nothing, "silu", nothing)()
    elements.select(on_device(floats(1, 4, 64)), torch.empty(0, dtype=torch.int32, device=DEVICE), nothing)()
    rope.rotate(nothing, poisoned(0, 16), 16, nothing)()
    assert torch.equal(memory.view(torch.uint8), before)
    norm.rms_norm(memory[:1], weight, 1e-6, memory[:1])()
    assert not torch.equal(memory.view(torch.uint8), before), "one row is written"


@pytest.mark.parametrize("call", [elements.add, lambda x, y, out: elements.glu(x, y, "silu", out)], ids=["add", "glu"])
def test_shapes_are_checked(call: Callable[..., None]) -> None:
    with pytest.raises(ValueError, match="differ"):
        call(poisoned(2, 64), poisoned(2, 32), poisoned(2, 64))
    with pytest.raises(ValueError, match="differ"):
        call(poisoned(2, 64), poisoned(3, 64), poisoned(2, 64))
