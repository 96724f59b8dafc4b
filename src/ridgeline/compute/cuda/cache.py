"""The KV cache of a device, and its tier in host memory (`--swap-space`).

Owns the pool: bytes [layers of a group, records, blocks + 1, bytes of a block], K then V, or a latent that is both; block 0 is reserved. A
block holds its numbers [tokens of a block, KV heads, head dimension] and, for int8, behind them their fp32 scales [tokens of a block, KV
heads], so that numbers stay aligned for wide loads. slot = block id · block_tokens + offset. All groups share the pool: a block belongs to
one group at a time, and layer j of any group lies at index j. Blocks have the bytes that `planning.memory` counts.

The host tier owns pinned memory. Its copies are launched on the stream that steps run on, so that they come behind the step before and
ahead of their own. Nothing is allocated after the start, and the host waits for nothing. A kernel copies, not the driver: a block is a
piece of every layer, and one launch copies all pieces of many blocks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from ridgeline.compute.cuda.device import Device
from ridgeline.compute.cuda.triton.copy import copy_blocks
from ridgeline.core.plan import KVShape
from ridgeline.errors import ConfigError
from ridgeline.facts.model import CachedHeads

DTYPES: Final = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.float8_e4m3fn,
    "int8": torch.int8,
}
"""Types by `--kv-dtype`. fp8 is e4m3, saturated, without a scale."""

SCALE_BYTES: Final = 4
"""Bytes of the scale of an int8 head of one token."""

MAX_PAIRS: Final = 4096
"""Pairs that go to the device at once; a step rarely has more."""

Pairs = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """K and V of one layer: views [blocks + 1, tokens of a block, KV heads, head dimension]; scales without the last, int8 alone. V of a
    latent are the first numbers of its K."""

    keys: torch.Tensor
    values: torch.Tensor
    key_scales: torch.Tensor | None = None
    value_scales: torch.Tensor | None = None

    @property
    def block_tokens(self) -> int:
        """Tokens of a block."""
        return self.keys.shape[1]

    @property
    def kv_heads(self) -> int:
        """Heads of a token."""
        return self.keys.shape[2]

    @property
    def latent(self) -> int:
        """Numbers of a key that are its value too; 0: keys and values are apart."""
        own = self.values.shape[3]
        return own if own < self.keys.shape[3] else 0

    @property
    def kind(self) -> str:
        """Kind of numbers: "plain" floats, "fp8", or "int8" with scales."""
        return "int8" if self.key_scales is not None else "fp8" if self.keys.dtype == torch.float8_e4m3fn else "plain"


@dataclass(frozen=True, slots=True)
class DeviceKVCache:
    """One pool of blocks 0 … blocks."""

    pool: torch.Tensor
    type: str
    block_tokens: int
    cached: CachedHeads

    @property
    def kv_heads(self) -> int:
        """Heads of a token."""
        return self.cached.heads

    @property
    def head_dim(self) -> int:
        """Numbers of a key."""
        return self.cached.head_dim

    def layer(self, index: int) -> CacheLayer:
        """The `index`-th layer of a group."""
        records = (self.pool[index, 0], self.pool[index, self.cached.records - 1])
        keys, values = map(self._numbers, records)
        values = values[..., : self.cached.latent or None]
        return CacheLayer(keys, values, *map(self._scales, records)) if self.type == "int8" else CacheLayer(keys, values)

    def read(self, index: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of some slots of a layer, fp32 [slots, KV heads, head dimension] each: for tests."""
        layer, block, offset = self.layer(index), slots // self.block_tokens, slots % self.block_tokens
        found = []
        for records, scales in ((layer.keys, layer.key_scales), (layer.values, layer.value_scales)):
            numbers = records[block, offset].float()
            found.append(numbers if scales is None else numbers * scales[block, offset][..., None])
        return found[0], found[1]

    def _numbers(self, blocks: torch.Tensor) -> torch.Tensor:
        """The numbers of blocks [blocks + 1, bytes]."""
        typed = blocks.view(DTYPES[self.type])
        shape = (len(blocks), self.block_tokens, self.kv_heads, self.head_dim)
        return typed.as_strided(shape, (typed.stride(0), self.kv_heads * self.head_dim, self.head_dim, 1))

    def _scales(self, blocks: torch.Tensor) -> torch.Tensor:
        """The scales of int8 blocks [blocks + 1, bytes]."""
        numbers = self.block_tokens * self.kv_heads * self.head_dim
        return blocks[:, numbers:].view(torch.float32).unflatten(1, (self.block_tokens, self.kv_heads))


def block_bytes(type: str, block_tokens: int, kv_heads: int, head_dim: int) -> int:
    """Bytes of K, or of V, of one block and layer."""
    return block_tokens * kv_heads * (head_dim * DTYPES[type].itemsize + (SCALE_BYTES if type == "int8" else 0))


def allocate_device_kv(shape: KVShape, cached: CachedHeads, type: str, device: torch.device) -> DeviceKVCache:
    """A cache of `shape` on a device, of zeros; `type` is one of `DTYPES`, `cached` what a layer has of a token.

    ValueError unless all groups have equally many layers and the scales of int8 blocks are aligned.
    """
    layers = {len(group.layers) for group in shape.groups}
    if len(layers) != 1:
        raise ValueError(f"groups of one pool must have equally many layers, got {sorted(layers)}")
    if type == "int8" and shape.block_tokens * cached.heads * cached.head_dim % SCALE_BYTES:
        raise ValueError(f"int8 blocks of {shape.block_tokens} tokens x {cached.heads} heads x {cached.head_dim}: scales are unaligned")
    extent = (layers.pop(), cached.records, shape.blocks + 1, block_bytes(type, shape.block_tokens, cached.heads, cached.head_dim))
    return DeviceKVCache(torch.zeros(extent, dtype=torch.uint8, device=device), type, shape.block_tokens, cached)


def independent_runs(copies: Pairs) -> Iterator[slice]:
    """Splits ordered copies into runs whose copies may go in any order: none writes a block that another of the run reads or writes."""
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
    """`blocks` blocks behind those of a device's cache, in its layout: bytes [layers, records, blocks, bytes of a block]."""

    def __init__(self, cache: DeviceKVCache, blocks: int, device: Device, depth: int) -> None:
        layers, planes, _, size = cache.pool.shape
        self._pool, self._device = cache.pool, device
        self._host = torch.empty((layers, planes, blocks, size), dtype=torch.uint8)
        _register(self._host, device)
        self._pairs = device.empty(MAX_PAIRS, 2, dtype=torch.int32)
        self._ring = [(device.host(MAX_PAIRS, 2, dtype=torch.int32), device.event()) for _ in range(depth + 1)]
        self._next = 0

    @property
    def nbytes(self) -> int:
        """Bytes of host memory."""
        return self._host.nbytes

    def compile_kernels(self) -> None:
        """Copies padding both ways, so that no request waits for a compiler."""
        first = self._pool.shape[2]
        self.copy(((0, first), (first, 0)))
        self._device.settle()

    def copy(self, copies: Pairs) -> None:
        """Starts the copies (from, to), as if one after the other."""
        for first in range(0, len(copies), MAX_PAIRS):
            part = copies[first : first + MAX_PAIRS]
            pairs = self._send(part)
            for run in independent_runs(part):
                copy_blocks(self._pool, self._host, pairs[run])

    def _send(self, part: Pairs) -> torch.Tensor:
        """Copies pairs to the device. Earlier ones have been used when they arrive, as the stream keeps order."""
        host, sent = self._ring[self._next]
        self._next = (self._next + 1) % len(self._ring)
        sent.synchronize()
        host.numpy()[: len(part)] = part
        pairs: torch.Tensor = self._pairs[: len(part)]
        pairs.copy_(host[: len(part)], non_blocking=True)
        sent.record()
        return pairs

    def close(self) -> None:
        """Waits for all launches, and frees the host memory. Safe to call twice."""
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
    error = int(_runtime().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
    if error:
        raise ConfigError(
            f"--swap-space: {memory.nbytes} bytes of host memory cannot be pinned (CUDA error {error}); lower it, or raise "
            "`ulimit -l` and the memory of the container",
            fix={"--swap-space": None},
        )


def _runtime() -> Any:
    open_runtime: Any = torch.cuda.cudart
    return open_runtime()
