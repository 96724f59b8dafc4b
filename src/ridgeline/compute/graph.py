"""The op list: what a step of a model computes, recorded without arrays.

Owns handles, the recorder, the op list, formats of weights and the closed set of step inputs. Never computes anything: no array
library is imported here, and no op is known by name. A value has a row axis, so many rows per token, row or selected position, and a
list recorded once runs at any size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ridgeline.facts.model import Rope

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Attribute = int | float | str | bool | Rope


@dataclass(frozen=True, slots=True)
class Sizes:
    """The free numbers of a step: tokens, rows, selected positions."""

    T: int
    R: int
    S: int


@dataclass(frozen=True, slots=True)
class Axis:
    """The row axis of a value: `factor` rows per token, per row or per selected position of a step, one token's behind another's."""

    kind: Literal["tokens", "rows", "selected"]
    factor: int = 1

    def at(self, sizes: Sizes) -> int:
        """The number of rows at given sizes."""
        return self.factor * {"tokens": sizes.T, "rows": sizes.R, "selected": sizes.S}[self.kind]

    def __mul__(self, factor: int) -> Axis:
        return replace(self, factor=self.factor * factor)


TOKENS, SELECTED = Axis("tokens"), Axis("selected")


@dataclass(frozen=True, slots=True)
class Handle:
    """A named value that will exist when the list runs: [rows of `axis`, width] of `dtype` f32, i32, i64, i8 or f8 (e4m3)."""

    name: str
    axis: Axis
    width: int = 1
    dtype: str = "f32"

    def shape(self, sizes: Sizes) -> tuple[int, int]:
        """Rows and width of the array at given sizes."""
        return self.axis.at(sizes), self.width


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight by name. `shape` as stored: (outputs, inputs) of a matrix, (experts, outputs, inputs) of one matrix per expert, (width,) of
    a vector."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """The form in which a runner holds a matrix, so far as its list depends on it.

    kind   stored kind that the runner multiplies with (Q8_0, BF16, fp8 …): matrices of one kind may be merged
    takes  dtype of the activations of its products, as `Handle` has it: f32, i8 with scales and sums, or f8 with a scale
    span   neighbouring inputs that a product adds up under one scale of activations
    order  name of the vector that says which input each column multiplies; None: columns are in the order of the inputs
    """

    kind: str
    takes: str = "f32"
    span: int = 1
    order: str | None = None


Formats = Mapping[str, WeightFormat]
"""Name of a matrix → its format. One that is not named takes f32."""


class Weights:
    """Names of a model's weights: `w["output_norm"]`, `w[3, "attn_q"]` for layer 3, `w[3, "attn_q.bias"]` for its bias.

    `key in w` tells whether the model has the weight.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._shapes = shapes

    def __getitem__(self, key: str | tuple[int, str]) -> Weight:
        name = self._name(key)
        return Weight(name, self._shapes[name])

    def __contains__(self, key: str | tuple[int, str]) -> bool:
        return self._name(key) in self._shapes

    @staticmethod
    def _name(key: str | tuple[int, str]) -> str:
        stem = key if isinstance(key, str) else f"blk.{key[0]}.{key[1]}"
        return stem if stem.endswith(".bias") else f"{stem}.weight"


@dataclass(frozen=True, slots=True)
class Op:
    """One operation: `name` is its kind, known to the registry; inputs and outputs are names of values."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    weights: tuple[Weight, ...] = ()

    def __str__(self) -> str:
        made = ", ".join(self.outputs) or f"layer {self.attributes['layer']}"
        return f"{self.name} → {made}"


@dataclass(frozen=True, slots=True)
class OpList:
    """Ops in order, the values that they name, and which values are results.

    outputs  what every run returns, by name ("logits")
    taps     what a run returns when asked, by name ("hidden")
    given    values that no op makes: whoever runs the list gives them
    """

    name: str
    ops: tuple[Op, ...]
    values: Mapping[str, Handle]
    outputs: Mapping[str, str]
    taps: Mapping[str, str]
    given: tuple[str, ...] = ()

    def with_ops(self, ops: tuple[Op, ...]) -> OpList:
        """The same values computed by other ops."""
        return replace(self, ops=ops)


@dataclass(frozen=True, slots=True)
class StepInputs:
    """All that a step may read beside weights and cache. One array per field, or one per KV group; nothing else exists.

    ids           int32 [T]     token ids, row after row
    positions     int32 [1, T]  position of each token in its sequence
    row_of_token  int32 [T]     which of the R rows a token belongs to
    cu_q          int32 [R + 1] row r owns tokens cu_q[r] … cu_q[r + 1]
    kv_len        int32 [R]     length of each row's sequence, this step's tokens included
    tables        int32 [R, P] per KV group: block ids of positions 0, block_tokens, …; 0 where there is none. None at all for a runner
                  that keeps tables by itself
    slots         int64 [T] per KV group: block id · block_tokens + offset, where the token's K and V go
    select        int32 [S]     tokens whose logits are wanted, ascending
    adapter       int32 [T]     slot of each token's adapter, -1 for none; None where no row has one
    state_rows    int32 [R]     where each row's recurrent states lie (compute/states.py); None of a model without
    """

    ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    row_of_token: NDArray[np.int32]
    cu_q: NDArray[np.int32]
    kv_len: NDArray[np.int32]
    tables: tuple[NDArray[np.int32], ...]
    slots: tuple[NDArray[np.int64], ...]
    select: NDArray[np.int32]
    adapter: NDArray[np.int32] | None = None
    state_rows: NDArray[np.int32] | None = None

    @property
    def sizes(self) -> Sizes:
        """T, R and S of this step."""
        return Sizes(T=len(self.ids), R=len(self.kv_len), S=len(self.select))


INPUTS = frozenset(column.name for column in fields(StepInputs))
"""The closed set of step inputs."""


@dataclass(frozen=True, slots=True)
class InputHandles:
    """The step inputs that a model may name; ops that keep state read the others by themselves."""

    ids: Handle = Handle("ids", TOKENS, dtype="i32")
    positions: Handle = Handle("positions", TOKENS, dtype="i32")


@dataclass(frozen=True, slots=True)
class Recorded:
    """An op in one place of a list. `made`: its outputs; each has no name yet, or one among several of the op."""

    inputs: tuple[Handle, ...]
    weights: tuple[Weight, ...]
    attributes: Mapping[str, Attribute]
    made: tuple[Handle, ...]


class Signature(Protocol):
    """An op as a model sees it: `compute/ops` defines them."""

    @property
    def semantic(self) -> bool:
        """True of an op that a model may record."""
        ...

    def record(self, *given: Any, **named: Any) -> Recorded:
        """Binds handles, weights and attributes, checks them against each other and says what is made. Raises ValueError, TypeError."""
        ...


class Recorder:
    """Records semantic ops: unfused, unquantised, on handles. Each value gets a name that tells where it was made.

    An op of `ops` is a method: `g.linear(x, weight)`, `g.softcap(x, cap)`, `g.kv_write(k, v, layer=0)`. It takes the inputs, weights and
    attributes of the op's definition, in that order or by name, and returns the handle of what is made; a tuple of several, None of none.
    """

    def __init__(self, ops: Mapping[str, Signature]) -> None:
        self.input = InputHandles()
        self._known = ops
        self._ops: list[Op] = []
        self._values: dict[str, Handle] = {h.name: h for h in (self.input.ids, self.input.positions)}
        self._taps: dict[str, str] = {}
        self._given: list[str] = []
        self._used: dict[str, int] = {}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or name not in self._known or not self._known[name].semantic:
            raise AttributeError(f"{name!r} is not an op that a model may record")
        return partial(self._record, name)

    def take(self, name: str, width: int) -> Handle:
        """A value fp32 [T, width] that whoever runs the list gives by this name."""
        handle = self._values[name] = Handle(name, TOKENS, width)
        self._given.append(name)
        return handle

    def tap(self, name: str, x: Handle) -> None:
        """Lets a run return x under `name` when asked."""
        self._taps[name] = x.name

    def finish(self, name: str, **outputs: Handle) -> OpList:
        """The list recorded so far, under its name."""
        results = {key: h.name for key, h in outputs.items()}
        return OpList(name, tuple(self._ops), dict(self._values), results, dict(self._taps), tuple(self._given))

    def _record(self, op: str, *given: Any, **named: Any) -> Handle | tuple[Handle, ...] | None:
        found = self._known[op].record(*given, **named)
        stem = self._fresh(op, found) if found.made else ""
        made = tuple(replace(h, name=f"{stem}.{h.name}" if h.name else stem) for h in found.made)
        self._values |= {handle.name: handle for handle in made}
        inputs, outputs = (tuple(handle.name for handle in handles) for handles in (found.inputs, made))
        self._ops.append(Op(op, inputs, outputs, found.attributes, found.weights))
        return made[0] if len(made) == 1 else made or None

    def _fresh(self, op: str, found: Recorded) -> str:
        """`blk.0.attn_q` after its weight, `attention.0` after its layer, `add.1` by counting."""
        if "layer" in found.attributes:
            return f"{op}.{found.attributes['layer']}"
        stem = found.weights[0].name.removesuffix(".weight") if found.weights else op
        self._used[stem] = number = self._used.get(stem, 0) + 1
        return stem if found.weights and number == 1 else f"{stem}.{number}"
