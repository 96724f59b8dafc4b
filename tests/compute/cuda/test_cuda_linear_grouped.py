"""Packed integers: the layout gives the file back, products and dequantisation equal the reference, for every format."""

import numpy as np
import pytest
import torch
from quantised_weights import blocks, grouped, unpack
from tensors import DEVICE, error, on_device, poisoned, within

from ridgeline.compute.cuda.integers import INTEGER_FORMATS, IntegerMatrix, pack_blocks, pack_grouped
from ridgeline.compute.cuda.triton.linear_grouped import linear_grouped, scratch_bytes, splits_of
from ridgeline.compute.cuda.weights import merged, placed_bytes
from ridgeline.compute.ops.definition import floats
from ridgeline.compute.ops.table import OPS

SUPER = {kind: form.superblock for kind, form in INTEGER_FORMATS.items()}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SUMS = OPS["linear"].tolerance["cuda f32"]
"""Against a product of the rounded activations in double precision: fp32 results, so that only sums are rounded."""

INTEGERS = [(4, 128, True), (4, 32, False), (4, 96, False), (8, 160, True), (8, 32, False)]


def product(x: torch.Tensor, weight: IntegerMatrix) -> np.ndarray:
    return x.double().cpu().numpy() @ unpack(weight).T.astype(np.float64)


def run(x: torch.Tensor, weight: IntegerMatrix, *, dtype: torch.dtype = torch.float32, invariant: bool = False) -> torch.Tensor:
    out = within(poisoned(len(x), weight.shape[0], dtype=dtype)) if len(x) else poisoned(0, weight.shape[0], dtype=dtype)
    scratch = poisoned(max(1, scratch_bytes(weight, len(x))), dtype=torch.uint8)
    linear_grouped(x, weight, out, scratch, invariant=invariant)()
    return out


@pytest.mark.parametrize("kind", INTEGER_FORMATS)
def test_packing_keeps_a_file(kind: str) -> None:
    stored = blocks(kind, 21, 512 if SUPER[kind] else 160)
    weight = pack_blocks(stored, DEVICE)
    assert np.array_equal(unpack(weight), stored.dense())
    assert weight.nbytes <= placed_bytes(kind, stored.shape, torch.float32)


@pytest.mark.parametrize(("bits", "size", "symmetric"), INTEGERS)
@pytest.mark.parametrize("ordered", [False, True])
def test_packing_keeps_grouped_integers(bits: int, size: int, symmetric: bool, ordered: bool) -> None:
    stored = grouped(bits, 21, 2 * size, size, symmetric=symmetric, ordered=ordered)
    weight = pack_grouped(stored, DEVICE)
    assert np.array_equal(unpack(weight), stored.dense())
    assert weight.form.offset == ("centre" if symmetric else "zeros")
    assert weight.nbytes <= placed_bytes(f"GPTQ{bits}", stored.shape, torch.float32, size)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", INTEGER_FORMATS)
def test_blocks(kind: str, dtype: torch.dtype) -> None:
    weight = pack_blocks(blocks(kind, 70, 512 if SUPER[kind] else 160, 1), DEVICE)
    x = within(on_device(floats(1, 3, weight.shape[1]), dtype))
    assert error(run(x, weight), product(x, weight)) < SUMS


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("bits", "size", "symmetric"), INTEGERS)
def test_grouped_integers(bits: int, size: int, symmetric: bool, dtype: torch.dtype) -> None:
    weight = pack_grouped(grouped(bits, 65, 2 * size, size, symmetric=symmetric, seed=2), DEVICE)
    x = on_device(floats(2, 17, weight.shape[1]), dtype)
    assert error(run(x, weight), product(x, weight)) < SUMS


@pytest.mark.parametrize("rows", [0, 1, 16, 17, 32, 33, 65, 130])
def test_rows_and_splits(rows: int) -> None:
    """Several splits, rows of every count, results in bf16; a scale per row over all inputs."""
    weight = pack_grouped(grouped(8, 40, 1088, 1088, seed=3), DEVICE)
    assert splits_of(weight) == 4
    x = on_device(floats(3, rows, 1088), torch.bfloat16)
    assert error(run(x, weight, dtype=torch.bfloat16), product(x, weight)) < OPS["linear"].tolerance["cuda bf16"]


def test_rows_do_not_know_each_other() -> None:
    weight = pack_blocks(blocks("Q4_K", 33, 1024, 4), DEVICE)
    x = on_device(floats(4, 40, 1024), torch.bfloat16)
    together = run(x, weight, invariant=True)
    assert torch.equal(run(x[37:38], weight, invariant=True), together[37:38])


def test_what_is_not_finite_stays_so() -> None:
    stored = grouped(4, 20, 128, 64, seed=5)
    stored.scales[3, 1] = np.inf
    weight = pack_grouped(stored, DEVICE)
    x = floats(5, 4, 128)
    x[1, 70], x[2, 0] = np.nan, np.inf
    got = np.isfinite(run(on_device(x, torch.bfloat16), weight).cpu().numpy())
    assert not got[1:3].any() and not got[:, 3].any() and got[0, :3].all() and got[3, 4:].all()


def test_merged_rows() -> None:
    parts = [pack_blocks(blocks("Q5_K", rows, 256, rows), DEVICE) for rows in (24, 5, 8)]
    whole = merged(parts)
    assert isinstance(whole, IntegerMatrix) and np.array_equal(unpack(whole), np.concatenate([unpack(part) for part in parts]))
    assert merged([parts[0], pack_blocks(blocks("Q4_K", 8, 256), DEVICE)]) is None


def test_shapes_are_checked() -> None:
    weight = pack_blocks(blocks("Q8_0", 8, 64), DEVICE)
    with pytest.raises(ValueError, match="do not fit"):
        run(poisoned(2, 96), weight)
