"""Weights of a model: tensors stay in the mapped files, or become fp32 in memory while that fits.

Owns the maps of the files (read-only; the header readers have checked every offset), the views through which tensors are seen, and the
choice between fp32 and codes. Whatever a view reorders is gathered once, as codes or as fp32, never as both.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from math import prod

import numpy as np

from ridgeline.compute.load.views import halves_order, settled, stored_rows
from ridgeline.compute.quant.bits import Bytes
from ridgeline.compute.quant.formats import Rows, dequantise, dequantise_all
from ridgeline.compute.quant.weight import DENSE_SHARE, CodedWeight, DenseWeight, Weight
from ridgeline.facts.model import ModelFacts, TensorFacts

Progress = Callable[[str, float], None]
"""Called with (stage, fraction done)."""


def map_weights(facts: ModelFacts) -> dict[str, Weight]:
    """Every tensor as the file's codes by its canonical name, vectors as fp32. What has no view is not read yet."""
    return {name: _coded(facts.tensors[name], rows, facts.head_dim) for name, rows in _mapped(facts).items()}


def dense_bytes(facts: ModelFacts) -> int:
    """Bytes of all weights as fp32."""
    return sum(4 * prod(tensor.shape) for tensor in facts.tensors.values())


def load_weights(facts: ModelFacts, memory_bytes: int, threads: int, progress: Progress) -> dict[str, Weight]:
    """fp32 weights where they take at most `DENSE_SHARE` of `memory_bytes`, else the file's codes; by canonical name.

    Vectors are always fp32. `threads` dequantise at the same time.
    """
    mapped = _mapped(facts)
    dense = dense_bytes(facts) <= DENSE_SHARE * memory_bytes
    matrices = {name: rows for name, rows in mapped.items() if dense and len(facts.tensors[name].shape) > 1}
    rest = {name: _coded(facts.tensors[name], rows, facts.head_dim) for name, rows in mapped.items() if name not in matrices}
    return {**rest, **_dequantise(matrices, facts.tensors, threads, progress)}


def _mapped(facts: ModelFacts) -> dict[str, Rows]:
    maps = {path: np.memmap(path, np.uint8, mode="r") for path in sorted({tensor.file for tensor in facts.tensors.values()})}
    return {name: stored_rows(tensor, maps[tensor.file], facts.head_dim) for name, tensor in facts.tensors.items()}


def _coded(tensor: TensorFacts, rows: Rows, head_dim: int) -> Weight:
    """A vector as fp32; a matrix as its codes, in memory if a view had to reorder them, else in the file."""
    if len(tensor.shape) == 1:
        return DenseWeight(_vector(tensor, rows, head_dim))
    count = tensor.shape[0]
    codes: Bytes = rows if isinstance(rows, np.ndarray) else settled(rows, count, tensor.bytes // count)
    return CodedWeight(tensor.kind, tensor.shape, codes)


def _vector(tensor: TensorFacts, rows: Rows, head_dim: int) -> np.ndarray:
    values = dequantise(tensor.kind, rows[:1])[0]
    if tensor.view == "interleaved":
        return values[halves_order(len(values), head_dim)]
    return values + np.float32(1) if tensor.view == "plus_one" else values


def _dequantise(mapped: Mapping[str, Rows], tensors: Mapping[str, TensorFacts], threads: int, progress: Progress) -> dict[str, DenseWeight]:
    """All of `mapped` as fp32, largest first so that threads end together."""
    order = sorted(mapped, key=lambda name: -tensors[name].bytes)
    total, done = sum(tensors[name].bytes for name in mapped), 0
    ready = {name: DenseWeight(np.empty(tensors[name].shape, np.float32)) for name in order}

    def advance(stored: int) -> None:
        nonlocal done
        done += stored
        progress("dequantising weights", done / total)

    with ThreadPoolExecutor(threads) as pool:
        dequantise_all([(tensors[name].kind, mapped[name], ready[name].values) for name in order], pool, advance)
    return ready
