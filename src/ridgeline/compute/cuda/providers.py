"""Op → its launcher on a GPU, over views that are bound once per bucket. One line per op in `PROVIDERS`.

Owns no memory and no arithmetic.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from torch import Tensor

from ridgeline.compute.cuda.adapters import change_widths
from ridgeline.compute.cuda.experts import experts_product
from ridgeline.compute.cuda.linear import Fp8Activations, gated_unit, linear
from ridgeline.compute.cuda.plan import MERGED, Binding, Run
from ridgeline.compute.cuda.triton import elements, experts, heads, norm, quantise, rope
from ridgeline.compute.cuda.triton.attention import attention, counters_of, heads_of_program
from ridgeline.compute.cuda.triton.launch import one_by_one
from ridgeline.compute.cuda.triton.lora import Tiles, add_changes
from ridgeline.compute.cuda.triton.matmul import linear_heads
from ridgeline.compute.cuda.weights import FloatMatrix, Fp8Matrix
from ridgeline.compute.graph import Op
from ridgeline.compute.lowering.adapters import CHANGES
from ridgeline.compute.lowering.experts import EXPERTS
from ridgeline.facts.model import Rope

Provider = Callable[[Binding, Op], Run]


def _embed(b: Binding, op: Op) -> Run:
    return elements.embed(b.value(op.inputs[0]), b.table(op), b.value(op.outputs[0]))


def _select(b: Binding, op: Op) -> Run:
    """Rows of selected positions; of values with several rows per token, one row after the other."""
    x, out, factor = b.value(op.inputs[0]), b.value(op.outputs[0]), int(op.attributes["factor"])  # type: ignore[arg-type]
    return one_by_one([elements.select(x[row::factor], b.inputs["select"], out[row::factor]) for row in range(factor)])


def _product(b: Binding, op: Op) -> Run:
    """A product with one matrix or several merged ones, else several products one after the other."""
    product, x = partial(linear, invariant=b.plan.invariant), _multiplied(b, op)
    matrix = b.matrix(op.outputs[0] if op.name in MERGED else op.weights[0].name)
    if matrix is not None:
        return product(x, matrix, b.merged(op.outputs), b.plan.scratch)
    pairs = [(b.matrix(weight.name), b.value(name)) for weight, name in zip(op.weights, op.outputs, strict=True)]
    return one_by_one([product(x, weight, out, b.plan.scratch) for weight, out in pairs if weight is not None])


def _multiplied(b: Binding, op: Op) -> Tensor | Fp8Activations:
    """Operands of a product: floats, or codes and their scales."""
    return b.value(op.inputs[0]) if len(op.inputs) == 1 else (b.value(op.inputs[0]), b.value(op.inputs[1])[:, 0])


def _linear_glu(b: Binding, op: Op) -> Run:
    weight, out = b.matrix(op.outputs[0]), b.value(op.outputs[0])
    assert isinstance(weight, FloatMatrix | Fp8Matrix), "lowering unites matrices of floats, or of fp8, that can be merged"
    activation: Any = op.attributes["activation"]
    return gated_unit(_multiplied(b, op), weight, activation, out, b.plan.scratch, invariant=b.plan.invariant)


def _lora(b: Binding, op: Op) -> Run:
    """Changes of one product or several merged ones, where these lie."""
    adapters, inputs = b.plan.adapters, b.inputs
    assert adapters is not None, "the plan has no slots for adapters"
    y = b.merged(op.outputs) if len(op.outputs) > 1 else b.value(op.outputs[0])
    tiles = Tiles(inputs["adapter_tokens"], inputs["adapter_slots"])
    return add_changes(b.value(op.inputs[0]), y, change_widths(op), adapters.slots, adapters.entry(op), tiles, b.plan.scratch)


def _rms_norm(b: Binding, op: Op) -> Run:
    return norm.rms_norm(b.value(op.inputs[0]), b.vector(op), op.attributes["eps"], b.value(op.outputs[0]))


def _layer_norm(b: Binding, op: Op) -> Run:
    return norm.layer_norm(b.value(op.inputs[0]), b.vector(op), b.vector(op, 1), op.attributes["eps"], b.value(op.outputs[0]))


def _add_rms_norm(b: Binding, op: Op) -> Run:
    return norm.add_rms_norm(*b.values(op.inputs), b.vector(op), op.attributes["eps"], *b.values(op.outputs))


def _rms_norm_fp8(b: Binding, op: Op) -> Run:
    codes, scales = b.values(op.outputs)
    return norm.rms_norm_fp8(b.value(op.inputs[0]), b.vector(op), op.attributes["eps"], codes, scales[:, 0])


def _add_rms_norm_fp8(b: Binding, op: Op) -> Run:
    total, codes, scales = b.values(op.outputs)
    return norm.add_rms_norm_fp8(*b.values(op.inputs), b.vector(op), op.attributes["eps"], total, codes, scales[:, 0])


def _quantise_fp8(b: Binding, op: Op) -> Run:
    codes, scales = b.values(op.outputs)
    return quantise.quantise_fp8(b.value(op.inputs[0]), codes, scales[:, 0])


def _glu(b: Binding, op: Op) -> Run:
    return elements.glu(*b.values(op.inputs), op.attributes["activation"], b.value(op.outputs[0]))


def _add(b: Binding, op: Op) -> Run:
    return elements.add(*b.values(op.inputs), b.value(op.outputs[0]))


def _add_bias(b: Binding, op: Op) -> Run:
    return elements.add_bias(b.value(op.inputs[0]), b.vector(op), b.value(op.outputs[0]))


def _by_attribute(launcher: Callable[..., Run], attribute: str) -> Provider:
    """The provider of an op with one input and one attribute."""

    def bind(b: Binding, op: Op) -> Run:
        return launcher(b.value(op.inputs[0]), op.attributes[attribute], b.value(op.outputs[0]))

    return bind


def _rotation(b: Binding, op: Op) -> Run:
    settings = op.attributes["rope"]
    assert isinstance(settings, Rope)
    frequencies = b.constant(settings, lambda: rope.frequencies(settings, b.plan.device.torch))
    return rope.rotation(b.value(op.inputs[0]), frequencies, settings.scale, b.value(op.outputs[0]))


def _rotate(b: Binding, op: Op) -> Run:
    return rope.rotate(*b.values(op.inputs), op.attributes["head_dim"], b.value(op.outputs[0]))


def _kv_write(b: Binding, op: Op) -> Run:
    group, layer = b.layer(op)
    return rope.kv_write(*b.values(op.inputs), b.inputs.slots[group], layer)


def _rotate_write(b: Binding, op: Op) -> Run:
    group, layer = b.layer(op)
    arguments = (*b.values(op.inputs), b.inputs.slots[group], layer, op.attributes["head_dim"], b.value(op.outputs[0]))
    if op.name == "rotate_write":
        return rope.rotate_write(*arguments)
    return rope.rotate_write(*arguments, b.vector(op), b.vector(op, 1), op.attributes["eps"])


def _attention(b: Binding, op: Op) -> Run:
    group, layer = b.layer(op)
    inputs, plan, q = b.inputs, b.plan, b.value(op.inputs[0])
    count = q.shape[1] // int(op.attributes["head_dim"])  # type: ignore[call-overload]
    parts = count // heads_of_program(count, layer.kv_heads, layer.latent)
    counters = b.constant("counters", lambda: counters_of(plan.sizes.T, plan.sizes.R, parts, plan.device.torch))
    return attention(
        q, layer, inputs.tables[group], inputs["table_row"], inputs["cu_q"], inputs["kv_len"],
        head_dim=op.attributes["head_dim"], scale=op.attributes["scale"], window=op.attributes["window"],  # type: ignore[arg-type]
        softcap=op.attributes["softcap"], sinks=b.vector(op) if op.weights else None, out=b.value(op.outputs[0]),  # type: ignore[arg-type]
        work=plan.scratch, counters=counters, max_q=inputs.bucket.max_q, invariant=plan.invariant,
    )  # fmt: skip


def _split_heads(b: Binding, op: Op) -> Run:
    return heads.split_heads(b.value(op.inputs[0]), op.attributes["plain"], op.attributes["rotary"], *b.values(op.outputs))  # type: ignore[arg-type]


def _join_heads(b: Binding, op: Op) -> Run:
    return heads.join_heads(*b.values(op.inputs), op.attributes["heads"], b.value(op.outputs[0]))  # type: ignore[arg-type]


def _linear_heads(b: Binding, op: Op) -> Run:
    weight = b.matrix(op.weights[0].name)
    assert isinstance(weight, FloatMatrix), "matrices of heads are placed as floats"
    return linear_heads(b.value(op.inputs[0]), weight.values, op.weights[0].shape[0], b.value(op.outputs[0]))


def _route(b: Binding, op: Op) -> Run:
    weight = b.matrix(op.weights[0].name)
    assert isinstance(weight, FloatMatrix), "routers are placed as floats"
    bias = b.vector(op, 1) if len(op.weights) > 1 else None
    x, (ids, weights) = b.value(op.inputs[0]), b.values(op.outputs)
    said: dict[str, Any] = dict(op.attributes)
    return experts.route(x, weight.values, bias, ids, weights, b.plan.scratch, invariant=b.plan.invariant, **said)


def _sort_experts(b: Binding, op: Op) -> Run:
    return experts.sort_experts(b.value(op.inputs[0]), b.inputs["count"], *b.values(op.outputs), int(op.attributes["count"]))  # type: ignore[arg-type]


def _linear_experts(b: Binding, op: Op) -> Run:
    """A product with one stack, or with gates and ups; behind their matrices the weights are biases."""
    x, _, order, tiles = b.values(op.inputs)
    matrices = EXPERTS[op.name]
    bias = tuple(b.vector(op, number) for number in range(matrices, len(op.weights)))
    gate: Any = op.attributes.get("activation", "")
    return experts_product(
        x, order, tiles, op.weights[0].shape[0], b.experts(op), b.value(op.outputs[0]), gate=gate, bias=bias, invariant=b.plan.invariant
    )


def _combine(b: Binding, op: Op) -> Run:
    return experts.combine(*b.values(op.inputs), b.value(op.outputs[0]))


PROVIDERS: Final[Mapping[str, Provider]] = {
    "embed": _embed,
    "select": _select,
    **dict.fromkeys(("linear", "linear_fp8", "linear_quantise_fp8", *sorted(MERGED)), _product),
    **dict.fromkeys(("linear_glu", "linear_fp8_glu"), _linear_glu),
    **dict.fromkeys(CHANGES.values(), _lora),
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "add_rms_norm": _add_rms_norm,
    "rms_norm_fp8": _rms_norm_fp8,
    "add_rms_norm_fp8": _add_rms_norm_fp8,
    "quantise_fp8": _quantise_fp8,
    "glu": _glu,
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
    "split_heads": _split_heads,
    "join_heads": _join_heads,
    "linear_heads": _linear_heads,
    "route": _route,
    "sort_experts": _sort_experts,
    **dict.fromkeys(EXPERTS, _linear_experts),
    "combine": _combine,
}
"""Op → its provider: (binding, op) → launch."""
