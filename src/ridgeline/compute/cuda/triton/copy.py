"""Copies of whole pages within a KV pool: forks of a partial block."""

import torch
import triton
import triton.language as tl

from ridgeline.compute.cuda.triton.launch import ceil_div

BLOCK = 2048
"""Words that one program copies."""


@triton.jit
def copy_blocks_kernel(pool, pairs, pages, words, BLOCK: tl.constexpr):
    """Each program: `BLOCK` words of one page of one layer's K or V."""
    pair, plane = tl.program_id(0), tl.program_id(1).to(tl.int64)
    source, target = tl.load(pairs + 2 * pair), tl.load(pairs + 2 * pair + 1)
    at = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    moved = tl.load(pool + (plane * pages + source) * words + at, mask=at < words)
    tl.store(pool + (plane * pages + target) * words + at, moved, mask=at < words)


def copy_blocks(pool: torch.Tensor, pairs: torch.Tensor) -> None:
    """Copies pages of `DeviceKVCache.pool` in all layers, K and V: pairs int64 [n, 2] are (from, to) on the device.

    No page may be both a source and a target: pairs are copied in no order.
    """
    layers, planes, pages, size = pool.shape
    word = next(dtype for dtype in (torch.int64, torch.int32, torch.int16, torch.uint8) if size % dtype.itemsize == 0)
    words = size // word.itemsize
    if len(pairs):
        copy_blocks_kernel[(len(pairs), layers * planes, ceil_div(words, BLOCK))](pool.view(word), pairs, pages, words, BLOCK=BLOCK)
