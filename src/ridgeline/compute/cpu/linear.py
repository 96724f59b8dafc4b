"""Linear layers of the native extension and their numpy references, equal bit for bit.

Owns shapes and scratch of a call; never the weights.
"""

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.cpu import ext

GROUP = 32
Q8_0_BYTES = 34
_TINY = np.float32(1e-36)

Codes = tuple[NDArray[np.int8], NDArray[np.float32]]


def quantise(x: NDArray[np.float32], *, level: str | None = None) -> Codes:
    """x fp32 [M, K] → codes int8 [M, K] and scales fp32 [M, K/32]: symmetric, absmax / 127, ties to even.

    A group with a value that is not finite gets the scale NaN and codes 0, so that whatever reads it is NaN too.
    """
    m, k = _grouped(x)
    codes, scales = np.empty((m, k), np.int8), np.empty((m, k // GROUP), np.float32)
    ext.native().quantise(
        ext.level_number(level),
        ext.address(x, np.float32, (m, k)),
        ext.address(codes, np.int8, (m, k)),
        ext.address(scales, np.float32, (m, k // GROUP)),
        m,
        k,
    )
    return codes, scales


def q8_0_linear(weights: NDArray[np.uint8], x: NDArray[np.float32], *, level: str | None = None) -> NDArray[np.float32]:
    """weights uint8 [N, K/32·34] (rows of Q8_0 blocks, rows may be strided), x fp32 [M, K] → fp32 [M, N]."""
    m, k = _grouped(x)
    n = _rows(weights, k)
    codes, scales = quantise(x, level=level)
    out = np.empty((m, n), np.float32)
    ext.native().q8_0_linear(
        ext.level_number(level),
        int(weights.ctypes.data),
        int(weights.strides[0]),
        ext.address(codes, np.int8, (m, k)),
        ext.address(scales, np.float32, (m, k // GROUP)),
        ext.address(out, np.float32, (m, n)),
        m,
        n,
        k,
    )
    return out


def quantise_reference(x: NDArray[np.float32]) -> Codes:
    """What `quantise` computes, in numpy."""
    m, k = _grouped(x)
    groups = x.reshape(m, k // GROUP, GROUP)
    finite = np.isfinite(groups).all(axis=2)
    amax = np.abs(np.where(finite[..., None], groups, np.float32(0))).max(axis=2)
    live = amax >= _TINY
    safe = np.where(live, amax, np.float32(1))
    scaled = np.where(live[..., None], groups, np.float32(0)) * (np.float32(127) / safe)[..., None]
    scales = np.where(finite, np.where(live, amax / np.float32(127), np.float32(0)), np.float32(np.nan))
    return np.rint(scaled).astype(np.int8).reshape(m, k), scales.astype(np.float32)


def q8_0_linear_reference(weights: NDArray[np.uint8], x: NDArray[np.float32]) -> NDArray[np.float32]:
    """What `q8_0_linear` computes, in numpy: int dot per group, one fp32 accumulator an output, groups ascending."""
    m, k = _grouped(x)
    n = _rows(weights, k)
    codes, scales = quantise_reference(x)
    blocks = np.ascontiguousarray(weights).reshape(n, k // GROUP, Q8_0_BYTES)
    weight_scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0].astype(np.float32)
    weight_codes = blocks[..., 2:].view(np.int8).astype(np.int32)
    total = np.zeros((m, n), np.float32)
    for group in range(k // GROUP):
        dots = codes[:, group * GROUP : (group + 1) * GROUP].astype(np.int32) @ weight_codes[:, group].T
        total += dots.astype(np.float32) * (weight_scales[:, group][None, :] * scales[:, group][:, None])
    return total


def _grouped(x: NDArray[np.float32]) -> tuple[int, int]:
    if x.ndim != 2 or x.shape[1] % GROUP:
        raise ValueError(f"activations must be [M, K] with K a multiple of {GROUP}, got {x.shape}")
    return x.shape[0], x.shape[1]


def _rows(weights: NDArray[np.uint8], k: int) -> int:
    width = k // GROUP * Q8_0_BYTES
    if weights.dtype != np.uint8 or weights.ndim != 2 or weights.shape[1] != width:
        raise ValueError(f"Q8_0 weights must be uint8 [N, {width}] for K = {k}, got {weights.dtype} {weights.shape}")
    if weights.strides[1] != 1 or weights.strides[0] < width:
        raise ValueError(f"bytes of a weight row must be adjacent and rows must ascend, got strides {weights.strides}")
    return weights.shape[0]
