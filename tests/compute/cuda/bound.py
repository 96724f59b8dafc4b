"""One op of a sample, bound as a runner binds it: tensors where values, weights, cache and step inputs lie, results poisoned."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from paged import stored
from quantised_weights import dense
from tensors import DEVICE, numbers, on_device, poisoned, within

from ridgeline.compute.cuda.adapters import AdapterColumns, DeviceAdapterSlots, is_change, put_in_order
from ridgeline.compute.cuda.buckets import Bucket
from ridgeline.compute.cuda.device import DTYPES, interpreted, open_device
from ridgeline.compute.cuda.plan import FP32_OPS, MERGED
from ridgeline.compute.cuda.providers import PROVIDERS
from ridgeline.compute.cuda.weights import merged, place, place_experts
from ridgeline.compute.graph import Op, Sizes, Weight
from ridgeline.compute.lowering.experts import EXPERTS
from ridgeline.compute.ops.definition import Definition, Sample
from ridgeline.compute.ops.fp8 import from_e4m3
from ridgeline.compute.ops.lora import Pair
from ridgeline.compute.quant.weight import DenseWeight

FULL = {"turn", "weights"}
"""Inputs that are fp32 whatever the activations are."""

CACHE_BLOCK = 4
"""Tokens of a block where a sample does not say: its slots are a multiple of it."""

SCRATCH = poisoned(16 << 20, dtype=torch.uint8)


@dataclass(frozen=True)
class Result:
    """What a provider wrote, as numbers of numpy, beside the reference's: equally many of each."""

    ours: list[np.ndarray]
    theirs: list[np.ndarray]


class Binding:
    """What `plan.Binding` is to a provider."""

    def __init__(self, definition: Definition, sample: Sample, dtype: torch.dtype, kv: str) -> None:
        given = dict(sample.arguments)
        self.values_ = {name: _value(name, given[name], dtype) for name in definition.inputs}
        routed = definition.name in EXPERTS
        self.matrices = {
            name: place(DenseWeight(given[name].reshape(-1, given[name].shape[-1])), dtype, DEVICE, fp8="fp8" in definition.name)
            for name in (() if routed or definition.name.startswith(("embed", "lora")) else definition.matrices)
        }
        stacks = {name: place_experts(DenseWeight(given[name]), dtype, DEVICE) for name in definition.matrices if routed}
        self.tables = {name: on_device(given[name], dtype) for name in _of(definition, "embed")}
        pairs = [name for name in definition.weights if definition.name.startswith("lora")]
        others = (*self.matrices, *self.tables, *pairs, *stacks)
        vectors = [name for name in definition.weights if name not in others and given[name] is not None]
        self.vectors = {name: on_device(given[name]) for name in vectors}
        self.cache = stored(given["keys"], given["values"], given.get("block_tokens", CACHE_BLOCK), kv) if "keys" in given else None
        self.inputs = _Inputs(given)
        self.plan = SimpleNamespace(invariant=False, scratch=SCRATCH, sizes=Sizes(T=64, R=8, S=8), device=SimpleNamespace(torch=DEVICE))
        if pairs:
            self.plan.adapters = filled_slots(definition, {name: given[name] for name in pairs}, given, dtype)
        exact = {name: numbers(value) for name, value in (self.values_ | self.tables | self.vectors).items()}
        exact |= {name: dense(matrix).astype(np.float32) for name, matrix in (self.matrices | stacks).items()}
        self.theirs = {**given, **{name: array.reshape(given[name].shape) for name, array in exact.items()}}
        self.theirs |= {name: given[name] for name, array in given.items() if isinstance(array, np.ndarray) and array.dtype == np.uint8}
        if self.cache is not None:
            self.theirs |= dict(zip(("keys", "values"), self.stored(), strict=True))
        if definition.name in MERGED:
            whole = merged([self.matrices[name] for name in definition.weights])
            assert whole is not None
            self.matrices = {"out.0": whole}
        self.stack = merged(list(stacks.values())) if stacks else None

    def results(self, definition: Definition, references: list[np.ndarray], dtype: torch.dtype) -> None:
        """Room for results like these, poisoned; those of a merged product beside each other."""
        if is_change(Op(definition.name, (), ())):  # it changes products where they lie
            products = [self.values_[name] for name in definition.inputs[1:-1]]
            self.whole = within(torch.cat(products, dim=1))
            parts = self.whole.split([each.shape[1] for each in products], dim=1)
        elif definition.name in MERGED:
            self.whole = within(poisoned(len(references[0]), sum(each.shape[1] for each in references), dtype=dtype))
            parts = self.whole.split([each.shape[1] for each in references], dim=1)
        else:
            wholes = [poisoned(*each.shape, dtype=_type(definition, each, dtype)) for each in references]
            parts = [whole if whole.shape[1:] == (1,) or whole.dtype == torch.int32 else within(whole) for whole in wholes]
        self.values_ |= {f"out.{number}": part for number, part in enumerate(parts)}

    def stored(self) -> list[np.ndarray]:
        """All of the cache, as fp32 [slots, KV heads, D]."""
        assert self.cache is not None
        slots = torch.arange(self.cache.block_tokens * self.cache.pool.shape[2], device=DEVICE)
        return [part.cpu().numpy() for part in self.cache.read(0, slots)]

    def value(self, name: str) -> torch.Tensor:
        return self.values_[name]

    def values(self, names: tuple[str, ...]) -> list[torch.Tensor]:
        return [self.values_[name] for name in names]

    def merged(self, names: tuple[str, ...]) -> torch.Tensor:
        return self.whole if len(names) > 1 else self.values_[names[0]]

    def vector(self, op: Op, number: int = 0) -> torch.Tensor:
        return self.vectors[op.weights[number].name]

    def matrix(self, name: str) -> Any:
        return self.matrices.get(name)

    def experts(self, op: Op) -> Any:
        return self.stack

    def table(self, op: Op) -> torch.Tensor:
        return self.tables[op.weights[0].name]

    def layer(self, op: Op) -> tuple[int, Any]:
        assert self.cache is not None
        return 0, self.cache.layer(0)

    def constant(self, key: object, make: Any) -> torch.Tensor:
        return make()  # type: ignore[no-any-return]


class _Inputs:
    """A step's columns."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.columns = {name: on_device(given[name]) for name in ("select", "cu_q", "kv_len") if name in given}
        self.slots = [on_device(given["slots"])] if "slots" in given else []
        self.tables = [on_device(given["tables"])] if "tables" in given else []
        if "experts" in given:
            self.columns["count"] = on_device(np.array([len(given["experts"])], np.int32))
        if "cu_q" in given:
            counts = np.diff(given["cu_q"])
            self.columns["row_of_token"] = on_device(np.repeat(np.arange(len(counts), dtype=np.int32), counts))
            self.columns["table_row"] = on_device(np.arange(len(counts), dtype=np.int32))
            self.bucket = Bucket(int(counts.sum()), len(counts), given["tables"].shape[1], int(counts.max()))
        if ("slots" in given and "y" in given) or "y0" in given:
            self.columns |= tiles_of(given["slots"].reshape(-1), SLOTS)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.columns[name]


SLOTS = 4
"""Of adapters."""


def tiles_of(adapter: np.ndarray, slots: int, *, invariant: bool = False) -> dict[str, torch.Tensor]:
    """A step's columns of tokens in the order of their adapters, on the device."""
    tokens = np.full(AdapterColumns(slots, invariant).shape(len(adapter)), 0x7F, np.int32)
    numbers = np.full(len(tokens), 0x7F, np.int32)
    put_in_order(adapter, tokens, numbers)
    return {"adapter_tokens": on_device(tokens), "adapter_slots": on_device(numbers)}


def changed_shapes(definition: Definition, given: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Shapes [N, K] of the matrices that a change's weights are for; none of another op."""
    if not is_change(Op(definition.name, (), ())):
        return {}
    products = (given[name] for name in definition.inputs[1:-1])
    return {name: (y.shape[1], given["x"].shape[1]) for name, y in zip(definition.weights, products, strict=True)}


def filled_slots(
    definition: Definition, pairs: dict[str, list[Pair | None]], given: Mapping[str, Any], dtype: torch.dtype
) -> DeviceAdapterSlots:
    """Slots with the pairs of a sample, by the names of its weights; memory that they leave is poisoned."""
    weights = tuple(Weight(name, shape) for name, shape in changed_shapes(definition, given).items())
    change = SimpleNamespace(ops=[Op(definition.name, definition.inputs, (), weights=weights)])
    ranks = [len(pair.a) for own in pairs.values() for pair in own if pair is not None]
    device = open_device() if DEVICE.type == "cuda" else interpreted(1 << 30)
    slots = DeviceAdapterSlots(change, SLOTS, max(ranks), dtype, device)  # type: ignore[arg-type]
    slots.slots.memory.fill_(0xFF)
    for slot in range(SLOTS):
        own = {name: each[slot] for name, each in pairs.items() if slot < len(each)}
        slots.fill(slot, slots.pack({name: pair for name, pair in own.items() if pair is not None}))
    return slots


def run(definition: Definition, sample: Sample, kind: str) -> Result:
    """The op by its provider and by its reference, over the same numbers: those of the sample rounded to `kind`."""
    dtype = DTYPES[kind]
    binding = Binding(definition, sample, dtype, kind)
    theirs = {name: np.array(value) if isinstance(value, np.ndarray) else value for name, value in binding.theirs.items()}
    made = definition.reference(**theirs)
    references = [] if made is None else list(made) if isinstance(made, tuple) else [made]
    outputs = tuple(f"out.{number}" for number in range(len(references)))
    binding.results(definition, references, dtype)
    there = [name for name in definition.weights if sample.arguments[name] is not None]
    shapes = changed_shapes(definition, sample.arguments) or {name: np.shape(sample.arguments[name]) for name in there}
    weights = tuple(Weight(name, shapes[name]) for name in there)
    attributes = {name: sample.arguments[name] for name in definition.attributes}
    PROVIDERS[definition.name](binding, Op(definition.name, definition.inputs, outputs, attributes, weights))()  # type: ignore[arg-type]
    ours = [numbers(each) for each in binding.values(outputs)]
    if "fp8" in definition.name and references[-1].shape[1:] == (1,):  # codes mean something with their scales alone
        references[-2], ours[-2] = from_e4m3(references[-2]) * references[-1], ours[-2] * ours[-1]
    if definition.writes:
        references, ours = [*references, *(theirs[name] for name in definition.writes)], [*ours, *binding.stored()]
    return Result(ours, references)


def _of(definition: Definition, family: str) -> tuple[str, ...]:
    """Weights of the ops of a family."""
    return definition.weights if definition.name.startswith(family) else ()


def _value(name: str, array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """An input where the runner would have it: a view into a wider buffer; integers and scales by themselves."""
    if array.dtype == np.uint8:
        return within(on_device(array).view(torch.float8_e4m3fn))
    if array.dtype != np.float32 or name == "scales":
        return on_device(array)
    return within(on_device(array, torch.float32 if name in FULL else dtype))


def _type(definition: Definition, reference: np.ndarray, dtype: torch.dtype) -> torch.dtype:
    """Of a result: codes are e4m3, scales and rotations fp32, the rest is activations."""
    if reference.dtype == np.uint8:
        return torch.float8_e4m3fn
    if reference.dtype == np.int32:
        return torch.int32
    return torch.float32 if reference.shape[1:] == (1,) or definition.name in FP32_OPS else dtype
