"""`linear` for every format and number of rows, fp8 and dequantisation, and products that do not know their batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from quantised_weights import blocks, dense, grouped, scaled
from tensors import DEVICE, error, numbers, on_device, poisoned, within

from ridgeline.compute.cuda.device import DTYPES
from ridgeline.compute.cuda.integers import INTEGER_FORMATS
from ridgeline.compute.cuda.linear import (
    GATED_ROWS,
    PACKED_ROWS,
    QUANTISED_ROWS,
    _is_for_library,
    gated_bytes,
    gated_unit,
    linear,
    scratch_bytes,
)
from ridgeline.compute.cuda.triton.matmul import linear_fp8, matmul
from ridgeline.compute.cuda.triton.quantise import dequantise, quantise_fp8
from ridgeline.compute.cuda.weights import DeviceWeight, FloatMatrix, Fp8Matrix, merged, place
from ridgeline.compute.ops.definition import floats
from ridgeline.compute.ops.fp8 import from_e4m3
from ridgeline.compute.ops.table import OPS
from ridgeline.compute.quant.weight import DenseWeight, Weight

TOLERANCE = {dtype: OPS["linear"].tolerance[f"cuda {name}"] for name, dtype in DTYPES.items() if name in ("f32", "bf16", "fp16")}
SUMS = TOLERANCE[torch.float32]
"""Of results that are not rounded, whatever the operands are."""

FP8_SUMS = SUMS if DEVICE.type == "cpu" else OPS["linear_fp8"].tolerance["cuda f32"]
"""Of products of codes: tensor cores keep fewer bits inside their sums than the interpreter does."""

DIVISION = 2.0**-22
"""A GPU's division of fp32 is off by 2 units of the last place."""

STORED: dict[str, Weight] = {
    "f32": DenseWeight(floats(1, 40, 96)),
    "Q4_K": blocks("Q4_K", 40, 256),
    "Q6_K": blocks("Q6_K", 40, 256),
    "Q8_0": blocks("Q8_0", 40, 96),
    "GPTQ, act-order": grouped(4, 40, 128, 64, ordered=True),
    "int8 per channel": grouped(8, 40, 96, 96, symmetric=True),
}


def run(
    x: torch.Tensor | tuple[torch.Tensor, torch.Tensor], weight: DeviceWeight, dtype: torch.dtype, *, invariant: bool = False
) -> torch.Tensor:
    rows = len(x[0]) if isinstance(x, tuple) else len(x)
    out = within(poisoned(rows, weight.shape[0], dtype=dtype))
    linear(x, weight, out, poisoned(max(1, scratch_bytes(weight, rows, invariant=invariant)), dtype=torch.uint8), invariant=invariant)()
    return out


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rows", [1, 33, PACKED_ROWS + 1])
@pytest.mark.parametrize("name", STORED)
def test_every_format(name: str, rows: int, dtype: torch.dtype) -> None:
    weight = place(STORED[name], dtype, DEVICE)
    x = on_device(floats(rows, rows, weight.shape[1]), dtype)
    assert error(run(x, weight, dtype), x.double().cpu().numpy() @ dense(weight).T) < TOLERANCE[dtype]


@pytest.mark.parametrize("name", STORED)
def test_placed_matrices_are_the_stored_ones(name: str) -> None:
    assert np.array_equal(dense(place(STORED[name], torch.float32, DEVICE)), STORED[name].dense())


@pytest.mark.parametrize("kind", INTEGER_FORMATS)
def test_dequantise_blocks(kind: str) -> None:
    stored = blocks(kind, 70, 256 if INTEGER_FORMATS[kind].superblock else 96, 7)
    weight = place(stored, torch.float32, DEVICE)
    assert not isinstance(weight, FloatMatrix)
    out = within(poisoned(67, stored.shape[1]))
    dequantise(weight, 3, out)()
    assert error(out, stored.dense()[3:]) < 2e-7


@pytest.mark.parametrize("block", [(1, 200), (70, 200), (128, 128), (32, 64)])
def test_dequantise_fp8(block: tuple[int, int]) -> None:
    stored = scaled(70, 200, block)
    weight = place(stored, torch.float32, DEVICE)
    assert isinstance(weight, Fp8Matrix) and weight.per_channel == (block[1] == 200)
    out = within(poisoned(69, 200))
    dequantise(weight, 1, out)()
    assert np.array_equal(numbers(out), stored.dense()[1:])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_quantise_fp8(dtype: torch.dtype) -> None:
    x = within(on_device(np.concatenate([floats(1, 5, 200, size=30), np.zeros((1, 200), np.float32)]), dtype))
    codes, scales = within(poisoned(6, 200, dtype=torch.float8_e4m3fn)), poisoned(6)
    quantise_fp8(x, codes, scales)()
    exact = x.float().abs().amax(1) / 448
    assert ((scales - exact).abs() <= exact * DIVISION).all()
    back = codes.float() * scales[:, None]
    assert ((back - x.float()).abs() <= x.float().abs() / 16 + scales[:, None] / 1024 * 1.01).all()


def test_quantise_fp8_keeps_what_is_not_finite() -> None:
    x = floats(1, 3, 40)
    x[0, 3], x[1, 4] = np.nan, np.inf
    codes, scales = poisoned(3, 40, dtype=torch.float8_e4m3fn), poisoned(3)
    quantise_fp8(on_device(x), codes, scales)()
    assert (codes.float() * scales[:, None]).isfinite().all(1).tolist() == [False, False, True]


@pytest.mark.parametrize("rows", [1, 17, 40, 70])
@pytest.mark.parametrize("block", [(1, 320), (128, 128)])
def test_fp8_kernel(block: tuple[int, int], rows: int) -> None:
    """Every tile but the largest: a scale per row, blocks, an input count that is no multiple of a step."""
    weight = place(scaled(70, 320, block), torch.float32, DEVICE)
    assert isinstance(weight, Fp8Matrix)
    codes, scales = poisoned(rows, 320, dtype=torch.float8_e4m3fn), poisoned(rows)
    quantise_fp8(on_device(floats(3, rows, 320)), codes, scales)()
    out = within(poisoned(rows, 70))
    linear_fp8(codes, scales, weight, out)()
    expected = (codes.double() * scales[:, None]).cpu().numpy() @ dense(weight).T
    assert error(out, expected) < FP8_SUMS
    assert error(run((codes, scales), weight, torch.float32), expected) < FP8_SUMS
    assert error(run((codes, scales), weight, torch.float32, invariant=True), expected) < FP8_SUMS


@pytest.mark.parametrize("rows", [1, 16, 17, 32, 256, 2048])
def test_fp8_product_of_the_library(rows: int) -> None:
    """Contiguous results, scales over six decades: every row and column within its own largest value, whatever stands beside it."""
    columns, inputs = 128, 512
    weight = place(scaled(columns, inputs, (1, inputs)), torch.bfloat16, DEVICE)
    assert isinstance(weight, Fp8Matrix)
    weight = replace(weight, scales=torch.logspace(-3, 3, columns, device=DEVICE)[:, None].contiguous())
    codes = on_device(floats(3, rows, inputs)).to(torch.float8_e4m3fn)
    scales = torch.logspace(3, -3, rows, device=DEVICE)
    out = poisoned(rows, columns, dtype=torch.bfloat16)
    assert _is_for_library(weight, out)
    linear((codes, scales), weight, out, poisoned(1, dtype=torch.uint8))()
    exact = codes.double() @ weight.codes.double().t()
    found = out.double() / scales.double()[:, None] / weight.scales.double().view(1, -1)
    assert (found - exact).abs().max() <= 0.01 * exact.abs().max()


@pytest.mark.parametrize("block", [(1, 320), (128, 128)])
@pytest.mark.parametrize("rows", [1, 17, 40])
def test_fp8_of_floats(block: tuple[int, int], rows: int) -> None:
    """Every tile; codes by the largest of 128 neighbours, in any mode."""
    weight = place(scaled(70, 320, block), torch.float32, DEVICE)
    x = floats(3, rows, 320, size=5)
    x[0, 128:256] = 0
    parts = [OPS["quantise_fp8"].reference(part) for part in np.split(x, [128, 256], axis=1)]
    coded = np.concatenate([from_e4m3(codes) * scales for codes, scales in parts], axis=1)
    for invariant in (False, True):
        found = run(on_device(x), weight, torch.float32, invariant=invariant)
        assert error(found, coded.astype(np.float64) @ dense(weight).T) < 1e-3  # a tie on its other side
    x[0, 7] = np.nan
    assert run(on_device(x), weight, torch.float32).isfinite().all(1).tolist() == [False, *[True] * (rows - 1)]


@pytest.mark.parametrize("rows", [5, QUANTISED_ROWS + 1])
def test_fp8_weights_take_floats_too(rows: int) -> None:
    weight = place(scaled(24, 256, (128, 128)), torch.bfloat16, DEVICE)
    x = on_device(floats(4, rows, 256), torch.bfloat16)
    assert error(run(x, weight, torch.bfloat16), x.double().cpu().numpy() @ dense(weight).T) < 0.06


@pytest.mark.parametrize("block", [(1, 160), (128, 128)])
@pytest.mark.parametrize("rows", [1, 30, 40, 70, GATED_ROWS + 1])
def test_gated_unit_in_fp8(block: tuple[int, int], rows: int) -> None:
    """Every tile, and above them two launches."""
    weight = place(scaled(256, 160, block), torch.float32, DEVICE)
    assert isinstance(weight, Fp8Matrix)
    codes, scales = poisoned(rows, 160, dtype=torch.float8_e4m3fn), poisoned(rows)
    quantise_fp8(on_device(floats(3, rows, 160)), codes, scales)()
    gate, up = np.split((codes.double() * scales[:, None]).cpu().numpy() @ dense(weight).T, 2, axis=1)
    expected = OPS["glu"].reference(gate, up, activation="silu")
    for invariant in (False, True) if rows < 70 else (False,):
        out, room = within(poisoned(rows, 128)), gated_bytes(weight, rows, torch.float32, invariant=invariant)
        gated_unit((codes, scales), weight, "silu", out, poisoned(max(1, room), dtype=torch.uint8), invariant=invariant)()
        assert error(out, expected) < FP8_SUMS


def test_fp8_on_load() -> None:
    values = floats(5, 30, 64)
    values[3], values[4, 2] = 0, np.nan
    weight = place(DenseWeight(values), torch.bfloat16, DEVICE, fp8=True)
    assert isinstance(weight, Fp8Matrix) and weight.per_channel
    got = dense(weight)
    kept = [row for row in range(30) if row != 4]
    assert np.isnan(got[4]).all() and not got[3].any()
    assert (np.abs(got[kept] - values[kept]) <= np.abs(values[kept]) / 15 + np.abs(values[kept]).max(1, keepdims=True) / 2**18).all()


def test_merged_fp8() -> None:
    parts = [place(scaled(rows, 256, (128, 128), rows), torch.float32, DEVICE) for rows in (128, 256, 30)]
    whole = merged(parts)
    assert isinstance(whole, Fp8Matrix) and np.array_equal(dense(whole), np.concatenate([dense(part) for part in parts]))
    assert merged(parts[::-1]) is None


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("rows", "columns", "inputs"), [(0, 8, 64), (1, 70, 128), (70, 65, 100)])
def test_matmul(rows: int, columns: int, inputs: int, dtype: torch.dtype) -> None:
    x, weight = on_device(floats(1, rows, inputs), dtype), on_device(floats(2, columns, inputs), dtype)
    out = poisoned(rows, columns, dtype=torch.float32)
    matmul(x, weight, out)()
    assert error(out, x.double().cpu().numpy() @ weight.double().cpu().numpy().T) < SUMS


@pytest.mark.parametrize("name", STORED)
def test_invariant_products_do_not_know_their_batch(name: str) -> None:
    weight = place(STORED[name], torch.bfloat16, DEVICE)
    x = on_device(floats(6, 70, weight.shape[1]), torch.bfloat16)
    together = run(x, weight, torch.bfloat16, invariant=True)
    for row in (0, 37, 69):
        assert torch.equal(run(x[row : row + 1], weight, torch.bfloat16, invariant=True)[0], together[row])


def test_scratch_is_checked() -> None:
    weight = place(grouped(4, 8, 128, 64, ordered=True), torch.float32, DEVICE)
    with pytest.raises(ValueError, match="scratch"):
        linear(on_device(floats(1, 2, 128)), weight, poisoned(2, 8), poisoned(16, dtype=torch.uint8))()
