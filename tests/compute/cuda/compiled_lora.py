"""Changes by adapters as they are launched for real models: few tokens and prompts, small and largest ranks."""

from functools import partial

import torch
from compile_only import TESTED, Case

from ridgeline.compute.cuda.triton.lora import Slots, Tiles, add_changes, most_tiles, scratch_bytes, tile_height


def changes(tokens: int, inputs: int, widths: tuple[int, ...], rank: int, dtype: torch.dtype = torch.bfloat16) -> None:
    """Changes of a layer's products in a step of so many tokens over eight slots."""
    tiles = most_tiles(tokens, 8, invariant=False), tile_height(tokens, invariant=False)
    slots = Slots(torch.empty(8, 1 << 12, dtype=torch.uint8), rank)
    x, y = torch.empty(tokens, inputs, dtype=dtype), torch.empty(tokens, sum(widths), dtype=dtype)
    scratch = torch.empty(scratch_bytes(tokens, len(widths), rank, inputs, invariant=False), dtype=torch.uint8)
    add_changes(x, y, widths, slots, 0, Tiles(torch.empty(*tiles, dtype=torch.int32), torch.empty(tiles[0], dtype=torch.int32)), scratch)()


PRODUCTS = {"shrink_kernel": {90: ("mma",)}, "expand_kernel": {90: ("mma",)}}

CASES = [
    Case("changes of few tokens", partial(changes, 16, 4096, (4096, 1024, 1024), 64), PRODUCTS),
    Case("changes of few tokens, largest rank", partial(changes, 16, 14336, (4096,), 256), PRODUCTS),
    Case("changes of few tokens, least rank", partial(changes, 16, 4096, (14336, 14336), 8), PRODUCTS),
    Case("changes of a prompt", partial(changes, 2048, 4096, (14336, 14336), 64), PRODUCTS),
    Case("changes of a prompt, fp32", partial(changes, 2048, 4096, (4096,), 64, torch.float32), capabilities=TESTED),
]
