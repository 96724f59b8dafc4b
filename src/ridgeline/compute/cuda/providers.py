"""Op → the launcher that computes it here, over views that are bound once for a bucket. One line an op in `BIND`.

Owns no memory and no arithmetic.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from ridgeline.compute.cuda.linear import linear
from ridgeline.compute.cuda.triton import elements, norm, quantise
from ridgeline.compute.cuda.triton import rope as turn
from ridgeline.compute.graph import Op
from ridgeline.facts.model import Rope

if TYPE_CHECKING:
    from ridgeline.compute.cuda.plan import Binding

Run = Callable[[], None]
Provider = Callable[["Binding", Op], Run]

MERGED: Final = frozenset({"linear_pair", "linear_triple", "linear_fp8_pair", "linear_fp8_triple"})
"""Products with several matrices, whose outputs lie beside each other."""


def _embed(b: "Binding", op: Op) -> Run:
    return partial(elements.embed, b.value(op.inputs[0]), b.table(op), b.value(op.outputs[0]))


def _select(b: "Binding", op: Op) -> Run:
    """Of several rows per token one by one."""
    x, out, factor = b.value(op.inputs[0]), b.value(op.outputs[0]), int(op.attributes["factor"])  # type: ignore[arg-type]
    return _in_turn([partial(elements.select, x[row::factor], b.inputs["select"], out[row::factor]) for row in range(factor)])


def _product(b: "Binding", op: Op) -> Run:
    """One matrix, or several that are merged into one; else one after the other."""
    product = partial(linear, invariant=b.plan.invariant)
    x = b.value(op.inputs[0]) if len(op.inputs) == 1 else (b.value(op.inputs[0]), b.value(op.inputs[1])[:, 0])
    whole = b.matrix(op.outputs[0] if op.name in MERGED else op.weights[0].name)
    if whole is not None:
        return partial(product, x, whole, b.merged(op.outputs), b.plan.scratch)
    pairs = [(b.matrix(weight.name), b.value(name)) for weight, name in zip(op.weights, op.outputs, strict=True)]
    return _in_turn([partial(product, x, weight, out, b.plan.scratch) for weight, out in pairs if weight is not None])


def _in_turn(runs: list[Run]) -> Run:
    def run() -> None:
        for each in runs:
            each()

    return run if len(runs) > 1 else runs[0]


def _rms_norm(b: "Binding", op: Op) -> Run:
    return partial(norm.rms_norm, b.value(op.inputs[0]), b.vector(op), op.attributes["eps"], b.value(op.outputs[0]))


def _layer_norm(b: "Binding", op: Op) -> Run:
    return partial(norm.layer_norm, b.value(op.inputs[0]), b.vector(op), b.vector(op, 1), op.attributes["eps"], b.value(op.outputs[0]))


def _add_rms_norm(b: "Binding", op: Op) -> Run:
    return partial(norm.add_rms_norm, *b.values(op.inputs), b.vector(op), op.attributes["eps"], *b.values(op.outputs))


def _rms_norm_fp8(b: "Binding", op: Op) -> Run:
    codes, scales = b.values(op.outputs)
    return partial(norm.rms_norm_fp8, b.value(op.inputs[0]), b.vector(op), op.attributes["eps"], codes, scales[:, 0])


def _add_rms_norm_fp8(b: "Binding", op: Op) -> Run:
    total, codes, scales = b.values(op.outputs)
    return partial(norm.add_rms_norm_fp8, *b.values(op.inputs), b.vector(op), op.attributes["eps"], total, codes, scales[:, 0])


def _quantise_fp8(b: "Binding", op: Op) -> Run:
    codes, scales = b.values(op.outputs)
    return partial(quantise.quantise_fp8, b.value(op.inputs[0]), codes, scales[:, 0])


def _glu(b: "Binding", op: Op) -> Run:
    return partial(elements.glu, *b.values(op.inputs), op.attributes["activation"], b.value(op.outputs[0]))


def _glu_fp8(b: "Binding", op: Op) -> Run:
    codes, scales = b.values(op.outputs)
    return partial(elements.glu_fp8, *b.values(op.inputs), op.attributes["activation"], codes, scales[:, 0])


def _add(b: "Binding", op: Op) -> Run:
    return partial(elements.add, *b.values(op.inputs), b.value(op.outputs[0]))


def _add_bias(b: "Binding", op: Op) -> Run:
    return partial(elements.add_bias, b.value(op.inputs[0]), b.vector(op), b.value(op.outputs[0]))


def _by_attribute(launcher: Callable[..., None], attribute: str) -> Provider:
    """An op of one value and one attribute."""

    def bind(b: "Binding", op: Op) -> Run:
        return partial(launcher, b.value(op.inputs[0]), op.attributes[attribute], b.value(op.outputs[0]))

    return bind


def _rotation(b: "Binding", op: Op) -> Run:
    rope = op.attributes["rope"]
    assert isinstance(rope, Rope)
    turns = b.constant(rope, lambda: turn.turns(rope, b.plan.device.torch))
    return partial(turn.rotation, b.value(op.inputs[0]), turns, rope.scale, b.value(op.outputs[0]))


def _rotate(b: "Binding", op: Op) -> Run:
    return partial(turn.rotate, *b.values(op.inputs), op.attributes["head_dim"], b.value(op.outputs[0]))


def _kv_write(b: "Binding", op: Op) -> Run:
    group, layer = b.layer(op)
    return partial(turn.kv_write, *b.values(op.inputs), b.inputs.slots[group], layer)


def _rotate_write(b: "Binding", op: Op) -> Run:
    group, layer = b.layer(op)
    given = (*b.values(op.inputs), b.inputs.slots[group], layer, op.attributes["head_dim"], b.value(op.outputs[0]))
    if op.name == "rotate_write":
        return partial(turn.rotate_write, *given)
    return partial(turn.rotate_write, *given, b.vector(op), b.vector(op, 1), op.attributes["eps"])


def _attention(b: "Binding", op: Op) -> Run:
    return b.plan.attention.bind(b, op)


BIND: Final[Mapping[str, Provider]] = {
    "embed": _embed,
    "select": _select,
    **dict.fromkeys(("linear", "linear_fp8", *sorted(MERGED)), _product),
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "add_rms_norm": _add_rms_norm,
    "rms_norm_fp8": _rms_norm_fp8,
    "add_rms_norm_fp8": _add_rms_norm_fp8,
    "quantise_fp8": _quantise_fp8,
    "glu": _glu,
    "glu_fp8": _glu_fp8,
    "add": _add,
    "add_bias": _add_bias,
    "scale": _by_attribute(elements.scale, "factor"),
    "softcap": _by_attribute(elements.softcap, "cap"),
    "activate": _by_attribute(elements.activate, "activation"),
    "rotation": _rotation,
    "rotate": _rotate,
    "kv_write": _kv_write,
    "rotate_write": _rotate_write,
    "norm_rotate_write": _rotate_write,
    "attention": _attention,
}
"""Op → how it is bound."""
