"""Products with weights in one byte and in 4.5 bits against the same sizes in fp32 and bf16: processor time of one thread.

    python tests/speed/small_floats.py [ROWS INPUTS]     # 4096 8192: some ten seconds

The best of five, each format in turn: seconds, bytes of weights per second, and the ratio to fp32, which these formats were widened to.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
from calls import linear_floats

from ridgeline.compute.cpu.packing import pack, pack_grouped
from ridgeline.compute.quant.scaled import ScaledWeight

RANDOM = np.random.default_rng(0)


def fp8(rows: int, inputs: int, block: tuple[int, int]) -> ScaledWeight:
    """Codes as normal weights have them: hardly any is subnormal."""
    codes = np.clip(RANDOM.standard_normal((rows, inputs)) * 20 + 80, 8, 126).astype(np.uint8)
    codes |= RANDOM.integers(0, 2, codes.shape, np.uint8) << 7
    return ScaledWeight(codes, np.full((-(-rows // block[0]), -(-inputs // block[1])), 1e-3, np.float32), block)


def main(rows: int = 4096, inputs: int = 8192) -> None:
    with ThreadPoolExecutor(2) as pool:
        halves = RANDOM.integers(0x3C00, 0x3D00, (rows, inputs)).astype(np.uint16)
        weights: dict[str, Any] = {
            "F32": pack("F32", RANDOM.standard_normal((rows, inputs)).astype(np.float32).view(np.uint8), (rows, inputs), pool),
            "BF16": pack("BF16", halves.view(np.uint8), (rows, inputs), pool),
            "FP8 in blocks": pack_grouped(fp8(rows, inputs, (128, 128)), pool),
            "FP8 by row": pack_grouped(fp8(rows, inputs, (1, inputs)), pool),
            "NVFP4": pack("NVFP4", RANDOM.integers(0, 120, (rows, inputs // 64 * 36), np.uint8), (rows, inputs), pool),
        }
    for tokens in (1, 2, 4, 8, 16, 24, 128):
        x, best = RANDOM.standard_normal((tokens, inputs)).astype(np.float32), dict.fromkeys(weights, float("inf"))
        for _ in range(5):
            for name, weight in weights.items():
                began = time.thread_time()
                linear_floats(x, weight)
                best[name] = min(best[name], time.thread_time() - began)
        told = [f"{name} {took * 1e3:5.1f} ms {weights[name].nbytes / took / 1e9:4.1f} GB/s {took / best['F32']:.2f}"
                for name, took in best.items()]  # fmt: skip
        print(f"{tokens:3} tokens: {'; '.join(told)}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
