"""Stored matrices of tests: blocks with sane scales, grouped integers, fp8."""

import numpy as np
import torch
from numpy.typing import NDArray
from tensors import numbers

from ridgeline.compute.cuda.integers import GROUP_BYTES, IntegerMatrix
from ridgeline.compute.cuda.weights import DeviceWeight, FloatMatrix
from ridgeline.compute.quant.codebooks import E2M1_DOUBLED, E8M0_HALVED
from ridgeline.compute.quant.formats import FORMATS
from ridgeline.compute.quant.grouped import GroupedWeight, packed
from ridgeline.compute.quant.scaled import ScaledWeight
from ridgeline.compute.quant.weight import CodedWeight

_HALVES = {
    "Q4_1": (0, 2), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
}  # fmt: skip


def blocks(kind: str, rows: int, columns: int, seed: int = 0) -> CodedWeight:
    """Random bytes, whose fp16 fields are normal numbers."""
    random, form = np.random.default_rng(seed), FORMATS[kind]
    codes = random.integers(0, 256, (rows * columns // form.block_elements, form.block_bytes)).astype(np.uint8)
    if kind == "MXFP4":
        codes[:, 0] = random.integers(120, 128, len(codes))
    for place in _HALVES.get(kind, () if kind == "MXFP4" else (0,)):
        codes[:, place : place + 2] = (random.standard_normal((len(codes), 1)) * 0.1).astype(np.float16).view(np.uint8)
    return CodedWeight(kind, (rows, columns), codes.reshape(rows, -1))


def grouped(
    bits: int, rows: int, columns: int, size: int, *, symmetric: bool = False, ordered: bool = False, seed: int = 0
) -> GroupedWeight:
    """Random codes; symmetric ones have the middle for a zero, ordered ones a permutation of the inputs."""
    random = np.random.default_rng(seed)
    codes = packed(random.integers(0, 1 << bits, (rows, columns)).astype(np.uint8), bits)
    shape = rows, columns // size
    zeros = np.full(shape, 1 << (bits - 1), np.uint8) if symmetric else random.integers(0, 1 << bits, shape).astype(np.uint8)
    scales = (random.standard_normal(shape) * 0.1).astype(np.float16)
    order = random.permutation(columns).astype(np.intp) if ordered else None
    return GroupedWeight((rows, columns), bits, size, codes, scales, zeros, order)


def scaled(rows: int, columns: int, block: tuple[int, int], seed: int = 0) -> ScaledWeight:
    """Random e4m3, none of them NaN."""
    random = np.random.default_rng(seed)
    codes = random.integers(0, 256, (rows, columns)).astype(np.uint8)
    codes[codes & 127 == 127] = 0
    scales = random.uniform(0.001, 0.01, (-(-rows // block[0]), -(-columns // block[1]))).astype(np.float32)
    return ScaledWeight(codes, scales, block)


def dense(weight: DeviceWeight) -> np.ndarray:
    """A placed matrix as fp64 [N, K]."""
    if isinstance(weight, FloatMatrix):
        return numbers(weight.values).astype(np.float64)
    if isinstance(weight, IntegerMatrix):
        return unpack(weight).astype(np.float64)
    scales = np.repeat(np.repeat(numbers(weight.scales), weight.block[0], 0), weight.block[1], 1)
    rows, columns = weight.shape
    return numbers(weight.codes).astype(np.float64) * scales[:rows, :columns]


def unpack(weight: IntegerMatrix) -> NDArray[np.float32]:
    """The weights as fp32 [N, K], in the order of the inputs."""
    (rows, columns), form = weight.shape, weight.form
    size = form.size or columns
    codes = _unplane(weight.low, form.low, weight)
    if weight.high is not None:
        codes |= _unplane(weight.high, form.high, weight) << form.low
    values = codes[:, :columns].reshape(rows, -1, size).astype(np.float32)
    if form.values:
        values = E2M1_DOUBLED[codes[:, :columns]].reshape(values.shape).astype(np.float32) + np.float32(form.centre)
    scales, zero = _unpacked_scales(weight, columns // size)
    scales, zero = scales[..., None], zero[..., None]
    dense = scales * values - zero if form.offset == "mins" else scales * (values - zero)
    dense = dense.reshape(rows, columns)
    return dense if weight.order is None else dense[:, np.argsort(weight.order.cpu().numpy())]


def _unpacked_scales(weight: IntegerMatrix, groups: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Scales of all groups, and their zeros or mins: fp32 [N, groups] each."""
    form, rows = weight.form, weight.shape[0]
    scale_words = np.ascontiguousarray(weight.scale_words.cpu().numpy().T).view(np.uint8)
    read = {
        "i8": [("scale", np.int8)],
        "e8m0": [("scale", np.uint8)],
        "u8 + min": [("scale", np.uint8), ("zero", np.uint8)],
        "fp16": [("scale", np.float16)],
        "fp16 + min": [("scale", np.float16), ("zero", np.float16)],
        "fp16 + zero": [("scale", np.float16), ("zero", np.uint16)],
        "fp32": [("scale", np.float32)],
        "fp32 + zero": [("scale", np.float32), ("zero", np.uint32)],
    }
    records = scale_words[:, : groups * GROUP_BYTES[form.scale_type]].view(np.dtype(read[form.scale_type]))
    scales = E8M0_HALVED[records["scale"]] if form.scale_type == "e8m0" else records["scale"].astype(np.float32)
    zero = records["zero"].astype(np.float32) if "zero" in (records.dtype.names or ()) else np.full_like(scales, form.centre)
    if weight.super_scales is not None:
        super_scales = np.ascontiguousarray(weight.super_scales.cpu().numpy().T).view(np.float16).reshape(rows, -1, 2).astype(np.float32)
        super_scales = np.repeat(super_scales, form.superblock // form.size, axis=1)
        scales *= super_scales[..., 0]
        zero = zero * super_scales[..., 1] if form.offset == "mins" else zero
    return scales, zero


def _unplane(plane: torch.Tensor, bits: int, weight: IntegerMatrix) -> NDArray[np.uint8]:
    """The inverse of `integers._plane`: uint8 [N, tiles · tile]."""
    packed = plane.cpu().numpy()
    tiles, rows, _ = packed.shape
    runs = packed.reshape(tiles, rows, -1, 1, weight.width)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    codes: NDArray[np.uint8] = (runs >> shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(tiles, rows, -1).swapaxes(0, 1).reshape(rows, -1)
