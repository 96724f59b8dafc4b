"""Weights of a GGUF model: tensors stay in the mapped file, or become fp32 in memory while that fits.

Owns the maps of the files (read-only; the header reader has checked every offset) and the choice between fp32 and codes.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from math import prod

import numpy as np

from ridgeline.compute.quant.formats import dequantise_all
from ridgeline.compute.quant.weight import DENSE_SHARE, CodedWeight, DenseWeight, Weight, coded
from ridgeline.facts.model import ModelFacts

Progress = Callable[[str, float], None]
"""Called with (stage, fraction done)."""


def map_weights(facts: ModelFacts) -> dict[str, CodedWeight]:
    """Handles on the bytes of every tensor, by its name in the file. Nothing is read yet."""
    maps = {path: np.memmap(path, np.uint8, mode="r") for path in sorted({tensor.file for tensor in facts.tensors.values()})}
    return {
        tensor.name: coded(tensor.kind, tensor.shape, np.asarray(maps[tensor.file][tensor.offset : tensor.offset + tensor.bytes]))
        for tensor in facts.tensors.values()
    }


def dense_bytes(facts: ModelFacts) -> int:
    """Bytes of all weights as fp32."""
    return sum(4 * prod(tensor.shape) for tensor in facts.tensors.values())


def load_weights(facts: ModelFacts, memory_bytes: int, threads: int, progress: Progress) -> dict[str, Weight]:
    """fp32 weights where they take at most `DENSE_SHARE` of `memory_bytes`, else the file's codes; by name in the file.

    Vectors are always fp32. `threads` dequantise at the same time.
    """
    mapped = map_weights(facts)
    dense = dense_bytes(facts) <= DENSE_SHARE * memory_bytes
    chosen = {name: weight for name, weight in mapped.items() if dense or len(weight.shape) == 1}
    return {**mapped, **_dequantise(chosen, threads, progress)}


def _dequantise(mapped: Mapping[str, CodedWeight], threads: int, progress: Progress) -> dict[str, DenseWeight]:
    """All of `mapped` as fp32, largest first so that threads end together."""
    order = sorted(mapped, key=lambda name: -mapped[name].nbytes)
    total, done = sum(weight.nbytes for weight in mapped.values()), 0
    ready = {name: DenseWeight(np.empty(mapped[name].shape, np.float32)) for name in order}

    def advance(stored: int) -> None:
        nonlocal done
        done += stored
        progress("dequantising weights", done / total)

    with ThreadPoolExecutor(threads) as pool:
        work = [(mapped[name].kind, mapped[name].codes, ready[name].values) for name in order]
        dequantise_all([(kind, codes, values.reshape(codes.shape[0], -1)) for kind, codes, values in work], pool, advance)
    return ready
