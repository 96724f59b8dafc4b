"""From a lowered list to launches: where values lie, and for a bucket of sizes the calls that compute it.

Owns the memory of values: one piece, sized for the largest bucket, in which a value takes the place of others that nothing needs any more.
Outputs of a merged product lie beside each other in one buffer; each is a view of its columns. Every op has one line in `providers.BIND`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch

from ridgeline.compute.cuda.attention import TRITON, Attention
from ridgeline.compute.cuda.cache import CacheLayer, DeviceKVCache
from ridgeline.compute.cuda.device import DTYPES, Device
from ridgeline.compute.cuda.providers import BIND, MERGED
from ridgeline.compute.cuda.step import DeviceInputs
from ridgeline.compute.cuda.weights import DeviceWeight
from ridgeline.compute.graph import INPUTS, Axis, Op, OpList, Sizes
from ridgeline.compute.liveness import Buffer, last_stages, placed
from ridgeline.core.plan import KVShape

ALIGNMENT: Final = 256
WIDE: Final = frozenset({"rotation"})
"""Ops whose numbers are fp32 whatever the activations are."""


class Place(NamedTuple):
    """A value: columns [first, first + width) of a buffer whose rows have `stride` numbers of `dtype`; it begins `start` bytes in."""

    start: int
    stride: int
    first: int
    width: int
    dtype: torch.dtype
    axis: Axis

    def rows(self, tokens: int, rows: int) -> int:
        """Rows in a step of so many tokens and rows, each of which selects one position."""
        return self.axis.at(Sizes(T=tokens, R=rows, S=rows))


class Call(NamedTuple):
    """One launch, or a few. `attention`: the op where it is one, which depends on rows and tables and stands between two segments."""

    run: Callable[[], None]
    attention: Op | None = None


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's weights on a device.

    matrices  by name; those of a merged product together, under the name of the product's first output
    tables    of embeddings, floats [V, D]
    vectors   fp32
    """

    matrices: Mapping[str, DeviceWeight]
    tables: Mapping[str, torch.Tensor]
    vectors: Mapping[str, torch.Tensor]

    @property
    def nbytes(self) -> int:
        """Bytes on the device; a table that is a matrix too counts once."""
        owned = {tensor.data_ptr(): tensor.nbytes for tensor in (*self.tables.values(), *self.vectors.values())}
        values = (getattr(weight, "values", None) for weight in self.matrices.values())
        twice = sum(tensor.nbytes for tensor in values if tensor is not None and tensor.data_ptr() in owned)
        return sum(owned.values()) + sum(weight.nbytes for weight in self.matrices.values()) - twice


def places(oplist: OpList, dtype: torch.dtype, tokens: int, rows: int, *, reuse: bool = True) -> tuple[dict[str, Place], int]:
    """Where every value lies at the largest sizes, and the bytes of all. Results and taps keep their places to the end; with `reuse` off
    every value does."""
    last = last_stages(oplist, [[op] for op in oplist.ops])
    together: list[tuple[tuple[str, ...], torch.dtype, int]] = []  # names of a buffer, its type, its width
    buffers: list[Buffer] = []
    for number, op in enumerate(oplist.ops):
        for names in [op.outputs] if op.name in MERGED else [(name,) for name in op.outputs]:
            kind = dtype_of(oplist, op, names[0], dtype)
            width = sum(oplist.values[name].width for name in names)
            count = oplist.values[names[0]].axis.at(Sizes(T=tokens, R=rows, S=rows))
            together.append((names, kind, width))
            buffers.append(Buffer(number, max(last[name] for name in names), -(-count * width * kind.itemsize // ALIGNMENT) * ALIGNMENT))
    starts, size = placed(buffers, reuse=reuse)
    found: dict[str, Place] = {}
    for start, (names, kind, stride) in zip(starts, together, strict=True):
        first = 0
        for name in names:
            handle = oplist.values[name]
            found[name] = Place(start, stride, first, handle.width, kind, handle.axis)
            first += handle.width
    return found, size


def dtype_of(oplist: OpList, op: Op, name: str, dtype: torch.dtype) -> torch.dtype:
    """What a value's numbers are: activations are the runner's `dtype`, scales and rotations fp32."""
    kind = oplist.values[name].dtype
    if kind != "f32":
        return DTYPES[kind]
    return torch.float32 if op.name in WIDE or name.endswith(".scales") else dtype


class DevicePlan:
    """One op list over given weights, for steps of at most `tokens` tokens and `rows` rows, padding included.

    dtype      of activations: fp32, bf16 or fp16
    scratch    what products and attention use beside their arguments, bytes
    invariant  a token's bits do not depend on what else is in its step
    attention  who computes it
    reuse      off where all values are to be read
    """

    def __init__(
        self,
        oplist: OpList,
        weights: Weights,
        shape: KVShape,
        device: Device,
        dtype: torch.dtype,
        *,
        tokens: int,
        rows: int,
        scratch: torch.Tensor,
        invariant: bool = False,
        attention: Attention = TRITON,
        reuse: bool = True,
    ) -> None:
        self.oplist, self.weights, self.device, self.dtype = oplist, weights, device, dtype
        self.scratch, self.invariant, self.attention = scratch, invariant, attention
        self._places, size = places(oplist, dtype, tokens, rows, reuse=reuse)
        self._memory = device.empty(size, dtype=torch.uint8)
        self._groups = {layer: number for number, group in enumerate(shape.groups) for layer in group.layers}
        self._index = {layer: index for group in shape.groups for index, layer in enumerate(group.layers)}
        self.kept: dict[object, torch.Tensor] = {}
        """Constants that ops need on the device, made when they are first bound."""

    @property
    def nbytes(self) -> int:
        """Bytes of values and scratch."""
        return self._memory.nbytes + self.scratch.nbytes

    def bind(self, binding: "Binding", first: int, end: int) -> list[Call]:
        """The calls of ops first ≤ n < end, one by one, over views that are made once."""
        return [Call(BIND[op.name](binding, op), op if op.name == "attention" else None) for op in self.oplist.ops[first:end]]

    def attentions(self, binding: "Binding", call: Call) -> Call:
        """The call for another bucket of as many tokens: itself, unless it is an attention."""
        return call if call.attention is None else Call(self.attention.bind(binding, call.attention), call.attention)

    def value(self, name: str, tokens: int, rows: int) -> torch.Tensor:
        """A view of a value in a step of so many tokens and rows; the next step overwrites it."""
        place = self._places[name]
        count = place.rows(tokens, rows)
        whole = self._memory[place.start : place.start + count * place.stride * place.dtype.itemsize].view(place.dtype)
        return whole.view(count, place.stride)[:, place.first : place.first + place.width]

    def merged(self, names: Sequence[str], tokens: int, rows: int) -> torch.Tensor:
        """All outputs of a merged product as one view, the first one's columns first."""
        place = self._places[names[0]]
        count = place.rows(tokens, rows)
        whole = self._memory[place.start : place.start + count * place.stride * place.dtype.itemsize].view(place.dtype)
        return whole.view(count, place.stride)

    def layer(self, op: Op, cache: DeviceKVCache) -> tuple[int, CacheLayer]:
        """KV group of the op's layer, and where its K and V are."""
        layer = int(op.attributes["layer"])  # type: ignore[arg-type]
        return self._groups[layer], cache.layer(self._index[layer])


class Binding:
    """What an op's provider may ask for while it is bound to a bucket. `ids`: those of the step's tokens, once they are all known."""

    def __init__(self, plan: DevicePlan, inputs: DeviceInputs, cache: DeviceKVCache, ids: torch.Tensor) -> None:
        self.plan, self.inputs, self.cache, self.ids = plan, inputs, cache, ids

    def value(self, name: str) -> torch.Tensor:
        """A value, or a step input, of this bucket."""
        if name in INPUTS:
            return self.ids if name == "ids" else self.inputs[name]
        return self.plan.value(name, self.inputs.bucket.tokens, self.inputs.bucket.rows)

    def values(self, names: Sequence[str]) -> list[torch.Tensor]:
        """Several values."""
        return [self.value(name) for name in names]

    def merged(self, names: Sequence[str]) -> torch.Tensor:
        """The outputs of a merged product as one."""
        return self.plan.merged(names, self.inputs.bucket.tokens, self.inputs.bucket.rows)

    def vector(self, op: Op, number: int = 0) -> torch.Tensor:
        """One of the op's vectors, fp32."""
        return self.plan.weights.vectors[op.weights[number].name]

    def matrix(self, name: str) -> DeviceWeight | None:
        """A matrix by its own name, or by the first output of a merged product; None where those did not merge."""
        return self.plan.weights.matrices.get(name)

    def table(self, op: Op) -> torch.Tensor:
        """The op's table of embeddings."""
        return self.plan.weights.tables[op.weights[0].name]

    def layer(self, op: Op) -> tuple[int, CacheLayer]:
        """KV group and cache of the op's layer."""
        return self.plan.layer(op, self.cache)

    def constant(self, key: object, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """A tensor that does not depend on the step, made once."""
        if key not in self.plan.kept:
            self.plan.kept[key] = make()
        return self.plan.kept[key]
