"""Recurrences by hand: an op over random sequences, in steps of several rows, by its reference and by a native plan of that one op."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.cache import allocate_native_kv
from ridgeline.compute.cpu.plan import NativePlan
from ridgeline.compute.cpu.runner import arguments
from ridgeline.compute.graph import TOKENS, Handle, Op, OpList, Sizes, StepInputs, Weight
from ridgeline.compute.ops.definition import Definition, floats
from ridgeline.compute.ops.table import OPS
from ridgeline.compute.states import RecurrentShape, StateCache, allocate_states
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.facts.model import CachedHeads

Arrays = dict[str, np.ndarray]
Step = Callable[[Arrays, Arrays], np.ndarray]
"""(inputs, what the step says of its rows) → what the op makes. Changes what it keeps."""

SHAPE = KVShape((KVGroup("full", (0,), 0),), 4, 1, b"")
RECURRENCES = ("short_conv", "gated_delta")


def native_step(definition: Definition, given: Mapping[str, Any], threads: int, most: Sizes) -> Step:
    """The op by a native plan for steps of at most so many tokens and rows; `given` has inputs as wide as those of steps, weights,
    attributes, and what is kept, which it changes. Its result holds NaN before."""
    (kept,) = definition.writes
    handles = {name: Handle(name, TOKENS, given[name].shape[1]) for name in definition.inputs}
    weights = {name: Weight(name, given[name].shape) for name in definition.weights}
    made = definition.record(**handles, **weights, **{name: given[name] for name in definition.attributes}, layer=0)
    (out,) = made.made
    op = Op(definition.name, definition.inputs, ("out",), made.attributes, made.weights)
    oplist = OpList("step", (op,), {**handles, "out": replace(out, name="out")}, {"out": "out"}, {})
    states = StateCache({0: given[kept]}, {}) if kept == "tail" else StateCache({}, {0: given[kept]})
    cache = replace(allocate_native_kv(SHAPE, CachedHeads(1, 16), "f32"), states=states)
    plan = NativePlan(oplist, {name: given[name] for name in weights}, cache, SHAPE, most, ext.native().Team(threads))

    def step(inputs: Arrays, rows: Arrays) -> np.ndarray:
        tokens, count = len(inputs["x"]), len(rows["kv_len"])
        sizes, none = Sizes(T=tokens, R=count, S=0), np.zeros(max(tokens, count), np.int32)
        plan.value("out", sizes).view(np.uint8)[...] = 0xFF
        for name in definition.inputs:
            plan.value(name, sizes)[...] = inputs[name]
        slots, tables = (none[:tokens].astype(np.int64),), (none[:count, None],)
        now = StepInputs(none[:tokens], none[None, :tokens], none[:tokens], rows["cu_q"], rows["kv_len"], tables, slots, none[:0],
                         state_rows=rows["state_rows"])  # fmt: skip
        plan.native.run(*arguments(now), 0, plan.native.phases, 0, 0)
        return plan.value("out", sizes).copy()

    return step


def reference_step(definition: Definition, given: Mapping[str, Any]) -> Step:
    """The op by its reference."""

    def step(inputs: Arrays, rows: Arrays) -> np.ndarray:
        own = {**given, **inputs, **rows}
        with np.errstate(all="ignore"):
            made = definition(*(own[name] for name in definition.parameters), **{name: own[name] for name in definition.attributes})
        assert isinstance(made, np.ndarray)
        return made

    return step


class Layer:
    """One op over `rows` random sequences of `length` tokens, number r by its place r in what is kept, with states of `positions`."""

    def __init__(self, name: str, *, length: int, rows: int, positions: int, wide: bool = False) -> None:
        taps, keys, values, dk, dv = (4, 2, 4, 128, 128) if wide else (4, 1, 2, 10, 40)
        channels = 2 * keys * dk + values * dv
        self.definition, self.length, self.positions = OPS[name], length, positions
        states = allocate_states({0: RecurrentShape(taps, channels, values, dk, dv)}, rows, positions)
        seeds = iter(range(100, 100 + 4 * rows))
        self.sequences = [
            {part: floats(next(seeds), length, channels if part == "x" else values) for part in self.definition.inputs} for _ in range(rows)
        ]
        if name == "short_conv":
            own = {"weight": floats(1, channels, taps, size=0.5), "tail": states.tails[0]}
        else:
            own = {"dt": floats(2, values), "a": -np.exp(floats(3, values)), "state": states.states[0]}
        self.given: dict[str, Any] = own | ({} if name == "short_conv" else {"key_heads": keys, "key_dim": dk})

    @property
    def kept(self) -> np.ndarray:
        """[rows, places, …]: what is kept."""
        (name,) = self.definition.writes
        array: np.ndarray = self.given[name]
        return array

    def native(self, threads: int) -> Step:
        """The layer by the native extension."""
        most = Sizes(T=self.length * len(self.sequences), R=len(self.sequences), S=1)
        return native_step(self.definition, {**self.sequences[0], **self.given}, threads, most)

    def run(self, step: Step, chunks: Sequence[tuple[int, int, int]]) -> list[np.ndarray]:
        """One step of chunks (row, first token, its end): what it makes of each."""
        own = [{name: array[start:end] for name, array in self.sequences[row].items()} for row, start, end in chunks]
        inputs = {name: np.concatenate([each[name] for each in own]) for name in self.definition.inputs}
        cu_q = np.cumsum([0, *(end - start for _, start, end in chunks)]).astype(np.int32)
        rows, ends = (np.array([chunk[place] for chunk in chunks], np.int32) for place in (0, 2))
        return np.split(step(inputs, {"cu_q": cu_q, "kv_len": ends, "state_rows": rows}), cu_q[1:-1])

    def last(self, row: int, end: int, count: int) -> np.ndarray:
        """What is kept of a row's last `count` positions before `end`."""
        return self.kept[row, np.arange(end - count, end) % self.kept.shape[1]]
