"""Copies of whole KV blocks between the pool of a device and its host tier."""

import torch
import triton
import triton.language as tl

from ridgeline.compute.cuda.triton.launch import ceil_div

BLOCK = 2048
"""Words that one program copies."""


@triton.jit(do_not_specialize=["blocks", "host_blocks"], do_not_specialize_on_alignment=["pairs"])
def copy_blocks_kernel(pool, host, pairs, blocks, host_blocks, words, BLOCK: tl.constexpr):
    """Each program: `BLOCK` words of one block of one layer's K or V. Blocks of the host are numbered behind the pool's."""
    pair, plane = tl.program_id(0), tl.program_id(1).to(tl.int64)
    source, target = tl.load(pairs + 2 * pair), tl.load(pairs + 2 * pair + 1)
    at = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    if source < blocks:
        moved = tl.load(pool + (plane * blocks + source) * words + at, mask=at < words)
        tl.store(host + (plane * host_blocks + target - blocks) * words + at, moved, mask=at < words)
    else:
        moved = tl.load(host + (plane * host_blocks + source - blocks) * words + at, mask=at < words)
        tl.store(pool + (plane * blocks + target) * words + at, moved, mask=at < words)


def copy_blocks(pool: torch.Tensor, host: torch.Tensor, pairs: torch.Tensor) -> None:
    """Copies blocks in all layers, K and V: one launch, whatever their number and where they lie.

    pool [layers, 2, blocks, bytes]       of the device: blocks 0 …
    host [layers, 2, host blocks, bytes]  pinned memory, which the device reads and writes by itself: the blocks behind those
    pairs int32 [n, 2]                   (from, to) on the device, n ≥ 1; one of the two is a block of the host
    No block may be both written and read, or written twice: pairs are copied in no order.
    """
    layers, planes, blocks, size = pool.shape
    word = next(dtype for dtype in (torch.int64, torch.int32, torch.int16, torch.uint8) if size % dtype.itemsize == 0)
    words = size // word.itemsize
    grid = (len(pairs), layers * planes, ceil_div(words, BLOCK))
    copy_blocks_kernel[grid](pool.view(word), host.view(word), pairs, blocks, host.shape[2], words, BLOCK=BLOCK)
