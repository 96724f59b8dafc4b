"""Helpers of all launchers: block sizes, device capabilities, checks of shapes before addresses leave Python.

A launcher allocates nothing, never waits for the device and never looks at its data; it writes to the outputs it is given. Rows may be
strided, numbers of a row are contiguous. Zero rows launch nothing.
"""

from functools import lru_cache
from typing import Final

import torch

INTERPRETER_CAPABILITY: Final = 90
"""Triton's interpreter, which runs on CPU tensors, takes the branches of a Hopper."""


@lru_cache(maxsize=64)
def capability(device: torch.device) -> int:
    """10 · major + minor of the device's compute capability: 80 for an A100, 90 for an H100 or H200."""
    if device.type == "cpu":
        return INTERPRETER_CAPABILITY
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def native_fp8(device: torch.device) -> bool:
    """True where the device converts e4m3 in hardware: Ada and later."""
    return capability(device) >= 89


def power_of_2(number: int) -> int:
    """The least power of two that is at least `number`; 1 for 0."""
    return 1 << max(0, number - 1).bit_length()


def ceil_div(number: int, divisor: int) -> int:
    """⌈number / divisor⌉."""
    return -(-number // divisor)


def warps(numbers: int) -> int:
    """Warps of a program that holds so many numbers: 4 … 16, at about 8 to 32 numbers per thread."""
    return 4 if numbers <= 4096 else 8 if numbers <= 8192 else 16


def rows_of(*tensors: torch.Tensor) -> int:
    """Number of rows of all tensors. ValueError unless they agree and each row is contiguous."""
    rows = {tensor.shape[0] for tensor in tensors}
    if len(rows) != 1 or any(tensor.shape[0] > 1 and tensor.stride(-1) != 1 for tensor in tensors):
        raise ValueError(f"rows differ, or are not contiguous: {[(tuple(t.shape), t.stride()) for t in tensors]}")
    return rows.pop()


def same_width(*tensors: torch.Tensor) -> int:
    """The last dimension of all tensors. ValueError unless they agree."""
    widths = {tensor.shape[-1] for tensor in tensors}
    if len(widths) != 1:
        raise ValueError(f"widths differ: {[tuple(tensor.shape) for tensor in tensors]}")
    return widths.pop()


def codes_of(tensor: torch.Tensor) -> torch.Tensor:
    """fp8 numbers as bytes uint8, which kernels take: an A100 has no fp8 type."""
    return tensor.view(torch.uint8)
