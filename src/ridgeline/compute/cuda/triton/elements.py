"""Elementwise ops, and ops that gather rows: add, scale, bias, softcap, activations, embedding, selection."""

import torch
import triton
import triton.language as tl

from ridgeline.compute.cuda.triton.dependent import after_previous
from ridgeline.compute.cuda.triton.formulas import activation as activated
from ridgeline.compute.cuda.triton.formulas import gated, tanh
from ridgeline.compute.cuda.triton.launch import BoundLaunch, Run, ceil_div, nothing, rows_of, same_width

BLOCK = 1024
"""Numbers of a row per program."""


@triton.jit
def elements_kernel(
    x, y, out, number, x_stride, y_stride, out_stride, width, OP: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Each program: `BLOCK` numbers of one row. y is a second operand, a bias (stride 0), or rows' indices."""
    after_previous(PDL)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = at < width
    source = row
    if OP == "gather":
        source = tl.load(y + row).to(tl.int64)
    first = tl.load(x + source * x_stride + at, mask=mask, other=0.0).to(tl.float32)
    if OP == "add":
        made = first + tl.load(y + row * y_stride + at, mask=mask, other=0.0).to(tl.float32)
    elif OP == "scale":
        made = first * number
    elif OP == "softcap":
        made = number * tanh(first / number)
    elif OP == "activate":
        made = activated(first, KIND)
    elif OP == "glu":
        made = gated(first, tl.load(y + row * y_stride + at, mask=mask, other=0.0).to(tl.float32), KIND)
    else:
        tl.static_assert(OP == "gather")
        made = first
    tl.store(out + row * out_stride + at, made.to(out.dtype.element_ty), mask=mask)


def _launch(op: str, x: torch.Tensor, out: torch.Tensor, *, y: torch.Tensor | None = None, number: float = 1.0, kind: str = "") -> Run:
    """The launch of an op over the rows of `out`; y has as many rows, or one (a bias), or is an index."""
    width = same_width(x, out)
    second = x if y is None else y
    if not len(out):
        return nothing
    arguments = (x, second, out, number, x.stride(0), second.stride(0) if second.dim() == 2 else 0, out.stride(0), width)
    constants = {"OP": op, "KIND": kind, "BLOCK": BLOCK}
    return BoundLaunch(elements_kernel, (len(out), ceil_div(width, BLOCK)), arguments, constants)


def add(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> Run:
    """The launch of x + y [T, D]. `out` may be either."""
    rows_of(x, y, out)
    same_width(x, y)
    return _launch("add", x, out, y=y)


def add_bias(x: torch.Tensor, bias: torch.Tensor, out: torch.Tensor) -> Run:
    """The launch of x [T, D] + bias [D]. `out` may be x."""
    rows_of(x, out)
    same_width(x, bias)
    return _launch("add", x, out, y=bias)


def scale(x: torch.Tensor, factor: float, out: torch.Tensor) -> Run:
    """The launch of x · factor. `out` may be x."""
    rows_of(x, out)
    return _launch("scale", x, out, number=factor)


def softcap(x: torch.Tensor, cap: float, out: torch.Tensor) -> Run:
    """The launch of cap · tanh(x / cap). `out` may be x. Gemma Team 2024, section 2."""
    rows_of(x, out)
    return _launch("softcap", x, out, number=cap)


def activate(x: torch.Tensor, activation: str, out: torch.Tensor) -> Run:
    """The launch of activation(x); `activation` is silu, gelu_tanh, gelu or sigmoid. `out` may be x."""
    rows_of(x, out)
    return _launch("activate", x, out, kind=activation)


def glu(gate: torch.Tensor, up: torch.Tensor, activation: str, out: torch.Tensor) -> Run:
    """The launch of activation(gate) · up, both [T, F]. `out` may be either. Shazeer 2020."""
    rows_of(gate, up, out)
    same_width(gate, up)
    return _launch("glu", gate, out, y=up, kind=activation)


def embed(ids: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> Run:
    """The launch of rows `ids` [T] or [1, T] of a table of floats [V, D], into `out` [T, D]. The ids are not checked."""
    return select(table, ids.view(-1), out)


def select(x: torch.Tensor, index: torch.Tensor, out: torch.Tensor) -> Run:
    """The launch of rows `index` [S] of x [T, D], into `out` [S, D]."""
    rows_of(index, out)
    return _launch("gather", x, out, y=index)
