"""Copies of whole pages between a KV pool of the device and its tier on the host."""

import torch
import triton
import triton.language as tl

from ridgeline.compute.cuda.triton.launch import ceil_div

BLOCK = 2048
"""Words that one program copies."""


@triton.jit
def copy_pages_kernel(pool, host, pairs, pages, host_pages, words, BLOCK: tl.constexpr):
    """Each program: `BLOCK` words of one page of one layer's K or V. Pages of the host are numbered behind the pool's."""
    pair, plane = tl.program_id(0), tl.program_id(1).to(tl.int64)
    source, target = tl.load(pairs + 2 * pair), tl.load(pairs + 2 * pair + 1)
    at = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    if source < pages:
        moved = tl.load(pool + (plane * pages + source) * words + at, mask=at < words)
        tl.store(host + (plane * host_pages + target - pages) * words + at, moved, mask=at < words)
    else:
        moved = tl.load(host + (plane * host_pages + source - pages) * words + at, mask=at < words)
        tl.store(pool + (plane * pages + target) * words + at, moved, mask=at < words)


def copy_pages(pool: torch.Tensor, host: torch.Tensor, pairs: torch.Tensor) -> None:
    """Copies pages in all layers, K and V: one launch, whatever their number and where they lie.

    pool [layers, 2, pages, bytes]       of the device: pages 0 …
    host [layers, 2, host pages, bytes]  pinned memory, which the device reads and writes by itself: the pages behind those
    pairs int32 [n, 2]                   (from, to) on the device, n ≥ 1; one of the two is a page of the host
    No page may be both written and read, or written twice: pairs are copied in no order.
    """
    layers, planes, pages, size = pool.shape
    word = next(dtype for dtype in (torch.int64, torch.int32, torch.int16, torch.uint8) if size % dtype.itemsize == 0)
    words = size // word.itemsize
    grid = (len(pairs), layers * planes, ceil_div(words, BLOCK))
    copy_pages_kernel[grid](pool.view(word), host.view(word), pairs, pages, host.shape[2], words, BLOCK=BLOCK)
