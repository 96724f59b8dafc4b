"""Weights of a model as the native runner takes them: packed matrices, vectors as fp32, orders of columns as int32.

Owns the choice between a matrix's own format and fp32 where no kernel knows the format. A file's codes are read once and never kept.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

import numpy as np

from ridgeline.compute.cpu.packing import PackedWeight, Pieces, Take, integer_kind, pack, pack_grouped, packable
from ridgeline.compute.load.record import record
from ridgeline.compute.load.weights import map_weights
from ridgeline.compute.ops.definition import Floats, Ints
from ridgeline.compute.ops.table import taken_as_arrays
from ridgeline.compute.quant.grouped import GroupedWeight
from ridgeline.compute.quant.weight import CodedWeight, Weight
from ridgeline.facts.model import ModelFacts

Progress = Callable[[str, float], None]
"""Called with (stage, fraction done)."""

Stored = PackedWeight | Floats | Ints

EMBEDDING: Final = "token_embd.weight"
"""Its rows are read too, not only multiplied: columns in another order would be of no use."""


def pack_weights(facts: ModelFacts, threads: int, progress: Progress) -> dict[str, Stored]:
    """Every tensor by its canonical name; `threads` pack at the same time, one matrix after the other.

    Orders of columns stand beside them, each once, under names of their own: matrices that read the same value mostly share theirs.
    """
    mapped = map_weights(facts)
    step = record(facts)["step"]
    last, arrays = step.ops[-1], taken_as_arrays(step)
    head = last.weights[0].name if last.name == "linear" and last.weights[0].shape[0] == facts.tokens else ""
    total, done = sum(weight.nbytes for weight in mapped.values()), 0
    ready: dict[str, Stored] = {}
    orders: dict[bytes, str] = {}
    take = Pieces().take
    with ThreadPoolExecutor(threads) as pool:
        for name in list(mapped):
            weight = mapped.pop(name)
            matrix = len(weight.shape) > 1 and name not in arrays
            ready[name] = packed = _packed(name, weight, pool, take, name == head) if matrix else weight.dense()
            if isinstance(packed, PackedWeight) and isinstance(weight, GroupedWeight) and packed.kind != "F32" and weight.order is not None:
                order = weight.order.astype(np.int32)
                known = orders.setdefault(order.tobytes(), f"{name.removesuffix('.weight')}.order")
                ready[name] = replace(packed, order=known)
                ready[known] = order
            done += weight.nbytes
            progress("packing weights", done / total)
    return ready


def widened(facts: ModelFacts, weights: Mapping[str, Stored]) -> list[str]:
    """Names of matrices that no kernel multiplies as they are stored, and that are kept as fp32 instead."""
    packed = {name: weight.kind for name, weight in weights.items() if isinstance(weight, PackedWeight)}
    return [name for name, kind in packed.items() if kind == "F32" != facts.tensors[name].kind]


def screened(weights: Mapping[str, Stored]) -> list[str]:
    """Names of matrices that are packed so that the largest outputs can be told from a part of their bits."""
    return [name for name, weight in weights.items() if isinstance(weight, PackedWeight) and weight.screened]


def _packed(name: str, weight: Weight, pool: ThreadPoolExecutor, take: Take, head: bool) -> PackedWeight:
    if isinstance(weight, CodedWeight) and packable(weight.kind, weight.shape):
        screened = head and packable(weight.kind, weight.shape, screened=True)
        return pack(weight.kind, weight.codes, weight.shape, pool, take, screened=screened)
    usable = name != EMBEDDING or not isinstance(weight, GroupedWeight) or weight.order is None
    if usable and isinstance(weight, GroupedWeight) and packable(integer_kind(weight), weight.shape, weight.size):
        return pack_grouped(weight, pool, take)
    return pack("F32", weight.dense().reshape(-1, weight.shape[-1]).view(np.uint8), weight.shape, pool, take)
