"""Memory of an op list's values on the device, and the views of it that a bucket's launches are bound to.

Owns one buffer, sized for the largest bucket, in which a value takes the place of others that are not needed any more. Outputs of a merged
product lie next to each other in it; each is a view of its columns.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import torch

from ridgeline.compute.cuda.adapters import DeviceAdapterSlots, is_change
from ridgeline.compute.cuda.buckets import Bucket
from ridgeline.compute.cuda.cache import CacheLayer, DeviceKVCache
from ridgeline.compute.cuda.device import DTYPES, Device
from ridgeline.compute.cuda.step import DeviceInputs
from ridgeline.compute.cuda.weights import DeviceWeight, DeviceWeights
from ridgeline.compute.graph import INPUTS, Axis, Op, OpList, Sizes
from ridgeline.compute.liveness import Buffer, last_stages, place_buffers
from ridgeline.core.plan import KVShape

ALIGNMENT: Final = 256
"""Bytes: every value begins at a multiple."""
FP32_OPS: Final = frozenset({"rotation", "route"})
"""Ops whose outputs are fp32 whatever the activations are."""

MERGED: Final = frozenset({"linear_pair", "linear_triple", "linear_fp8_pair", "linear_fp8_triple", "linear_glu", "linear_fp8_glu"})
"""Products with several matrices, whose outputs, if there are several, lie next to each other in one buffer."""

Run = Callable[[], None]
"""Launches one op over views that were bound before."""


class Place(NamedTuple):
    """A value: columns [first, first + width) of a buffer whose rows have `stride` numbers of `dtype`; it begins `start` bytes in."""

    start: int
    stride: int
    first: int
    width: int
    dtype: torch.dtype
    axis: Axis

    def rows(self, bucket: Bucket) -> int:
        """Rows in a step of this bucket."""
        return self.axis.at(Sizes(T=bucket.tokens, R=bucket.rows, S=bucket.selected))


def place_values(oplist: OpList, dtype: torch.dtype, sizes: Sizes, *, reuse: bool = True) -> tuple[dict[str, Place], int]:
    """Place of every value by name, at the largest sizes, and the bytes of all. Results and taps keep their places to the end; with `reuse`
    off every value does. Changed products lie where the products did, which nothing else reads."""
    last = last_stages(oplist, [[op] for op in oplist.ops])
    changed = {new: product for op in oplist.ops if is_change(op) for product, new in zip(op.inputs[1:-1], op.outputs, strict=True)}
    for new, product in changed.items():
        last[product] = max(last[product], last[new])
    made = [(0, (name,), dtype) for name in oplist.given]  # stage, names of a buffer, its type
    for number, op in enumerate(oplist.ops):
        for names in [op.outputs] if op.name in MERGED else [(name,) for name in op.outputs]:
            if not is_change(op):
                made.append((number, names, dtype_of(oplist, op, names[0], dtype)))
    grouped: list[tuple[tuple[str, ...], torch.dtype, int]] = []  # names of a buffer, its type, its width
    buffers: list[Buffer] = []
    for number, names, kind in made:
        width = sum(oplist.values[name].width for name in names)
        count = oplist.values[names[0]].axis.at(sizes)
        grouped.append((names, kind, width))
        buffers.append(Buffer(number, max(last[name] for name in names), -(-count * width * kind.itemsize // ALIGNMENT) * ALIGNMENT))
    starts, size = place_buffers(buffers, reuse=reuse)
    found: dict[str, Place] = {}
    for start, (names, kind, stride) in zip(starts, grouped, strict=True):
        first = 0
        for name in names:
            handle = oplist.values[name]
            found[name] = Place(start, stride, first, handle.width, kind, handle.axis)
            first += handle.width
    return found | {new: found[product] for new, product in changed.items()}, size


def dtype_of(oplist: OpList, op: Op, name: str, dtype: torch.dtype) -> torch.dtype:
    """The type of a value: activations have the runner's `dtype`, scales and rotations are fp32."""
    kind = oplist.values[name].dtype
    if kind != "f32":
        return DTYPES[kind]
    return torch.float32 if op.name in FP32_OPS or name.endswith(".scales") else dtype


class DevicePlan:
    """One op list over given weights, for steps of at most these `sizes`, padding included.

    dtype      of activations: fp32, bf16 or fp16
    scratch    uint8, shared by products, attention and sampling
    invariant  a token's bits do not depend on what else is in its step
    adapters   slots of those that tokens may have
    reuse      False where all values are read afterwards
    """

    def __init__(
        self,
        oplist: OpList,
        weights: DeviceWeights,
        shape: KVShape,
        device: Device,
        dtype: torch.dtype,
        *,
        sizes: Sizes,
        scratch: torch.Tensor,
        invariant: bool = False,
        adapters: DeviceAdapterSlots | None = None,
        reuse: bool = True,
    ) -> None:
        self.oplist, self.weights, self.device, self.dtype = oplist, weights, device, dtype
        self.scratch, self.invariant, self.adapters = scratch, invariant, adapters
        self.sizes = sizes
        self._places, size = place_values(oplist, dtype, sizes, reuse=reuse)
        self._memory = device.empty(size, dtype=torch.uint8)
        self._groups = {layer: number for number, group in enumerate(shape.groups) for layer in group.layers}
        self._index = {layer: index for group in shape.groups for index, layer in enumerate(group.layers)}
        self.constants: dict[object, torch.Tensor] = {}
        """Constants that ops need on the device, made when they are first bound."""

    @property
    def nbytes(self) -> int:
        """Bytes of values and scratch."""
        return self._memory.nbytes + self.scratch.nbytes

    def value(self, name: str, bucket: Bucket) -> torch.Tensor:
        """A view of a value in a step of this bucket; the next step overwrites it."""
        place = self._places[name]
        count = place.rows(bucket)
        buffer = self._memory[place.start : place.start + count * place.stride * place.dtype.itemsize].view(place.dtype)
        return buffer.view(count, place.stride)[:, place.first : place.first + place.width]

    def merged(self, names: Sequence[str], bucket: Bucket) -> torch.Tensor:
        """All outputs of a merged product as one view, the first one's columns first."""
        place = self._places[names[0]]
        count = place.rows(bucket)
        buffer = self._memory[place.start : place.start + count * place.stride * place.dtype.itemsize].view(place.dtype)
        return buffer.view(count, place.stride)

    def layer(self, op: Op, cache: DeviceKVCache) -> tuple[int, CacheLayer]:
        """Number of the KV group of the op's layer, and the layer's K and V."""
        layer = int(op.attributes["layer"])  # type: ignore[arg-type]
        return self._groups[layer], cache.layer(self._index[layer])


class Binding:
    """Views of one bucket for the providers of ops. `ids` int32 [T]: ids of the step's tokens, once all are known."""

    def __init__(self, plan: DevicePlan, inputs: DeviceInputs, cache: DeviceKVCache, ids: torch.Tensor) -> None:
        self.plan, self.inputs, self.cache, self.ids = plan, inputs, cache, ids

    def value(self, name: str) -> torch.Tensor:
        """A value, or a step input, of this bucket."""
        if name in INPUTS:
            return self.ids if name == "ids" else self.inputs[name]
        return self.plan.value(name, self.inputs.bucket)

    def values(self, names: Sequence[str]) -> list[torch.Tensor]:
        """Several values."""
        return [self.value(name) for name in names]

    def merged(self, names: Sequence[str]) -> torch.Tensor:
        """The outputs of a merged product as one."""
        return self.plan.merged(names, self.inputs.bucket)

    def vector(self, op: Op, number: int = 0) -> torch.Tensor:
        """One of the op's vectors, fp32."""
        return self.plan.weights.vectors[op.weights[number].name]

    def matrix(self, name: str) -> DeviceWeight | None:
        """A matrix by its own name, or by the first output of a merged product; None where those did not merge."""
        return self.plan.weights.matrices.get(name)

    def experts(self, op: Op) -> DeviceWeight:
        """The stack of a product with experts: of gate and up under the op's output, else under the weight's name."""
        stacks = self.plan.weights.experts
        return stacks[op.outputs[0] if op.outputs[0] in stacks else op.weights[0].name]

    def table(self, op: Op) -> torch.Tensor:
        """The op's table of embeddings."""
        return self.plan.weights.tables[op.weights[0].name]

    def layer(self, op: Op) -> tuple[int, CacheLayer]:
        """KV group and cache of the op's layer."""
        return self.plan.layer(op, self.cache)

    def constant(self, key: object, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """A tensor that does not depend on the step, made once."""
        if key not in self.plan.constants:
            self.plan.constants[key] = make()
        return self.plan.constants[key]
