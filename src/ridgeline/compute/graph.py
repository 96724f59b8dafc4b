"""The op list: what a step of a model computes, recorded without arrays.

Owns handles, the recorder of semantic ops, the op list and the closed set of step inputs. Never computes anything: no array
library is imported here. Every dimension is linear in T (tokens), R (rows), S (selected positions) and E (encoder rows), so a
list recorded once runs at any size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from ridgeline.facts.model import Rope

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Attribute = int | float | str | bool | Rope


@dataclass(frozen=True, slots=True)
class Dim:
    """One dimension: constant + T·tokens + R·rows + S·selected + E·encoder rows."""

    constant: int = 0
    T: int = 0
    R: int = 0
    S: int = 0
    E: int = 0

    def at(self, sizes: Sizes) -> int:
        """The dimension at given sizes."""
        return self.constant + self.T * sizes.T + self.R * sizes.R + self.S * sizes.S + self.E * sizes.E

    def __add__(self, other: Dim) -> Dim:
        return Dim(self.constant + other.constant, self.T + other.T, self.R + other.R, self.S + other.S, self.E + other.E)

    def __mul__(self, factor: int) -> Dim:
        return Dim(self.constant * factor, self.T * factor, self.R * factor, self.S * factor, self.E * factor)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The free numbers of a step: tokens, rows, selected positions, encoder rows."""

    T: int
    R: int
    S: int
    E: int = 0


TOKENS, SELECTED = Dim(T=1), Dim(S=1)


@dataclass(frozen=True, slots=True)
class Handle:
    """A named value that will exist when the list runs: `dtype` is f32, i32, i64, i8 or f8 (e4m3)."""

    name: str
    shape: tuple[Dim, ...]
    dtype: str = "f32"

    @property
    def width(self) -> int:
        """The last dimension, which never depends on the step."""
        last = self.shape[-1]
        if last != Dim(last.constant):
            raise ValueError(f"the last dimension of {self.name} depends on the step: {last}")
        return last.constant


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight by name. `shape` as stored: (outputs, inputs) of a matrix, (width,) of a vector."""

    name: str
    shape: tuple[int, ...]


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
    """

    name: str
    ops: tuple[Op, ...]
    values: Mapping[str, Handle]
    outputs: Mapping[str, str]
    taps: Mapping[str, str]

    def with_ops(self, ops: tuple[Op, ...]) -> OpList:
        """The same values computed by other ops."""
        return replace(self, ops=ops)


@dataclass(frozen=True, slots=True)
class StepInputs:
    """All that a step may read beside weights and cache. One array a field, or one a KV group; nothing else exists.

    ids           int32 [T]     token ids, row after row
    positions     int32 [1, T]  position of each token in its sequence
    row_of_token  int32 [T]     which of the R rows a token belongs to
    cu_q          int32 [R + 1] row r owns tokens cu_q[r] … cu_q[r + 1]
    kv_len        int32 [R]     length of each row's sequence, this step's tokens included
    tables        int32 [R, P] per KV group: pages of blocks 0, 1, …; 0 where there is none
    slots         int64 [T] per KV group: page · block_tokens + offset, where the token's K and V go
    adapter       int32 [T]     adapter slot of each token, 0 for none
    select        int32 [S]     tokens whose logits are wanted, ascending
    """

    ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    row_of_token: NDArray[np.int32]
    cu_q: NDArray[np.int32]
    kv_len: NDArray[np.int32]
    tables: tuple[NDArray[np.int32], ...]
    slots: tuple[NDArray[np.int64], ...]
    adapter: NDArray[np.int32]
    select: NDArray[np.int32]

    @property
    def sizes(self) -> Sizes:
        """T, R and S of this step."""
        return Sizes(T=len(self.ids), R=len(self.kv_len), S=len(self.select))


INPUTS = frozenset(column.name for column in fields(StepInputs))
"""The closed set of step inputs."""


@dataclass(frozen=True, slots=True)
class InputHandles:
    """The step inputs that a model may name; ops that keep state read the others by themselves."""

    ids: Handle = Handle("ids", (TOKENS,), "i32")
    positions: Handle = Handle("positions", (Dim(1), TOKENS), "i32")


class Recorder:
    """Records semantic ops: unfused, unquantised, on handles. Each value gets a name that tells where it was made."""

    def __init__(self) -> None:
        self.input = InputHandles()
        self._ops: list[Op] = []
        self._values: dict[str, Handle] = {h.name: h for h in (self.input.ids, self.input.positions)}
        self._taps: dict[str, str] = {}
        self._used: dict[str, int] = {}

    def embed(self, ids: Handle, table: Weight) -> Handle:
        """ids [T] or [1, T], which may be positions → rows of `table` [vocabulary or positions, D]: [T, D]."""
        return self._record("embed", (ids,), (ids.shape[-1], Dim(table.shape[1])), weights=(table,))

    def scale(self, x: Handle, factor: float) -> Handle:
        """x · factor, of x's shape."""
        return self._record("scale", (x,), x.shape, {"factor": factor})

    def add(self, x: Handle, y: Handle) -> Handle:
        """x + y, both of one shape."""
        if x.shape != y.shape:
            raise ValueError(f"add: {x.name} {x.shape} and {y.name} {y.shape} differ")
        return self._record("add", (x, y), x.shape)

    def add_bias(self, x: Handle, bias: Weight) -> Handle:
        """x [T, D] + `bias` [D], of x's shape."""
        if bias.shape != (x.width,):
            raise ValueError(f"add_bias: {x.name} is {x.width} wide, {bias.name} has {bias.shape}")
        return self._record("add_bias", (x,), x.shape, weights=(bias,))

    def softcap(self, x: Handle, cap: float) -> Handle:
        """cap · tanh(x / cap), of x's shape."""
        return self._record("softcap", (x,), x.shape, {"cap": cap})

    def activate(self, x: Handle, activation: str) -> Handle:
        """activation(x), of x's shape; `activation` is silu or gelu_tanh."""
        return self._record("activate", (x,), x.shape, {"activation": activation})

    def linear(self, x: Handle, weight: Weight) -> Handle:
        """x [T, K] times `weight` [N, K] transposed: [T, N]."""
        if x.width != weight.shape[1]:
            raise ValueError(f"linear: {x.name} is {x.width} wide, {weight.name} takes {weight.shape[1]}")
        return self._record("linear", (x,), (*x.shape[:-1], Dim(weight.shape[0])), weights=(weight,))

    def rms_norm(self, x: Handle, weight: Weight, eps: float, *, per_head: bool = False) -> Handle:
        """x [T, D] over its root mean square, times `weight` [D]; `per_head`: in pieces of the weight's width."""
        pieces = x.width % weight.shape[0] == 0 if per_head else x.width == weight.shape[0]
        if not pieces:
            raise ValueError(f"rms_norm: {x.name} is {x.width} wide, {weight.name} has {weight.shape[0]}")
        return self._record("rms_norm", (x,), x.shape, {"eps": eps}, (weight,))

    def layer_norm(self, x: Handle, weight: Weight, bias: Weight, eps: float) -> Handle:
        """x [T, D] less its mean, over its standard deviation, times `weight` [D] plus `bias` [D]."""
        if not weight.shape == bias.shape == (x.width,):
            raise ValueError(f"layer_norm: {x.name} is {x.width} wide, {weight.name} has {weight.shape}, {bias.name} {bias.shape}")
        return self._record("layer_norm", (x,), x.shape, {"eps": eps}, (weight, bias))

    def rope(self, x: Handle, positions: Handle, rope: Rope, *, head_dim: int) -> Handle:
        """x [T, H · head_dim] rotated by `positions` [1, T]; pairs are the two halves of a head's first `rope.dim` dimensions."""
        return self._record("rope", (x, positions), x.shape, {"rope": rope, "head_dim": head_dim})

    def kv_write(self, k: Handle, v: Handle, *, layer: int) -> None:
        """Stores k and v [T, KV heads · head_dim] in the cache of `layer`, before anything reads them."""
        self._ops.append(Op("kv_write", (k.name, v.name), (), {"layer": layer}))

    def attention(self, q: Handle, *, layer: int, head_dim: int, scale: float, window: int = 0, softcap: float = 0.0) -> Handle:
        """q [T, H · head_dim] over the cached K and V of its row: [T, H · head_dim].

        A query at position p sees keys at p - window < k ≤ p, or all k ≤ p where `window` is 0. Scaled scores are capped as
        `softcap` · tanh(score / `softcap`), or not at all where it is 0.
        """
        attributes = {"layer": layer, "head_dim": head_dim, "scale": scale, "window": window, "softcap": softcap}
        return self._record("attention", (q,), q.shape, attributes)

    def glu(self, gate: Handle, up: Handle, activation: str) -> Handle:
        """activation(gate) · up, both [T, F]; `activation` is silu or gelu_tanh."""
        if gate.shape != up.shape:
            raise ValueError(f"glu: {gate.name} {gate.shape} and {up.name} {up.shape} differ")
        return self._record("glu", (gate, up), gate.shape, {"activation": activation})

    def select(self, x: Handle) -> Handle:
        """The S tokens of x [T, D] whose logits are wanted: [S, D]."""
        return self._record("select", (x,), (SELECTED, *x.shape[1:]))

    def tap(self, name: str, x: Handle) -> None:
        """Lets a run return x under `name` when asked."""
        self._taps[name] = x.name

    def finish(self, name: str, **outputs: Handle) -> OpList:
        """The list recorded so far, under its name."""
        return OpList(name, tuple(self._ops), dict(self._values), {key: h.name for key, h in outputs.items()}, dict(self._taps))

    def _record(
        self,
        op: str,
        inputs: tuple[Handle, ...],
        shape: tuple[Dim, ...],
        attributes: Mapping[str, Attribute] | None = None,
        weights: tuple[Weight, ...] = (),
    ) -> Handle:
        attributes = attributes or {}
        handle = Handle(self._fresh(op, attributes, weights), shape)
        self._values[handle.name] = handle
        self._ops.append(Op(op, tuple(h.name for h in inputs), (handle.name,), attributes, weights))
        return handle

    def _fresh(self, op: str, attributes: Mapping[str, Attribute], weights: tuple[Weight, ...]) -> str:
        """`blk.0.attn_q` after its weight, `attention.0` after its layer, `add.1` by counting."""
        if "layer" in attributes:
            return f"{op}.{attributes['layer']}"
        stem = weights[0].name.removesuffix(".weight") if weights else op
        self._used[stem] = number = self._used.get(stem, 0) + 1
        return stem if weights and number == 1 else f"{stem}.{number}"
