"""Loading of a model's weights to a device, and lowering of its op list for the formats that they have there.

Owns what is quantised on load and what is merged. A file's codes are read once and never kept on the host.
"""

from collections.abc import Callable, Mapping

import torch

from ridgeline.compute.cuda.device import Device
from ridgeline.compute.cuda.plan import MERGED
from ridgeline.compute.cuda.triton.launch import native_fp8
from ridgeline.compute.cuda.weights import DeviceWeight, DeviceWeights, FloatMatrix, Fp8Matrix, merged, place
from ridgeline.compute.graph import OpList, WeightFormat
from ridgeline.compute.load.weights import map_weights
from ridgeline.compute.lowering.adapters import add_adapters
from ridgeline.compute.lowering.lower import lower
from ridgeline.compute.quant.weight import DenseWeight, Weight
from ridgeline.facts.model import ModelFacts

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
    """As `load_weights`, from weights that are mapped already."""
    embedded = {op.weights[0].name for op in oplist.ops if op.name == "embed"}
    used = {weight.name for op in oplist.ops for weight in op.weights}
    multiplied = {op.weights[0].name for op in oplist.ops if op.name == "linear"}
    total, done = sum(mapped[name].nbytes for name in used), 0
    matrices: dict[str, DeviceWeight] = {}
    tables: dict[str, torch.Tensor] = {}
    vectors: dict[str, torch.Tensor] = {}
    for name in sorted(used):
        weight = mapped[name]
        if len(weight.shape) == 1:
            vectors[name] = torch.from_numpy(weight.dense()).to(device.torch)
        if name in multiplied:
            matrices[name] = place(weight, dtype, device.torch, fp8=fp8)
        if name in embedded:
            tables[name] = _table(weight, matrices.get(name), dtype, device)
        done += weight.nbytes
        progress("placing weights", done / total)
    return merge(add_adapters(oplist) if adapters else oplist, device, matrices, tables, vectors)


def _table(weight: Weight, placed: DeviceWeight | None, dtype: torch.dtype, device: Device) -> torch.Tensor:
    """An embedding table of floats [V, D]; the head's own where it is tied."""
    if not isinstance(placed, FloatMatrix):
        placed = place(DenseWeight(weight.dense()), dtype, device.torch)
    assert isinstance(placed, FloatMatrix)
    return placed.values


def merge(
    oplist: OpList,
    device: Device,
    matrices: dict[str, DeviceWeight],
    tables: Mapping[str, torch.Tensor],
    vectors: Mapping[str, torch.Tensor],
) -> tuple[OpList, DeviceWeights]:
    """Lowers a model's list for the formats of its matrices, and merges those whose products it merges. Removes merged matrices from
    `matrices`, so that at most the rows of one product exist twice.

    On a device that cannot multiply e4m3 activations stay as they are.
    """
    codes = native_fp8(device.torch)
    formats = {}
    for name, weight in matrices.items():
        # A matrix that ends within a block is of a format of its own: no other's rows can follow.
        ragged = isinstance(weight, Fp8Matrix) and weight.shape[0] % weight.block[0]
        kind = f"{weight.kind}, {name}" if ragged else weight.kind
        formats[name] = WeightFormat(kind, "f8" if codes and isinstance(weight, Fp8Matrix) else "f32")
    lowered = lower(oplist, "cuda", formats)
    for op in lowered.ops:
        if op.name in MERGED:
            names = [weight.name for weight in op.weights]
            whole = merged([matrices[name] for name in names])
            if whole is not None:
                for name in names:
                    del matrices[name]
                matrices[op.outputs[0]] = whole
    return lowered, DeviceWeights(matrices, tables, vectors)


def random_weights(
    facts: ModelFacts, oplist: OpList, device: Device, dtype: torch.dtype, *, fp8: bool = False, adapters: bool = False,
    progress: Progress = lambda *_: None, seed: int = 0,
) -> tuple[OpList, DeviceWeights]:  # fmt: skip
    """Random weights of a model's shape, made on the device: for benchmarks, whose speed does not depend on their values.

    Matrices are normal numbers of the standard deviation K^-½, vectors ones; `fp8` as in `load_weights`.
    """
    generator = torch.Generator(device.torch).manual_seed(seed)
    embedded = {op.weights[0].name for op in oplist.ops if op.name == "embed"}
    multiplied = {op.weights[0].name for op in oplist.ops if op.name == "linear"}
    matrices: dict[str, DeviceWeight] = {}
    tables: dict[str, torch.Tensor] = {}
    vectors: dict[str, torch.Tensor] = {}
    used = {weight.name: weight for op in oplist.ops for weight in op.weights}
    for number, weight in enumerate(used.values()):
        progress("making weights", number / len(used))
        if len(weight.shape) == 1:
            vectors[weight.name] = torch.ones(weight.shape, dtype=torch.float32, device=device.torch)
            continue
        rows, columns = weight.shape
        values = device.empty(rows, columns, dtype=dtype).normal_(0, columns**-0.5, generator=generator)
        if weight.name in embedded:
            tables[weight.name] = values
        if weight.name not in multiplied:
            continue
        if fp8:
            scales = torch.full((rows, 1), columns**-0.5, dtype=torch.float32, device=device.torch)
            matrices[weight.name] = Fp8Matrix((values * columns**0.5).to(torch.float8_e4m3fn), scales, (1, columns))
        else:
            matrices[weight.name] = FloatMatrix(values)
    return merge(add_adapters(oplist) if adapters else oplist, device, matrices, tables, vectors)
