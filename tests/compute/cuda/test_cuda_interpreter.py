"""The interpreter rounds and multiplies as a GPU does: what the other tests here stand on."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from tensors import DEVICE, on_device, poisoned

from ridgeline.compute.ops.definition import floats

HALVES = [torch.bfloat16, torch.float16, torch.float8_e4m3fn]


@triton.jit
def cast_kernel(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(x + at).to(out.dtype.element_ty))


@triton.jit
def dot_kernel(a, b, out, N: tl.constexpr):
    at = tl.arange(0, N)
    place = at[:, None] * N + at[None, :]
    tl.store(out + place, tl.dot(tl.load(a + place), tl.load(b + place)))


@triton.jit
def loop_kernel(bounds, out):
    total = 0
    for i in range(tl.load(bounds), tl.load(bounds + 1)):
        total += i
    tl.store(out, total)


@pytest.mark.parametrize("dtype", HALVES)
def test_casts_round_to_the_nearest(dtype: torch.dtype) -> None:
    x = np.concatenate([floats(1, 200, size=20), floats(2, 40, size=1e-3), np.float32([0.0, -0.0, 17, 19, 21, 15.5, 0.0009765625])])
    x = np.concatenate([x, np.full(256 - len(x), 1.0625, np.float32)])
    out = poisoned(256, dtype=dtype)
    cast_kernel[(1,)](on_device(x), out, N=256)
    assert torch.equal(out.float(), on_device(x).to(dtype).float())


def test_fp8_saturates_and_keeps_nan() -> None:
    out = poisoned(8, dtype=torch.float8_e4m3fn)
    cast_kernel[(1,)](on_device(np.float32([1e9, -1e9, np.inf, np.nan, 448, 465, -500, 0])), out, N=8)
    assert torch.equal(out.float().nan_to_num(-1), torch.tensor([448.0, -448, 448, -1, 448, 448, -448, 0], device=DEVICE))
    back = poisoned(8)
    cast_kernel[(1,)](out, back, N=8)
    assert torch.equal(back.nan_to_num(-1), out.float().nan_to_num(-1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dot(dtype: torch.dtype) -> None:
    a, b, out = on_device(floats(1, 32, 32), dtype), on_device(floats(2, 32, 32), dtype), poisoned(32, 32)
    dot_kernel[(1,)](a, b, out, N=32)
    torch.testing.assert_close(out, a.float() @ b.float(), atol=1e-4, rtol=0)


def test_loops_with_bounds_of_the_device() -> None:
    out = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    loop_kernel[(1,)](on_device(np.int32([3, 7])), out)
    assert out.item() == 18
