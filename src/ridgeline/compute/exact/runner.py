"""The numpy runner: executes an op list with the ops' references, and with exact products and attention where those matter.

Defines what a step means and is the fall-back everywhere. Owns the threads that share a step's work; never owns weights or
the cache, and knows nothing of requests.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.adapters.slots import AdapterSlots
from ridgeline.compute.exact import attention, product
from ridgeline.compute.exact.cache import KVCache
from ridgeline.compute.exact.self_test import Exactness, HeadShape, check_exactness
from ridgeline.compute.exact.threads import Team, one_blas_thread
from ridgeline.compute.graph import Op, OpList, StepInputs
from ridgeline.compute.liveness import last_uses
from ridgeline.compute.lowering.adapters import add_adapters, changed_matrices
from ridgeline.compute.lowering.lower import head_of, lower
from ridgeline.compute.ops.definition import CACHE_READS, Floats
from ridgeline.compute.ops.table import OPS, check
from ridgeline.compute.quant.weight import Weight
from ridgeline.compute.runner import Places, finite_tokens, stored_names
from ridgeline.compute.trace import RUN, StepTrace
from ridgeline.core.plan import KVShape

Values = dict[str, Any]


def providers(team: Team) -> Mapping[str, Callable[..., Any]]:
    """Op → what computes it here: it takes the matrices of the definition as weight handles. An op that is not named runs its reference,
    which takes arrays."""
    return {
        "linear": partial(product.linear, team),
        "embed": product.embed,
        "route": partial(product.route, team),
        "linear_experts": partial(product.linear_experts, team),
        "linear_heads": partial(product.linear_heads, team),
        "attention": partial(attention.attention, team),
    }


@dataclass(frozen=True, slots=True)
class _Step:
    """One op with everything that does not change from step to step: which values it reads, then its weights."""

    op: Op
    compute: Callable[..., Any]
    sources: tuple[str | Weight | Floats | None, ...]
    dead: tuple[str, ...]

    def run(self, values: Values) -> None:
        made = self.compute(*(values[s] if isinstance(s, str) else s for s in self.sources))
        if len(self.op.outputs) == 1:
            values[self.op.outputs[0]] = made
        else:
            values.update(zip(self.op.outputs, made or (), strict=True))


class NumpyRunner:
    """Runs one op list over given weights. `shape` says which layers share a KV group, and the tokens in a block.

    weights   by name: handles as `compute/quant/weight.py` has them
    threads   that share a step; no result depends on how many
    """

    moves_grammars = False

    def __init__(self, oplist: OpList, weights: Mapping[str, Weight], shape: KVShape, *, threads: int = 1, slots: int = 0) -> None:
        """slots: how many adapters its steps may have; 0: none."""
        check(oplist)
        self.oplist = lower(oplist, "numpy")
        self.adapters: AdapterSlots | None = None
        self._shape = shape
        self._team = Team(threads)
        self.trace: StepTrace | None = None
        self._ops_done = 0
        self._groups = {layer: number for number, group in enumerate(shape.groups) for layer in group.layers}
        self._steps = self._bound(self.oplist, weights)
        self._changed: list[_Step] | None = None
        """The steps where a row has an adapter."""
        if slots:
            changed = lower(add_adapters(oplist), "numpy")
            self.adapters = AdapterSlots(changed_matrices(changed), slots)
            self._changed = self._bound(changed, {**weights, **self.adapters.pairs})

    def run(
        self,
        inputs: StepInputs,
        kv: KVCache,
        taps: Iterable[str] = (),
        *,
        keep: NDArray[np.int32] | None = None,
        masks: Callable[[], NDArray[np.int64]] | Places | None = None,
        given: Mapping[str, Floats] | None = None,
    ) -> Values:
        """One step: the list's outputs, and the taps that are asked for, by name. Writes this step's K and V into `kv`.

        `logits` is fp32 [S, V], also where only some of them are needed (`keep`, `masks`); a tap over tokens is fp32 [T, …]; `finite` [T]
        is true of a token if its final hidden state is.
        """
        values = self._start(inputs, kv) | dict(given or {})
        began = perf_counter() if self.trace is not None else 0.0
        self._run(self._of(inputs), values)
        if self.trace is not None:
            self.trace.span(RUN, began, perf_counter(), tokens=len(inputs.ids), rows=len(inputs.kv_len))
        results = {name: values[value] for name, value in self.oplist.outputs.items()}
        hidden = values[self.oplist.taps["hidden"]]
        tapped = {name: hidden[inputs.select] if name == "selected" else values[self.oplist.taps[name]] for name in taps}
        return results | tapped | {"finite": finite_tokens(hidden)}

    def logits(self, hidden: Floats) -> Floats:
        """Final hidden states fp32 [N, D], rows of the tap "hidden" of any steps, to logits fp32 [N, V].

        Bit for bit what those steps give the same positions when they are selected.
        """
        head = head_of(self.oplist)
        values: Values = {self._steps[head - 1].op.outputs[0]: hidden}
        self._run(self._steps[head:], values)
        logits: Floats = values[self.oplist.outputs["logits"]]
        return logits

    def values(self, inputs: StepInputs, kv: KVCache, until: int | None = None) -> dict[str, Floats]:
        """Runs ops 0 … `until` and returns every named value that they made; see `compute/runner.py`."""
        values = self._start(inputs, kv)
        made: dict[str, Floats] = {}
        steps = self._of(inputs)
        last = len(steps) if until is None else until + 1
        with one_blas_thread(), np.errstate(all="ignore"):
            for step in steps[:last]:
                step.run(values)
                made |= {name: values[name] for name in step.op.outputs}
                made |= {name: values[name][values[self._read("slots", step.op)]] for name in stored_names(step.op)}
        return made

    def exactness(self) -> Exactness:
        """Tests on this machine, with this list's shapes, that the arithmetic keeps its promise."""
        products = ("linear", "route", "linear_experts", "linear_heads")
        matrices = {op.weights[0].shape[-2:] for op in self.oplist.ops if op.name in products}
        written = {op.attributes["layer"]: op.inputs[0] for op in self.oplist.ops if op.name == "kv_write"}
        width = {name: handle.width for name, handle in self.oplist.values.items() if name not in ("ids", "positions")}
        heads = {
            HeadShape(
                width[op.inputs[0]] // dim,
                width[written[op.attributes["layer"]]] // dim,
                dim,
                float(op.attributes["softcap"]),
                int(op.attributes["value_dim"]),
            )
            for op in self.oplist.ops
            if op.name == "attention" and (dim := int(op.attributes["head_dim"]))
        }
        return check_exactness(matrices, heads, self._team)

    def beat(self) -> int:
        """A number that changes with every op, and with every piece of one that a thread has done."""
        return self._ops_done + self._team.done

    def close(self) -> None:
        """Ends the runner's threads. Safe to call twice."""
        self._team.close()

    def _bound(self, oplist: OpList, weights: Mapping[str, Any]) -> list[_Step]:
        kernels = providers(self._team)
        return [self._bind(op, kernels, weights, dead) for op, dead in zip(oplist.ops, last_uses(oplist), strict=True)]

    def _of(self, inputs: StepInputs) -> list[_Step]:
        """The steps that compute these inputs."""
        if inputs.adapter is None:
            return self._steps
        assert self._changed is not None, "a row has an adapter where none is taken"
        return self._changed

    def _run(self, steps: Sequence[_Step], values: Values) -> None:
        """Runs ops over named values, which it makes and, after their last use, drops."""
        with one_blas_thread(), np.errstate(all="ignore"):
            for step in steps:
                if self.trace is None:
                    step.run(values)
                else:
                    began = perf_counter()
                    step.run(values)
                    self.trace.span(str(step.op), began, perf_counter())
                self._ops_done += 1
                for name in step.dead:
                    del values[name]

    def _start(self, inputs: StepInputs, kv: KVCache) -> Values:
        values: Values = {
            "ids": inputs.ids,
            "positions": inputs.positions,
            "row_of_token": inputs.row_of_token,
            "cu_q": inputs.cu_q,
            "kv_len": inputs.kv_len,
            "select": inputs.select,
            "adapter": inputs.adapter,
            "state_rows": inputs.state_rows,
            "block_tokens": self._shape.block_tokens,
        }
        for number, group in enumerate(self._shape.groups):
            values[f"tables.{number}"], values[f"slots.{number}"] = inputs.tables[number], inputs.slots[number]
            for index, layer in enumerate(group.layers):
                values[f"keys.{layer}"], values[f"values.{layer}"] = kv.layer(index)
        if kv.states is not None:
            values |= {f"tail.{layer}": tail for layer, tail in kv.states.tails.items()}
            values |= {f"state.{layer}": state for layer, state in kv.states.states.items()}
        return values

    def _bind(self, op: Op, kernels: Mapping[str, Callable[..., Any]], weights: Mapping[str, Weight], dead: tuple[str, ...]) -> _Step:
        """Finds for every parameter of the op where its argument comes from."""
        definition = OPS[op.name]
        attributes = {name: op.attributes[name] for name in definition.attributes}
        compute = kernels.get(op.name, definition.reference)
        stored = definition.matrices if op.name in kernels else ()
        inputs, own = iter(op.inputs), iter(op.weights)
        sources: list[Any] = []
        for name in definition.parameters:
            if name in definition.inputs:
                sources.append(next(inputs))
            elif name in definition.weights:
                weight = next(own, None)
                found = None if weight is None else weights[weight.name]
                sources.append(found if found is None or name in stored else found.dense())
            else:
                sources.append(self._read(name, op))
        return _Step(op, partial(compute, **attributes) if attributes else compute, tuple(sources), dead)

    def _read(self, name: str, op: Op) -> str:
        if name not in CACHE_READS or name == "block_tokens":
            return name
        layer = int(op.attributes["layer"])
        return f"{name}.{layer}" if name in ("keys", "values", "tail", "state") else f"{name}.{self._groups[layer]}"
