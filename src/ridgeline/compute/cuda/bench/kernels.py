"""Kernels one by one in the shapes of a model, with the bytes and operations of each; and the ceilings of a device that they are held
against.

Owns the cases. A case is built only when it is its turn, and frees its memory behind it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import ceil, gcd
from typing import Any, Final

import numpy as np
import torch

from ridgeline.compute.cuda.bench.timing import seconds_of
from ridgeline.compute.cuda.cache import CacheLayer, DeviceKVCache, allocate_device_kv
from ridgeline.compute.cuda.device import DTYPES, Device
from ridgeline.compute.cuda.integers import IntegerMatrix, pack_blocks
from ridgeline.compute.cuda.linear import gated_bytes, gated_unit, linear, scratch_bytes
from ridgeline.compute.cuda.step import COLUMN_DTYPES, SAMPLING_COLUMNS
from ridgeline.compute.cuda.triton import attention as attend
from ridgeline.compute.cuda.triton import elements, norm, quantise, rope, sampling
from ridgeline.compute.cuda.triton.copy import copy_blocks
from ridgeline.compute.cuda.weights import DeviceWeight, FloatMatrix, Fp8Matrix
from ridgeline.compute.quant.formats import FORMATS
from ridgeline.compute.quant.weight import CodedWeight
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.facts.model import ModelFacts

BLOCK_TOKENS: Final = 16
CACHED_BYTES: Final = 128 << 20
"""More than a device's caches hold: launches take turns over copies of their inputs."""
MAX_COPIES: Final = 16
PACKED: Final = ("Q4_0", "Q8_0", "Q4_K", "Q6_K")
PACKED_ROWS: Final = 64
FINITE_BYTES: Final = 0x3C
"""Random bytes below this are halves below 1, whatever a format takes for its scales."""
BF16: Final = DTYPES["bf16"]

Run = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Extent:
    """Sizes of a ceiling: bytes of the buffer that is copied, side of the square matrices that are multiplied."""

    copy_bytes: int = 1 << 30
    side: int = 8192


FULL: Final = Extent()
SMALL: Final = Extent(1 << 12, 32)
"""Sizes for interpreted kernels."""

CEILINGS: Final = ("copy", "host", "bf16", "fp8")


def ceiling(name: str, device: Device, extent: Extent = FULL) -> float:
    """Bytes per second of a copy within the device (read and written) or from the host's pinned memory (read), or operations per second of
    a product, where a multiply-add counts two. `name`: one of `CEILINGS`."""
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
    """A launch that multiplies `rows` activations with a random matrix [outputs, inputs] of bf16, or of fp8 with activations in fp8."""
    dtype = DTYPES["bf16"]
    weight = matrix(kind, outputs, inputs, device)
    out, scratch = device.empty(rows, outputs, dtype=dtype), device.empty(0, dtype=torch.uint8)
    x = device.empty(rows, inputs, dtype=dtype).normal_()
    if kind == "fp8":
        codes, scales = x.to(DTYPES["f8"]), torch.ones(rows, dtype=torch.float32, device=device.torch)
        return linear((codes, scales), weight, out, scratch, invariant=invariant)
    return linear(x, weight, out, scratch, invariant=invariant)


def matrix(kind: str, outputs: int, inputs: int, device: Device) -> DeviceWeight:
    """Random numbers [outputs, inputs] as bf16, or as e4m3 with a scale per row."""
    values = device.empty(outputs, inputs, dtype=DTYPES["bf16"]).normal_()
    if kind != "fp8":
        return FloatMatrix(values)
    return Fp8Matrix(values.to(DTYPES["f8"]), torch.ones(outputs, 1, dtype=torch.float32, device=device.torch), (1, inputs))


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel in one shape.

    make           a launch over memory of its own
    bytes, flops   that it must move and compute
    ceiling        its ceiling of arithmetic: bf16 or fp8
    memory         its ceiling of memory: copy or host
    """

    op: str
    shape: str
    make: Callable[[], Run]
    bytes: int
    flops: int = 0
    ceiling: str = "bf16"
    memory: str = "copy"

    def runs(self, real: bool) -> list[Run]:
        """Launches of the same case over more memory than the caches hold; one where the device is not real."""
        return [self.make() for _ in range(max(1, min(MAX_COPIES, ceil(CACHED_BYTES / max(1, self.bytes)))) if real else 1)]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the cases: tokens of products and of ops that work row by row, (rows, positions) of attention, tokens of prompts."""

    tokens: tuple[int, ...] = (1, 32, 256, 2048)
    contexts: tuple[tuple[int, int], ...] = ((1, 1024), (32, 1024), (128, 1024), (256, 1024), (1, 8192))
    prompts: tuple[int, ...] = (2048, 8192)


def cases(facts: ModelFacts, device: Device, sizes: Sizes) -> Iterator[Case]:
    """All of them, the most important first."""
    yield from _products(facts, device, sizes)
    yield from _attention(facts, device, sizes)
    yield from _rows(facts, device, sizes)
    yield from _rest(facts, device, sizes)


def _products(facts: ModelFacts, device: Device, sizes: Sizes) -> Iterator[Case]:
    queries, keys = facts.heads * facts.head_dim, facts.kv_heads * facts.head_dim
    shapes = {
        "qkv": (queries + 2 * keys, facts.hidden), "output": (facts.hidden, queries), "gate + up": (2 * facts.ffn, facts.hidden),
        "down": (facts.hidden, facts.ffn), "head": (facts.vocab, facts.hidden),
    }  # fmt: skip
    for kind, size in (("bf16", 2), ("fp8", 1)):
        for name, (outputs, inputs) in shapes.items():
            for m in sizes.tokens if name != "head" else sizes.tokens[:3]:
                total = size * (outputs * inputs + m * inputs) + 2 * m * outputs
                make = partial(product, kind, m, outputs, inputs, device)
                yield Case(f"linear {kind} {name}", f"{m} x {outputs} x {inputs}", make, total, 2 * m * outputs * inputs, kind)
    outputs, inputs = shapes["gate + up"]
    for kind, size in (("bf16", 2), ("fp8", 1)):
        for m in sizes.tokens:
            total = size * (outputs * inputs + m * inputs) + 2 * m * outputs
            make = partial(product, kind, m, outputs, inputs, device, invariant=True)
            yield Case(f"linear {kind} invariant", f"{m} x {outputs} x {inputs}", make, total, 2 * m * outputs * inputs, kind)
    for kind, size in (("bf16", 2), ("fp8", 1)):
        for m in sizes.tokens:
            total = size * (outputs * inputs + m * inputs) + m * outputs
            make = partial(_gated, kind, m, outputs, inputs, device)
            yield Case(f"linear_glu {kind}", f"{m} x {outputs} x {inputs}", make, total, 2 * m * outputs * inputs, kind)
    for m in sizes.tokens:
        total = facts.hidden * facts.ffn + 2 * m * (facts.ffn + facts.hidden)
        make = partial(_quantising, m, facts.hidden, facts.ffn, device)
        shape = f"{m} x {facts.hidden} x {facts.ffn}"
        yield Case("linear_quantise_fp8", shape, make, total, 2 * m * facts.hidden * facts.ffn, "fp8")
    for kind in PACKED:
        if inputs % FORMATS[kind].block_elements:
            continue
        weight = IntegerMatrix.bytes_of(kind, (outputs, inputs))
        for m in sizes.tokens:
            total = weight + 2 * m * (inputs + outputs)
            make = partial(_grouped, kind, m, outputs, inputs, device)
            yield Case(f"linear {kind}", f"{m} x {outputs} x {inputs}", make, total, 2 * m * outputs * inputs)


def _gated(kind: str, rows: int, outputs: int, inputs: int, device: Device) -> Run:
    weight = matrix(kind, outputs, inputs, device)
    assert isinstance(weight, FloatMatrix | Fp8Matrix)
    out = device.empty(rows, outputs // 2, dtype=BF16)
    scratch = device.empty(gated_bytes(weight, rows, BF16), dtype=torch.uint8)
    x = _random(device, rows, inputs)
    given = x if kind != "fp8" else (x.to(DTYPES["f8"]), torch.ones(rows, dtype=torch.float32, device=device.torch))
    return gated_unit(given, weight, "silu", out, scratch)


def _quantising(rows: int, outputs: int, inputs: int, device: Device) -> Run:
    weight = matrix("fp8", outputs, inputs, device)
    x, out = _random(device, rows, inputs), device.empty(rows, outputs, dtype=BF16)
    return linear(x, weight, out, device.empty(scratch_bytes(weight, rows), dtype=torch.uint8))


def _grouped(kind: str, rows: int, outputs: int, inputs: int, device: Device) -> Run:
    weight = _integers(kind, outputs, inputs, device)
    x, out = _random(device, rows, inputs), device.empty(rows, outputs, dtype=BF16)
    return linear(x, weight, out, device.empty(scratch_bytes(weight, rows), dtype=torch.uint8))


def _integers(kind: str, outputs: int, inputs: int, device: Device) -> IntegerMatrix:
    """A packed matrix of random codes and finite scales: a packed rows, over and over."""
    rows = gcd(outputs, PACKED_ROWS)
    row_bytes = inputs // FORMATS[kind].block_elements * FORMATS[kind].block_bytes
    codes = np.random.default_rng(0).integers(0, FINITE_BYTES, (rows, row_bytes), np.uint8)
    packed = pack_blocks(CodedWeight(kind, (rows, inputs), codes), device.torch)
    repeats = (1, outputs // rows, 1)
    low, high = (None if part is None else part.repeat(repeats) for part in (packed.low, packed.high))
    scale_words, super_scales = (None if part is None else part.repeat(repeats[:2]) for part in (packed.scale_words, packed.super_scales))
    assert low is not None and scale_words is not None
    return IntegerMatrix(kind, packed.form, (outputs, inputs), packed.width, low, high, scale_words, super_scales)


def _attention(facts: ModelFacts, device: Device, sizes: Sizes) -> Iterator[Case]:
    heads, size = facts.heads, facts.head_dim
    for kind, width in (("bf16", 2), ("fp8", 1)):
        for rows, context in sizes.contexts:
            total = rows * (context * 2 * facts.kv_heads * size * width + 4 * heads * size)
            make = partial(_attend, facts, device, kind, rows, 1, context)
            yield Case(f"attention {kind} decode", f"{rows} rows, {context} positions", make, total, 4 * rows * heads * size * context)
        for tokens in sizes.prompts:
            total = tokens * (2 * facts.kv_heads * size * width + 4 * heads * size)
            make = partial(_attend, facts, device, kind, 1, tokens, tokens)
            yield Case(f"attention {kind} prompt", f"{tokens} tokens", make, total, 2 * heads * size * tokens * (tokens + 1))


def _attend(facts: ModelFacts, device: Device, kind: str, rows: int, queries: int, context: int) -> Run:
    cache = _cache(facts, device, kind, rows, context)
    blocks = -(-context // BLOCK_TOKENS)
    tables = torch.arange(1, 1 + rows * blocks, dtype=torch.int32, device=device.torch).view(rows, blocks)
    q = _random(device, rows * queries, facts.heads * facts.head_dim)
    out = torch.empty_like(q)
    shape = {"heads": facts.heads, "kv_heads": facts.kv_heads, "head_dim": facts.head_dim}
    most: dict[str, Any] = {"max_q": queries, "max_kv": blocks * BLOCK_TOKENS}
    work = device.empty(attend.work_bytes(rows * queries, rows, **shape, **most, device=device.torch), dtype=torch.uint8)
    row, queries_of = (torch.arange(count, dtype=torch.int32, device=device.torch) for count in (rows, rows + 1))
    return attend.attention(
        q, cache.layer(0), tables, row, queries_of * queries, torch.full((rows,), context, dtype=torch.int32, device=device.torch),
        head_dim=facts.head_dim, scale=facts.attn_scale, window=0, softcap=0.0, out=out, work=work, max_q=queries,
        counters=attend.counters_of(rows * queries, rows, facts.kv_heads, device.torch),
    )  # fmt: skip


def _cache(facts: ModelFacts, device: Device, kind: str, rows: int, context: int) -> DeviceKVCache:
    """One layer for so many sequences."""
    shape = KVShape((KVGroup("full", (0,), 0),), BLOCK_TOKENS, rows * -(-context // BLOCK_TOKENS), b"")
    cache = allocate_device_kv(shape, facts.cached, kind, device.torch)
    if kind == "fp8":
        cache.pool.random_(0, 0x40)  # codes of numbers below 2
    else:
        cache.pool.view(DTYPES[kind]).normal_()
    return cache


def _rows(facts: ModelFacts, device: Device, sizes: Sizes) -> Iterator[Case]:
    """Ops that work row by row."""
    hidden, ffn = facts.hidden, facts.ffn
    for m in sizes.tokens:
        both, wide = f"{m} x {hidden}", f"{m} x {ffn}"
        yield Case("rms_norm", both, partial(_norm, device, m, hidden, 0), 4 * m * hidden)
        yield Case("add_rms_norm", both, partial(_norm, device, m, hidden, 1), 8 * m * hidden)
        yield Case("add_rms_norm_fp8", both, partial(_norm, device, m, hidden, 2), 7 * m * hidden)
        yield Case("glu", wide, partial(_glu, device, m, ffn), 6 * m * ffn)
        yield Case("quantise_fp8", wide, partial(_quantise, device, m, ffn), 3 * m * ffn)
        for kind, size in (("bf16", 2), ("fp8", 1)):
            total = m * facts.head_dim * (4 * facts.heads + (4 + 2 * size) * facts.kv_heads)
            yield Case(f"rotate_write {kind}", f"{m} tokens", partial(_rotate_write, facts, device, kind, m), total)
        yield Case("select", both, partial(_select, device, m, hidden), 4 * m * hidden)


def _norm(device: Device, m: int, width: int, kind: int) -> Run:
    x, y, out = (_random(device, m, width) for _ in range(3))
    weight = torch.ones(width, device=device.torch)
    if kind == 0:
        return norm.rms_norm(x, weight, 1e-6, out)
    if kind == 1:
        return norm.add_rms_norm(x, y, weight, 1e-6, torch.empty_like(x), out)
    codes, scales = _codes(device, m, width)
    return norm.add_rms_norm_fp8(x, y, weight, 1e-6, torch.empty_like(x), codes, scales)


def _glu(device: Device, m: int, width: int) -> Run:
    gate, up = _random(device, m, 2 * width).split(width, dim=1)
    return elements.glu(gate, up, "silu", device.empty(m, width, dtype=BF16))


def _quantise(device: Device, m: int, width: int) -> Run:
    return quantise.quantise_fp8(_random(device, m, width), *_codes(device, m, width))


def _select(device: Device, m: int, width: int) -> Run:
    index = torch.arange(m, dtype=torch.int32, device=device.torch)
    return elements.select(_random(device, m, width), index, device.empty(m, width, dtype=BF16))


def _rotate_write(facts: ModelFacts, device: Device, kind: str, m: int) -> Run:
    queries, keys = facts.heads * facts.head_dim, facts.kv_heads * facts.head_dim
    q, k, v = _random(device, m, queries + 2 * keys).split((queries, keys, keys), dim=1)
    turned = torch.rand(m, next(iter(facts.rope.values())).dim, device=device.torch)
    slots = torch.arange(BLOCK_TOKENS, BLOCK_TOKENS + m, device=device.torch)
    layer: CacheLayer = _cache(facts, device, kind, 1, m).layer(0)
    return rope.rotate_write(q, k, v, turned, slots, layer, facts.head_dim, device.empty(m, queries, dtype=BF16))


def _rest(facts: ModelFacts, device: Device, sizes: Sizes) -> Iterator[Case]:
    for m in sizes.tokens[:3]:
        for name, temperature, top_p in (("greedy", 0.0, 1.0), ("temperature", 0.8, 1.0), ("top_p", 0.8, 0.9)):
            make = partial(_sample, device, m, facts.vocab, temperature, top_p)
            yield Case(f"sample {name}", f"{m} x {facts.vocab}", make, 2 * m * facts.vocab)
    blocks = 64 if device.real else 2
    moved = 2 * blocks * BLOCK_TOKENS * facts.kv_heads * facts.head_dim * 2
    yield Case("copy_blocks", f"{blocks} blocks of a layer to the host", partial(_copies, facts, device, blocks), moved, memory="host")


def _sample(device: Device, m: int, vocab: int, temperature: float, top_p: float) -> Run:
    columns = {name: device.zeros(m, dtype=COLUMN_DTYPES[kind][1]) for name, kind in SAMPLING_COLUMNS.items()}
    columns["temperature"].fill_(temperature)
    columns["top_p"].fill_(top_p)
    position, ids = (device.zeros(m, dtype=torch.int32) for _ in range(2))
    scratch = device.empty(sampling.scratch_bytes(m), dtype=torch.uint8)
    return sampling.sample(_random(device, m, vocab), *columns.values(), position, ids, scratch)


def _copies(facts: ModelFacts, device: Device, blocks: int) -> Run:
    pool = _cache(facts, device, "bf16", 1, blocks * BLOCK_TOKENS).pool
    host = device.host(1, 2, blocks, pool.shape[3], dtype=torch.uint8)
    first = torch.arange(blocks, dtype=torch.int32, device=device.torch)
    return partial(copy_blocks, pool, host, torch.stack([first, first + pool.shape[2]], dim=1).contiguous())


def _random(device: Device, *shape: int) -> torch.Tensor:
    return device.empty(*shape, dtype=BF16).normal_()


def _codes(device: Device, m: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    return device.empty(m, width, dtype=DTYPES["f8"]), device.empty(m, dtype=torch.float32)
