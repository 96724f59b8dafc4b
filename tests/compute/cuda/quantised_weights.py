"""Stored matrices of tests: blocks with sane scales, grouped integers, fp8."""

import numpy as np
import torch
from numpy.typing import NDArray
from tensors import numbers

from ridgeline.compute.cuda.integers import HEAD_BYTES, Integers
from ridgeline.compute.cuda.weights import DeviceWeight, Floats
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
    if isinstance(weight, Floats):
        return numbers(weight.values).astype(np.float64)
    if isinstance(weight, Integers):
        return unpack(weight).astype(np.float64)
    scales = np.repeat(np.repeat(numbers(weight.scales), weight.block[0], 0), weight.block[1], 1)
    rows, columns = weight.shape
    return numbers(weight.codes).astype(np.float64) * scales[:rows, :columns]


def unpack(weight: Integers) -> NDArray[np.float32]:
    """The weights as fp32 [N, K], in the order of the inputs."""
    (rows, columns), form = weight.shape, weight.form
    size = form.size or columns
    codes = _unplane(weight.low, form.low, weight)
    if weight.high is not None:
        codes |= _unplane(weight.high, form.high, weight) << form.low
    values = codes[:, :columns].reshape(rows, -1, size).astype(np.float32)
    scales, less = _unheaded(weight, columns // size)
    scales, less = scales[..., None], less[..., None]
    dense = scales * values - less if form.zero == "mins" else scales * (values - less)
    dense = dense.reshape(rows, columns)
    return dense if weight.order is None else dense[:, np.argsort(weight.order.cpu().numpy())]


def _unheaded(weight: Integers, groups: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Scales of all groups, and their zeros or mins: fp32 [N, groups] each."""
    form, rows = weight.form, weight.shape[0]
    heads = np.ascontiguousarray(weight.heads.cpu().numpy().T).view(np.uint8)
    read = {
        "byte": [("scale", np.int8)],
        "bytes": [("scale", np.uint8), ("less", np.uint8)],
        "half": [("scale", np.float16)],
        "halves": [("scale", np.float16), ("less", np.float16)],
        "half, zero": [("scale", np.float16), ("less", np.uint16)],
        "single": [("scale", np.float32)],
        "single, zero": [("scale", np.float32), ("less", np.uint32)],
    }
    records = heads[:, : groups * HEAD_BYTES[form.head]].view(np.dtype(read[form.head]))
    scales = records["scale"].astype(np.float32)
    less = records["less"].astype(np.float32) if "less" in (records.dtype.names or ()) else np.full_like(scales, form.centre)
    if weight.bases is not None:
        bases = np.ascontiguousarray(weight.bases.cpu().numpy().T).view(np.float16).reshape(rows, -1, 2).astype(np.float32)
        bases = np.repeat(bases, form.base // form.size, axis=1)
        scales *= bases[..., 0]
        less = less * bases[..., 1] if form.zero == "mins" else less
    return scales, less


def _unplane(plane: torch.Tensor, bits: int, weight: Integers) -> NDArray[np.uint8]:
    """The inverse of `integers._plane`: uint8 [N, tiles · tile]."""
    packed = plane.cpu().numpy()
    tiles, rows, _ = packed.shape
    runs = packed.reshape(tiles, rows, -1, 1, weight.width)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    codes: NDArray[np.uint8] = (runs >> shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(tiles, rows, -1).swapaxes(0, 1).reshape(rows, -1)
