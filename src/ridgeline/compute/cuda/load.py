"""Loading of a model's weights to a device, and lowering of its op list for the formats that they have there.

Owns what is quantised on load and what is merged. A file's codes are read once and never kept on the host.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from math import prod
from typing import Final, NamedTuple

import torch

from ridgeline.compute.cuda.device import Device
from ridgeline.compute.cuda.integers import IntegerMatrix
from ridgeline.compute.cuda.plan import MERGED
from ridgeline.compute.cuda.triton.launch import native_fp8
from ridgeline.compute.cuda.weights import DeviceWeight, DeviceWeights, FloatMatrix, Fp8Matrix, merged, place, place_experts
from ridgeline.compute.graph import OpList, WeightFormat
from ridgeline.compute.load.heads import OUTER
from ridgeline.compute.load.weights import map_weights
from ridgeline.compute.lowering.adapters import add_adapters
from ridgeline.compute.lowering.experts import EXPERTS
from ridgeline.compute.lowering.lower import lower
from ridgeline.compute.ops.table import taken_as_arrays
from ridgeline.compute.quant.weight import DenseWeight, Weight
from ridgeline.facts.model import ModelFacts

AS_FLOATS: Final = {"route", "linear_heads"}
"""Ops whose matrices are floats whatever the others are: a choice of experts depends on the last bits; matrices of heads are small, and
stored as parts of one."""

Progress = Callable[[str, float], None]
"""Called with (stage, fraction done)."""


def load_weights(
    facts: ModelFacts, oplist: OpList, device: Device, dtype: torch.dtype, *, fp8: bool = False, adapters: bool = False,
    progress: Progress = lambda *_: None,
) -> tuple[OpList, DeviceWeights]:  # fmt: skip
    """The model's op list, lowered, and its weights. `fp8`: matrices of floats become e4m3, the head too, and embedding tables
    stay as they are. `adapters`: rows may have some."""
    mapped = map_weights(facts)
    return place_weights(mapped, oplist, device, dtype, fp8=fp8, adapters=adapters, progress=progress)


def place_weights(
    mapped: Mapping[str, Weight],
    oplist: OpList,
    device: Device,
    dtype: torch.dtype,
    *,
    fp8: bool = False,
    adapters: bool = False,
    progress: Progress = lambda *_: None,
) -> tuple[OpList, DeviceWeights]:
    """Places weights as `load_weights` does, from weights that are mapped already."""
    placed = _placed(mapped, [oplist], device, dtype, fp8=fp8, progress=progress)
    return merge(add_adapters(oplist) if adapters else oplist, device, placed)


def load_heads(
    facts: ModelFacts, lists: Sequence[OpList], target: DeviceWeights, device: Device, dtype: torch.dtype, *, fp8: bool = False,
    progress: Progress = lambda *_: None,
) -> list[tuple[OpList, DeviceWeights]]:  # fmt: skip
    """Lists of heads as `load_weights` has them, each with its weights: what several read is there once, and what heads have not is the
    target's."""
    placed = _placed(map_weights(facts), lists, device, dtype, fp8=fp8, progress=progress)
    for own, shared in zip(placed[:2], (target.matrices, target.tables), strict=True):
        own |= {name: shared[name] for name in OUTER if name in shared and name not in facts.tensors}  # type: ignore[arg-type]
    wholes: Wholes = {}
    return [merge(each, device, _Placed(*map(dict, placed)) if len(lists) > 1 else placed, wholes) for each in lists]


def _placed(
    mapped: Mapping[str, Weight], lists: Sequence[OpList], device: Device, dtype: torch.dtype, *, fp8: bool, progress: Progress
) -> "_Placed":
    """The weights among `mapped` that lists read."""
    readers = {name: ops for name, ops in _readers(*lists).items() if name in mapped}
    arrays = frozenset[str]().union(*map(taken_as_arrays, lists))
    total, done = sum(mapped[name].nbytes for name in readers), 0
    found = _Placed({}, {}, {}, {})
    for name in sorted(readers):
        weight, read = mapped[name], readers[name]
        if name in arrays:
            found.vectors[name] = torch.from_numpy(weight.dense()).to(device.torch)
        elif "linear_experts" in read:
            found.experts[name] = place_experts(weight, dtype, device.torch, fp8=fp8)
        elif "linear" in read:
            found.matrices[name] = place(weight, dtype, device.torch, fp8=fp8)
        elif read & AS_FLOATS:
            found.matrices[name] = place(DenseWeight(weight.dense().reshape(-1, weight.shape[-1])), dtype, device.torch)
        if "embed" in read:
            found.tables[name] = _table(weight, found.matrices.get(name), dtype, device)
        done += weight.nbytes
        progress("placing weights", done / total)
    return found


class _Placed(NamedTuple):
    """The parts of `DeviceWeights`, of a list that is not lowered."""

    matrices: dict[str, DeviceWeight]
    tables: dict[str, torch.Tensor]
    vectors: dict[str, torch.Tensor]
    experts: dict[str, DeviceWeight]


def _readers(*lists: OpList) -> dict[str, set[str]]:
    """Names of the ops that read each weight."""
    found: dict[str, set[str]] = {}
    for op in chain.from_iterable(oplist.ops for oplist in lists):
        for weight in op.weights:
            found.setdefault(weight.name, set()).add(op.name)
    return found


def _table(weight: Weight, placed: DeviceWeight | None, dtype: torch.dtype, device: Device) -> torch.Tensor:
    """An embedding table of floats [V, D]; the head's own where it is tied."""
    if not isinstance(placed, FloatMatrix):
        placed = place(DenseWeight(weight.dense()), dtype, device.torch)
    assert isinstance(placed, FloatMatrix)
    return placed.values


Wholes = dict[tuple[str, ...], DeviceWeight]
"""Names of matrices that were merged → all of them as one."""


def merge(oplist: OpList, device: Device, placed: _Placed, wholes: Wholes | None = None) -> tuple[OpList, DeviceWeights]:
    """Lowers a model's list for the formats of its matrices, and merges those whose products it merges. Removes merged matrices from
    `placed`, so that at most the rows of one product exist twice. wholes: of other lists, to which this one's come.

    On a device that cannot multiply e4m3 activations stay as they are; those of experts do everywhere.
    """
    codes, wholes = native_fp8(device.torch), {} if wholes is None else wholes
    formats = {name: WeightFormat(_form(weight)) for name, weight in placed.experts.items()}
    for name, weight in placed.matrices.items():
        # A matrix that ends within a block is of a format of its own: no other's rows can follow.
        ragged = isinstance(weight, Fp8Matrix) and weight.shape[0] % weight.block[0]
        kind = f"{weight.kind}, {name}" if ragged else weight.kind
        formats[name] = WeightFormat(kind, "f8" if codes and isinstance(weight, Fp8Matrix) else "f32")
    lowered = lower(oplist, "cuda", formats)
    for op in lowered.ops:
        of, count = (placed.experts, EXPERTS[op.name]) if op.name in EXPERTS else (placed.matrices, len(op.weights))
        if op.name in MERGED or (op.name in EXPERTS and count > 1):
            names = tuple(weight.name for weight in op.weights[:count])
            whole = wholes.get(names) or merged([of[name] for name in names])
            if whole is not None:
                wholes[names] = whole
                for name in names:
                    del of[name]
                of[op.outputs[0]] = whole
    return lowered, DeviceWeights(*placed)


def _form(weight: DeviceWeight) -> str:
    """Properties that stacks must share to be one."""
    return f"{weight.kind} {weight.form if isinstance(weight, IntegerMatrix) else getattr(weight, 'block', '')}"


def random_weights(
    facts: ModelFacts, oplist: OpList, device: Device, dtype: torch.dtype, *, fp8: bool = False, adapters: bool = False,
    progress: Progress = lambda *_: None, seed: int = 0,
) -> tuple[OpList, DeviceWeights]:  # fmt: skip
    """Random weights of a model's shape, made on the device: for benchmarks, whose speed does not depend on their values.

    Matrices are normal numbers of the standard deviation K^-½, vectors ones; `fp8` as in `load_weights`.
    """
    generator = torch.Generator(device.torch).manual_seed(seed)
    readers, arrays = _readers(oplist), taken_as_arrays(oplist)
    found = _Placed({}, {}, {}, {})
    used = {weight.name: weight for op in oplist.ops for weight in op.weights}
    for number, (name, weight) in enumerate(used.items()):
        progress("making weights", number / len(used))
        if name in arrays:
            found.vectors[name] = torch.ones(weight.shape, dtype=torch.float32, device=device.torch)
            continue
        rows, columns = prod(weight.shape[:-1]), weight.shape[-1]
        values = device.empty(rows, columns, dtype=dtype).normal_(0, columns**-0.5, generator=generator)
        if "embed" in readers[name]:
            found.tables[name] = values
        own = found.experts if "linear_experts" in readers[name] else found.matrices
        if readers[name] & AS_FLOATS or not fp8:
            own[name] = FloatMatrix(values)
        else:
            scales = torch.full((rows, 1), columns**-0.5, dtype=torch.float32, device=device.torch)
            own[name] = Fp8Matrix((values * columns**0.5).to(torch.float8_e4m3fn), scales, (1, columns))
        if readers[name] == {"embed"}:
            del own[name]
    return merge(add_adapters(oplist) if adapters else oplist, device, found)
