"""Stored matrices of tests: blocks with sane scales, grouped integers, fp8."""

import numpy as np
from tensors import numbers

from ridgeline.compute.cuda.integers import IntegerMatrix, unpack
from ridgeline.compute.cuda.weights import DeviceWeight, FloatMatrix
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
    for place in _HALVES.get(kind, (0,)):
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
