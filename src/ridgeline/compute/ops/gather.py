"""Ops that pick: rows of an embedding, the tokens whose logits are wanted, columns in another order."""

import numpy as np

from ridgeline.compute.graph import SELECTED, Handle, Weight
from ridgeline.compute.ops.definition import Floats, Ints, Sample, fits, floats, op


def _embed_samples() -> list[Sample]:
    return [
        Sample("ragged", {"ids": np.array([5, 0, 5, 10], np.int32), "table": floats(1, 11, 32)}),
        Sample("one row", {"ids": np.array([10], np.int32), "table": floats(2, 11, 32)}),
        Sample("positions", {"ids": np.array([[0, 1, 2, 7, 0]], np.int32), "table": floats(3, 8, 16)}),
    ]


def _embed_rule(ids: Handle, table: Weight) -> tuple[Handle, ...]:
    fits(ids.dtype == "i32", f"embed: {ids.name} is {ids.dtype}, ids are i32")
    return (Handle("", ids.axis, table.shape[1]),)


@op(samples=_embed_samples, weights=("table",), matrices=("table",), per_token=True, rule=_embed_rule)
def embed(ids: Ints, table: Floats) -> Floats:
    """ids [T] or [1, T], table [V, D] → [T, D]. An id outside 0 … V - 1 is an IndexError: whoever builds the step has checked it."""
    return table[ids.reshape(-1)]


def _select_samples() -> list[Sample]:
    return [
        Sample("ragged", {"x": floats(1, 7, 8), "select": np.array([0, 3, 6], np.int32), "factor": 1}),
        Sample("one row", {"x": floats(2, 1, 8), "select": np.array([0], np.int32), "factor": 1}),
        Sample("none", {"x": floats(3, 4, 8), "select": np.array([], np.int32), "factor": 1}),
        Sample("choices", {"x": floats(4, 15, 8), "select": np.array([1, 4], np.int32), "factor": 3}),
    ]


def _select_rule(x: Handle, factor: int) -> tuple[Handle, ...]:
    fits(x.axis.kind == "tokens" and x.axis.factor == factor, f"select: {x.name} has rows {x.axis}, not {factor} per token")
    return (Handle("", SELECTED * factor, x.width),)


@op(samples=_select_samples, reads=("select",), rule=_select_rule)
def select(x: Floats, select: Ints, *, factor: int = 1) -> Floats:
    """x [T · factor, D] → the rows of the S selected tokens [S · factor, D]."""
    return x.reshape(-1, factor * x.shape[1])[select].reshape(-1, x.shape[1])


def _reorder_samples() -> list[Sample]:
    orders = [np.random.default_rng(width).permutation(width).astype(np.int32) for width in (64, 96, 640)]
    return [
        Sample("ragged", {"x": floats(4, 7, 64), "order": orders[0]}),
        Sample("no row", {"x": np.zeros((0, 96), np.float32), "order": orders[1]}),
        Sample("one row", {"x": floats(5, 1, 640), "order": orders[2]}),
    ]


@op(samples=_reorder_samples, weights=("order",), per_token=True, semantic=False)
def reorder(x: Floats, order: Ints) -> Floats:
    """x [T, K], order [K], a permutation of 0 … K - 1 → [T, K]: column k is column order[k] of x (act-order of GPTQ)."""
    return x[:, order]
