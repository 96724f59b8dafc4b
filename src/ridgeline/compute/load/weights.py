"""Weights of a model: tensors stay in the mapped files, or become fp32 in memory while that fits.

Owns the maps of the files (read-only; the header readers have checked every offset), the views through which tensors are seen, and the
choice between fp32 and codes. Whatever a view reorders is gathered once, as codes or as fp32, never as both.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np

from ridgeline.compute.load.grouped import elements, grouped_weight, nvfp4_weight, scaled_weight
from ridgeline.compute.load.views import gather_rows, halves_order, microscaled_rows, stored_rows
from ridgeline.compute.quant.bits import Bytes, Floats
from ridgeline.compute.quant.formats import Coded, Rows, dequantise, dequantise_all
from ridgeline.compute.quant.grouped import GroupedWeight
from ridgeline.compute.quant.scaled import Nvfp4Weight, ScaledWeight
from ridgeline.compute.quant.weight import DENSE_SHARE, CodedWeight, DenseWeight, StackedWeight, Weight
from ridgeline.facts.headers.quantisation import FP8, MICROSCALED, NVFP4
from ridgeline.facts.model import ModelFacts, TensorFacts

Progress = Callable[[str, float], None]
"""Called with (stage, fraction done)."""

Matrix = Coded | GroupedWeight | ScaledWeight | Nvfp4Weight
Source = Matrix | tuple[Matrix, ...]
"""Stored arrays of a tensor; several where each expert's matrix is stored by itself."""


def map_weights(facts: ModelFacts) -> dict[str, Weight]:
    """All tensors of `each_weight`."""
    return dict(each_weight(facts))


def each_weight(facts: ModelFacts) -> Iterator[tuple[str, Weight]]:
    """Tensors by canonical name: matrices as the file's codes, vectors as fp32. Tensors without a view are not read yet, nor are the
    codes of grouped integers; those of a view are gathered when their turn comes."""
    for name, source in _sources(facts).items():
        yield name, _stored_weight(facts.tensors[name], source, facts.head_dim)


def dense_bytes(facts: ModelFacts) -> int:
    """Bytes of all weights as fp32."""
    return sum(4 * prod(tensor.shape) for tensor in facts.tensors.values())


def load_weights(facts: ModelFacts, memory_bytes: int, threads: int, progress: Progress) -> dict[str, Weight]:
    """fp32 weights where they take at most `DENSE_SHARE` of `memory_bytes`, else the file's codes; by canonical name.

    Vectors are always fp32. `threads` dequantise at the same time.
    """
    sources = _sources(facts)
    dense = dense_bytes(facts) <= DENSE_SHARE * memory_bytes
    matrices = {name: source for name, source in sources.items() if dense and len(facts.tensors[name].shape) > 1}
    rest = {name: _stored_weight(facts.tensors[name], source, facts.head_dim) for name, source in sources.items() if name not in matrices}
    return {**{name: _gathered(weight) for name, weight in rest.items()}, **_dequantise(matrices, facts.tensors, threads, progress)}


def _gathered(weight: Weight) -> Weight:
    """`weight` with the codes of grouped integers in memory."""
    if isinstance(weight, StackedWeight):
        return StackedWeight(tuple(_gathered(part) for part in weight.parts))
    if not isinstance(weight, GroupedWeight):
        return weight
    return replace(weight, codes=gather_rows(weight.codes, weight.shape[0], weight.shape[1] * weight.bits // 8))


def _sources(facts: ModelFacts) -> dict[str, Source]:
    paths = sorted({path for tensor in facts.tensors.values() for path in tensor.files})
    maps = {path: np.memmap(path, np.uint8, mode="r") for path in paths}
    return {
        name: tuple(_source(each, maps, facts.head_dim) for each in tensor.experts) or _source(tensor, maps, facts.head_dim)
        for name, tensor in facts.tensors.items()
    }


def _source(tensor: TensorFacts, maps: Mapping[Path, Bytes], head_dim: int) -> Matrix:
    if tensor.quantised is not None:
        if tensor.quantised.layout in MICROSCALED:
            codes, scales = elements(tensor.quantised.codes, maps), elements(tensor.quantised.scales, maps)
            return Coded(tensor.kind, microscaled_rows(tensor, codes, scales))
        if tensor.quantised.layout in NVFP4:
            return nvfp4_weight(tensor, maps)
        return scaled_weight(tensor, maps) if tensor.kind == FP8 else grouped_weight(tensor, maps)
    return Coded(tensor.kind, stored_rows(tensor, maps[tensor.file], head_dim))


def _stored_weight(tensor: TensorFacts, source: Source, head_dim: int) -> Weight:
    """A vector as fp32; a matrix as its codes, in memory if a view had to reorder them, else in the file."""
    if isinstance(source, tuple):
        return StackedWeight(tuple(_stored_weight(each, own, head_dim) for each, own in zip(tensor.experts, source, strict=True)))
    if not isinstance(source, Coded):
        return source
    if len(tensor.shape) == 1:
        return DenseWeight(_vector(tensor, source.rows, head_dim))
    count = prod(tensor.shape[:-1])
    codes: Bytes = source.rows if isinstance(source.rows, np.ndarray) else gather_rows(source.rows, count, tensor.bytes // count)
    return CodedWeight(tensor.kind, tensor.shape, codes)


def _vector(tensor: TensorFacts, rows: Rows, head_dim: int) -> np.ndarray:
    values = dequantise(tensor.kind, rows[:1])[0]
    if tensor.transform == "interleaved":
        return values[halves_order(len(values), head_dim)]
    if tensor.transform == "minus_exp":
        return -np.exp(values)
    return values + np.float32(1) if tensor.transform == "plus_one" else values


def _dequantise(
    sources: Mapping[str, Source], tensors: Mapping[str, TensorFacts], threads: int, progress: Progress
) -> dict[str, DenseWeight]:
    """All of `sources` as fp32, largest first so that threads end together."""
    order = sorted(sources, key=lambda name: -tensors[name].bytes)
    total, done = sum(tensors[name].bytes for name in sources), 0
    ready = {name: DenseWeight(np.empty(tensors[name].shape, np.float32)) for name in order}

    def advance(stored: int) -> None:
        nonlocal done
        done += stored
        progress("dequantising weights", min(1.0, done / total))

    pairs: list[tuple[Matrix, Floats]] = []
    for name in order:
        source, values, columns = sources[name], ready[name].values, tensors[name].shape[-1]
        if isinstance(source, tuple):
            pairs += [(each, part.reshape(-1, columns)) for each, part in zip(source, values, strict=True)]
        else:
            pairs.append((source, values.reshape(-1, columns)))
    with ThreadPoolExecutor(threads) as pool:
        dequantise_all(pairs, pool, advance)
    return ready
