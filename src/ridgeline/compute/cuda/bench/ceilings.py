"""What a device does at most: bytes copied, products of large matrices. Beside these every other figure stands."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from ridgeline.compute.cuda.bench.clock import seconds_of
from ridgeline.compute.cuda.device import DTYPES, Device
from ridgeline.compute.cuda.linear import linear
from ridgeline.compute.cuda.weights import DeviceWeight, Floats, Fp8


@dataclass(frozen=True, slots=True)
class Extent:
    """copy_bytes: of the buffer that is copied; side: of the square matrices that are multiplied. Large beside caches, for a GPU."""

    copy_bytes: int = 1 << 30
    side: int = 8192


FULL: Final = Extent()
SMALL: Final = Extent(1 << 12, 32)
"""Where kernels are interpreted."""

NAMES: Final = ("copy", "host", "bf16", "fp8")


def ceiling(name: str, device: Device, extent: Extent = FULL) -> float:
    """Bytes a second of a copy within the device, read and written, or from the host's pinned memory, read; operations a second of a
    product, a multiply-add being two."""
    if name == "copy":
        source = device.empty(extent.copy_bytes, dtype=torch.uint8).random_(0, 256)
        target = torch.empty_like(source)
        return 2 * extent.copy_bytes / seconds_of(device, [partial(target.copy_, source)]).best
    if name == "host":
        pinned = device.host(extent.copy_bytes // 4, dtype=torch.uint8)
        target = device.empty(len(pinned), dtype=torch.uint8)
        return len(pinned) / seconds_of(device, [partial(target.copy_, pinned, non_blocking=True)]).best
    return 2 * extent.side**3 / seconds_of(device, [product(name, extent.side, extent.side, extent.side, device)]).best


def product(kind: str, rows: int, outputs: int, inputs: int, device: Device, *, invariant: bool = False) -> Callable[[], None]:
    """What multiplies `rows` activations with a random matrix [outputs, inputs] of bf16, or of fp8 with activations in fp8."""
    dtype = DTYPES["bf16"]
    weight = matrix(kind, outputs, inputs, device)
    out, scratch = device.empty(rows, outputs, dtype=dtype), device.empty(0, dtype=torch.uint8)
    x = device.empty(rows, inputs, dtype=dtype).normal_()
    if kind == "fp8":
        codes, scales = x.to(DTYPES["f8"]), torch.ones(rows, dtype=torch.float32, device=device.torch)
        return partial(linear, (codes, scales), weight, out, scratch, invariant=invariant)
    return partial(linear, x, weight, out, scratch, invariant=invariant)


def matrix(kind: str, outputs: int, inputs: int, device: Device) -> DeviceWeight:
    """Random numbers [outputs, inputs] as bf16, or as e4m3 with a scale a row."""
    values = device.empty(outputs, inputs, dtype=DTYPES["bf16"]).normal_()
    if kind != "fp8":
        return Floats(values)
    return Fp8(values.to(DTYPES["f8"]), torch.ones(outputs, 1, dtype=torch.float32, device=device.torch), (1, inputs))
