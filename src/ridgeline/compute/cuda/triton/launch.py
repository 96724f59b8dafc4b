"""Helpers of all launchers: block sizes, device capabilities, checks of shapes before addresses leave Python, and launches themselves.

A launcher returns its launch, which may be run any number of times and looks at no argument again. A launch allocates nothing, never waits
for the device and never looks at its data; it writes to the outputs it was given. Rows may be strided, numbers of a row are contiguous.
Zero rows launch nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import torch
from triton.runtime.jit import JITFunction

INTERPRETER_CAPABILITY: Final = 90
"""Triton's interpreter, which runs on CPU tensors, takes the branches of a Hopper."""

PROGRAMMATIC_FROM: Final = 90
"""The least capability of programmatic dependent launches."""

Run = Callable[[], None]
"""A launch, or a few."""


@lru_cache(maxsize=64)
def capability(device: torch.device) -> int:
    """10 · major + minor of the device's compute capability: 80 for an A100, 90 for an H100 or H200."""
    if device.type == "cpu":
        return INTERPRETER_CAPABILITY
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


@lru_cache(maxsize=64)
def multiprocessors(device: torch.device) -> int:
    """Multiprocessors of the device; the interpreter has those of an H100."""
    return 132 if device.type == "cpu" else int(torch.cuda.get_device_properties(device).multi_processor_count)


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


class BoundLaunch:
    """A launch of a kernel over arguments that stay as they are: the second one and later ones do not look at them again.

    arguments  in the kernel's order; constants: the parameters behind them, by name; options: num_warps and the like

    Kernels have a last parameter `PDL`: where the device can, they are launched before the one ahead of them has ended, and wait for that
    themselves (`dependent.after_previous`).

    ValueError where constants are not in the kernel's order, in which compiled kernels take them.
    """

    __slots__ = ("_again", "_arguments", "_constants", "_grid", "_kernel", "_options")

    def __init__(
        self, kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: Mapping[str, Any], **options: int
    ) -> None:
        overlaps = isinstance(kernel, JITFunction) and capability(arguments[0].device) >= PROGRAMMATIC_FROM
        constants = {**constants, "PDL": overlaps}
        if kernel.arg_names != [*kernel.arg_names[: len(arguments)], *constants]:
            raise ValueError(f"the kernel takes {kernel.arg_names[len(arguments) :]}, not {[*constants]}")
        self._kernel, self._grid, self._arguments = kernel, (*grid, 1, 1)[:3], arguments
        self._constants, self._options = constants, options | ({"launch_pdl": True} if overlaps else {})
        self._again: Any = None

    def __call__(self) -> None:
        if self._again is not None:
            self._again(*self._arguments, *self._constants.values())
            return
        compiled = self._kernel[self._grid](*self._arguments, **self._constants, **self._options)
        if compiled is not None:  # the interpreter compiles nothing
            self._again = compiled[self._grid]


def nothing() -> None:
    """The launch of zero rows."""


def one_by_one(launches: Sequence[Run]) -> Run:
    """All launches, one after the other."""
    if len(launches) == 1:
        return launches[0]

    def run() -> None:
        for launch in launches:
            launch()

    return run
