"""Rotary position embedding, and writes to the KV cache: norms of heads, rotation and write in one launch."""

import math

import torch
import triton
import triton.language as tl

from ridgeline.compute.cuda.cache import CacheLayer
from ridgeline.compute.cuda.triton.dependent import after_previous
from ridgeline.compute.cuda.triton.formulas import round_even, to_fp8
from ridgeline.compute.cuda.triton.launch import BoundLaunch, Run, ceil_div, codes_of, native_fp8, nothing, power_of_2, rows_of
from ridgeline.facts.model import Rope

HEAD_NUMBERS = 1024
"""Numbers that a program takes, about: as many heads of a token."""


def frequencies(rope: Rope, device: torch.device) -> torch.Tensor:
    """fp64 [dim / 2]: rotation of each pair of a head per position, in full turns. For `rotation`."""
    half = rope.dim // 2
    divisors = rope.divisors or (1.0,) * half
    result = [rope.base ** (-i / half) / divisor / (2 * math.pi) for i, divisor in enumerate(divisors)]
    return torch.tensor(result, dtype=torch.float64, device=device)


@triton.jit
def rotation_kernel(positions, frequencies, out, scale, out_stride, HALF: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Each program: one token. Full turns are subtracted in double precision, which leaves a small angle."""
    after_previous(PDL)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    mask = at < HALF
    turns = tl.load(positions + row).to(tl.float64) * tl.load(frequencies + at, mask=mask, other=0.0)
    angle = ((turns - tl.floor(turns + 0.5)) * 6.283185307179586).to(tl.float32)
    place = out + row * out_stride + at
    tl.store(place, tl.cos(angle) * scale, mask=mask)
    tl.store(place + HALF, tl.sin(angle) * scale, mask=mask)


def rotation(positions: torch.Tensor, frequencies: torch.Tensor, scale: float, out: torch.Tensor) -> Run:
    """The launch of positions int32 [T] or [1, T], `frequencies(rope)`, `rope.scale` → out fp32 [T, dim]: the cosines of a head's
    pairs, then their sines."""
    at, half = positions.view(-1), len(frequencies)
    if not rows_of(at, out) or out.shape[1] != 2 * half:
        return nothing
    constants = {"HALF": half, "BLOCK": power_of_2(half)}
    return BoundLaunch(rotation_kernel, (len(at),), (at, frequencies, out, scale, out.stride(0)), constants, num_warps=1)


@triton.jit
def rotated_heads(
    x, weight, table, heads, eps, HEAD: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr, FIRST,
    NORM: tl.constexpr,
):  # fmt: skip
    """Heads FIRST … FIRST + HEADS of the token at x, fp32 [HEADS, BLOCK]: normalised where NORM, rotated by `table`."""
    head = FIRST + tl.arange(0, HEADS)
    at = tl.arange(0, BLOCK)
    whole = (head < heads)[:, None] & (at < HEAD)[None, :]
    place = x + head[:, None] * HEAD
    result = tl.load(place + at[None, :], mask=whole, other=0.0).to(tl.float32)
    if NORM:
        inverse = tl.rsqrt(tl.sum(result * result, axis=1) / HEAD + eps)[:, None]
        result = result * inverse * tl.load(weight + at, mask=at < HEAD, other=0.0).to(tl.float32)[None, :]
    if HALF:
        first = at < HALF
        is_rotated = at < 2 * HALF
        other = tl.where(first, at + HALF, at - HALF)
        pair = tl.where(first, at, at - HALF)
        partner = tl.load(place + other[None, :], mask=whole & is_rotated[None, :], other=0.0).to(tl.float32)
        if NORM:
            partner = partner * inverse * tl.load(weight + other, mask=is_rotated, other=0.0).to(tl.float32)[None, :]
        cosine = tl.load(table + pair, mask=is_rotated, other=1.0)
        sine = tl.load(table + HALF + pair, mask=is_rotated, other=0.0)
        result = result * cosine[None, :] + partner * tl.where(first, -sine, sine)[None, :]
    return result


@triton.jit
def rotate_kernel(
    x, table, out, heads, x_stride, table_stride, out_stride, HEAD: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
    HEADS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Each program: `HEADS` heads of one token."""
    after_previous(PDL)
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * HEADS
    result = rotated_heads(x + row * x_stride, x, table + row * table_stride, heads, 0.0, HEAD, HALF, BLOCK, HEADS, first, False)
    head, at = first + tl.arange(0, HEADS)[:, None], tl.arange(0, BLOCK)[None, :]
    tl.store(out + row * out_stride + head * HEAD + at, result.to(out.dtype.element_ty), mask=(head < heads) & (at < HEAD))


def rotate(x: torch.Tensor, rotation: torch.Tensor, head_dim: int, out: torch.Tensor) -> Run:
    """The launch of x [T, H · head_dim] by `rotation` [T, dim], into `out`, which may not overlap x. Su et al. 2021, halves as pairs."""
    rows, heads, block = rows_of(x, rotation, out), x.shape[1] // head_dim, power_of_2(head_dim)
    heads_per_program = _heads_per_program(heads, block)
    if not rows:
        return nothing
    arguments = (x, rotation, out, heads, x.stride(0), rotation.stride(0), out.stride(0))
    constants = {"HEAD": head_dim, "HALF": rotation.shape[1] // 2, "BLOCK": block, "HEADS": heads_per_program}
    return BoundLaunch(rotate_kernel, (rows, ceil_div(heads, heads_per_program)), arguments, constants)


@triton.jit
def write_heads(result, numbers, scales, mask, head_mask, KIND: tl.constexpr, NATIVE: tl.constexpr):
    """fp32 [heads, D] to the cache: `numbers` [heads, D] and, for int8, `scales` [heads] are addresses; `head_mask` masks heads."""
    if KIND == "fp8":
        tl.store(numbers, to_fp8(result, NATIVE), mask=mask)
    elif KIND == "int8":
        size = tl.abs(result)
        # NaN fails every comparison: a head with a number that is not finite gets the scale NaN, and codes 0.
        finite = tl.sum((size < float("inf")).to(tl.int32) - 1, axis=1) == 0
        largest = tl.max(tl.where(finite[:, None], size, 0.0), axis=1)
        invertible = largest > 1e-36
        inverse = tl.where(invertible, 127.0 / tl.where(invertible, largest, 1.0), 0.0)
        codes = round_even(tl.where(finite[:, None], result, 0.0) * inverse[:, None])
        tl.store(numbers, codes.to(tl.int32).to(tl.int8), mask=mask)
        tl.store(scales, tl.where(finite, tl.where(invertible, largest / 127.0, 0.0), float("nan")), mask=head_mask)
    else:
        tl.store(numbers, result.to(numbers.dtype.element_ty), mask=mask)


@triton.jit
def rotate_write_kernel(
    q, k, v, table, slots, q_out, keys, values, key_scales, value_scales, q_weight, k_weight, eps, q_heads, kv_heads, q_stride, k_stride,
    v_stride, table_stride, out_stride, block_stride, scale_stride, HEAD: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, BLOCK_TOKENS: tl.constexpr, KIND: tl.constexpr, NORM_Q: tl.constexpr,
    NORM_K: tl.constexpr, VALUES: tl.constexpr, NATIVE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Each program: some heads of one token, of q (the first programs) or of k and, where VALUES are apart from keys, v."""
    after_previous(PDL)
    row = tl.program_id(0).to(tl.int64)
    table += row * table_stride
    at = tl.arange(0, BLOCK)[None, :]
    q_programs = tl.cdiv(q_heads, Q_HEADS)
    if tl.program_id(1) < q_programs:
        q_first = tl.program_id(1) * Q_HEADS
        rotated = rotated_heads(q + row * q_stride, q_weight, table, q_heads, eps, HEAD, HALF, BLOCK, Q_HEADS, q_first, NORM_Q)
        q_head = q_first + tl.arange(0, Q_HEADS)[:, None]
        q_place = q_out + row * out_stride + q_head * HEAD + at
        tl.store(q_place, rotated.to(q_out.dtype.element_ty), mask=(q_head < q_heads) & (at < HEAD))
    else:
        first = (tl.program_id(1) - q_programs) * KV_HEADS
        key = rotated_heads(k + row * k_stride, k_weight, table, kv_heads, eps, HEAD, HALF, BLOCK, KV_HEADS, first, NORM_K)
        if VALUES:
            value = rotated_heads(v + row * v_stride, v, table, kv_heads, eps, HEAD, 0, BLOCK, KV_HEADS, first, False)
        head = first + tl.arange(0, KV_HEADS)
        head_mask, mask = head < kv_heads, (head < kv_heads)[:, None] & (at < HEAD)
        slot = tl.load(slots + row)
        block_id, offset = slot // BLOCK_TOKENS, slot % BLOCK_TOKENS
        place = block_id * block_stride + (offset * kv_heads + head)[:, None] * HEAD + at
        scale_place = block_id * scale_stride + offset * kv_heads + head
        write_heads(key, keys + place, key_scales + scale_place, mask, head_mask, KIND, NATIVE)
        if VALUES:
            write_heads(value, values + place, value_scales + scale_place, mask, head_mask, KIND, NATIVE)


def rotate_write(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rotation: torch.Tensor, slots: torch.Tensor, layer: CacheLayer, head_dim: int,
    q_out: torch.Tensor, q_norm: torch.Tensor | None = None, k_norm: torch.Tensor | None = None, eps: float = 0.0,
) -> Run:  # fmt: skip
    """The launch of q [T, H · head_dim] rotated into `q_out`, k rotated and v [T, KV heads · head_dim] into `slots` int64 [T] of a
    cache layer.

    `q_norm`, `k_norm` [head_dim]: heads are first divided by their root mean square and multiplied by these. `q_out` may not overlap q.
    """
    return _write(q, k, v, rotation, slots, layer, head_dim, q_out, (q_norm, k_norm), eps)


def kv_write(k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, layer: CacheLayer) -> Run:
    """The launch of k, v [T, KV heads · head_dim] into the slots int64 [T] of a cache layer: as they are, rounded to the cache's type. Of a
    latent v is part of k."""
    return _write(k[:, :0], k, k if layer.latent else v, None, slots, layer, layer.keys.shape[3], k[:, :0], (None, None), 0.0)


def _write(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rotation: torch.Tensor | None, slots: torch.Tensor, layer: CacheLayer, head_dim: int,
    q_out: torch.Tensor, norms: tuple[torch.Tensor | None, torch.Tensor | None], eps: float,
) -> Run:  # fmt: skip
    table = k if rotation is None else rotation
    rows, q_heads, kv_heads, block = rows_of(q, k, v, table, slots, q_out), q.shape[1] // head_dim, layer.kv_heads, power_of_2(head_dim)
    if (k.shape[1], v.shape[1], layer.keys.shape[3]) != (kv_heads * head_dim, kv_heads * head_dim, head_dim):
        raise ValueError(f"k {tuple(k.shape)} and v {tuple(v.shape)} for a cache of {kv_heads} heads x {layer.keys.shape[3]}")
    if not rows:
        return nothing
    fp8, scales = layer.keys.dtype == torch.float8_e4m3fn, layer.key_scales
    keys, values = (codes_of(layer.keys), codes_of(layer.values)) if fp8 else (layer.keys, layer.values)
    of_q, of_kv = _heads_per_program(q_heads, block), _heads_per_program(kv_heads, block)
    arguments = (
        q, k, v, table, slots, q_out, keys, values, keys if scales is None else scales,
        values if layer.value_scales is None else layer.value_scales, *(k if norm is None else norm for norm in norms), eps, q_heads,
        kv_heads, q.stride(0), k.stride(0), v.stride(0), table.stride(0), q_out.stride(0), keys.stride(0),
        0 if scales is None else scales.stride(0),
    )  # fmt: skip
    constants = {
        "HEAD": head_dim, "HALF": 0 if rotation is None else rotation.shape[1] // 2, "BLOCK": block, "Q_HEADS": of_q, "KV_HEADS": of_kv,
        "BLOCK_TOKENS": layer.block_tokens, "KIND": "fp8" if fp8 else "plain" if scales is None else "int8",
        "NORM_Q": norms[0] is not None, "NORM_K": norms[1] is not None, "VALUES": not layer.latent,
        "NATIVE": native_fp8(k.device),
    }  # fmt: skip
    return BoundLaunch(rotate_write_kernel, (rows, ceil_div(q_heads, of_q) + ceil_div(kv_heads, of_kv)), arguments, constants)


def _heads_per_program(heads: int, block: int) -> int:
    """Heads per program."""
    return min(power_of_2(heads), max(1, HEAD_NUMBERS // block))
