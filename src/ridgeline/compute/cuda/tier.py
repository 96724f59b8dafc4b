"""The tier of KV pages in host memory: what a plan's copies read and write beside the device's cache.

Owns the pinned memory and the way of page numbers to the device. Everything is launched on the stream that steps run on, so that copies
come behind the step before and ahead of their own. Nothing is allocated after the start, and the host waits for nothing. A kernel copies,
not the driver: a page is a piece of every layer, and one launch copies all pieces of many pages.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch

from ridgeline.compute.cuda.cache import DeviceKVCache
from ridgeline.compute.cuda.device import Device
from ridgeline.compute.cuda.triton.copy import copy_pages
from ridgeline.errors import ConfigError

MOST: Final = 4096
"""Pairs that go to the device at once; a step has more only where thousands of pages change hands in it."""

Pairs = Sequence[tuple[int, int]]


def apart(copies: Pairs) -> Iterator[slice]:
    """Cuts copies, whose order counts, into runs in which it does not: no page is written that another of the run reads or writes."""
    first, read, written = 0, set[int](), set[int]()
    for number, (source, target) in enumerate(copies):
        if source in written or target in written or target in read:
            yield slice(first, number)
            first, read, written = number, set(), set()
        read.add(source)
        written.add(target)
    if copies:
        yield slice(first, len(copies))


class HostTier:
    """`pages` pages behind those of a device's cache, in its layout: bytes [layers, 2, pages, bytes of a page]."""

    def __init__(self, cache: DeviceKVCache, pages: int, device: Device, depth: int) -> None:
        layers, planes, _, size = cache.pool.shape
        self._pool, self._device = cache.pool, device
        self._host = torch.empty((layers, planes, pages, size), dtype=torch.uint8)
        _register(self._host, device)
        self._pairs = device.empty(MOST, 2, dtype=torch.int32)
        self._ring = [(device.host(MOST, 2, dtype=torch.int32), device.event()) for _ in range(depth + 1)]
        self._turn = 0

    @property
    def nbytes(self) -> int:
        """Bytes of host memory."""
        return self._host.nbytes

    def copy(self, copies: Pairs) -> None:
        """Starts the copies (from, to), as if one after the other."""
        for first in range(0, len(copies), MOST):
            part = copies[first : first + MOST]
            pairs = self._send(part)
            for run in apart(part):
                copy_pages(self._pool, self._host, pairs[run])

    def _send(self, part: Pairs) -> torch.Tensor:
        """Pairs on the device. What lay there before has been used when they arrive, as the stream keeps order."""
        host, sent = self._ring[self._turn]
        self._turn = (self._turn + 1) % len(self._ring)
        sent.synchronize()
        host.numpy()[: len(part)] = part
        pairs: torch.Tensor = self._pairs[: len(part)]
        pairs.copy_(host[: len(part)], non_blocking=True)
        sent.record()
        return pairs

    def close(self) -> None:
        """Gives the memory back to the host, when everything launched is done. Safe to call twice."""
        if self._host.numel():
            self._device.settle()
            if self._device.real:
                torch.cuda.check_error(int(_runtime().cudaHostUnregister(self._host.data_ptr())))
            self._host = torch.empty(0, dtype=torch.uint8)


def _register(memory: torch.Tensor, device: Device) -> None:
    """Pins memory of the host where it lies: torch's own allocator of pinned memory would round it up to a power of two.

    Raises ConfigError where the system does not allow so much.
    """
    if not device.real:
        return
    refused = int(_runtime().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
    if refused:
        raise ConfigError(
            f"--swap-space: the system refuses to pin {memory.nbytes} bytes of host memory (CUDA error {refused}); lower it, or raise "
            "`ulimit -l` and the memory of the container",
            fix={"--swap-space": None},
        )


def _runtime() -> Any:
    open_runtime: Any = torch.cuda.cudart
    return open_runtime()
