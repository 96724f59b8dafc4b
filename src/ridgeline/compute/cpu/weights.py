"""Weights of a model as the native runner takes them: packed matrices, vectors as fp32.

Owns the choice between a matrix's own format and fp32 where no kernel knows the format. A file's codes are read once and never kept.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ridgeline.compute.cpu.packing import PackedWeight, integer_kind, pack, pack_grouped, packable
from ridgeline.compute.load.weights import map_weights
from ridgeline.compute.ops.definition import Floats
from ridgeline.compute.quant.grouped import GroupedWeight
from ridgeline.compute.quant.weight import CodedWeight, Weight
from ridgeline.facts.model import ModelFacts

Progress = Callable[[str, float], None]
"""Called with (stage, fraction done)."""


def pack_weights(facts: ModelFacts, threads: int, progress: Progress) -> dict[str, PackedWeight | Floats]:
    """Every tensor by its canonical name; `threads` pack at the same time, one matrix after the other."""
    mapped = map_weights(facts)
    total, done = sum(weight.nbytes for weight in mapped.values()), 0
    ready: dict[str, PackedWeight | Floats] = {}
    with ThreadPoolExecutor(threads) as pool:
        for name in list(mapped):
            weight = mapped.pop(name)
            ready[name] = _packed(weight, pool) if len(weight.shape) == 2 else weight.dense()
            done += weight.nbytes
            progress("packing weights", done / total)
    return ready


def widened(facts: ModelFacts, weights: Mapping[str, PackedWeight | Floats]) -> list[str]:
    """Names of matrices that no kernel multiplies as they are stored, and that are kept as fp32 instead."""
    packed = {name: weight.kind for name, weight in weights.items() if isinstance(weight, PackedWeight)}
    return [name for name, kind in packed.items() if kind == "F32" != facts.tensors[name].kind]


def _packed(weight: Weight, pool: ThreadPoolExecutor) -> PackedWeight:
    if isinstance(weight, CodedWeight) and packable(weight.kind, weight.shape):
        return pack(weight.kind, weight.codes, weight.shape, pool)
    if isinstance(weight, GroupedWeight) and weight.order is None and packable(integer_kind(weight), weight.shape, weight.size):
        return pack_grouped(weight, pool)
    return pack("F32", weight.dense().view(np.uint8), weight.shape, pool)
