"""Routing, and products with experts, as they are launched for the shapes of Qwen3-30B-A3B and gpt-oss-20b."""

from functools import partial
from typing import NamedTuple

import torch
from compile_only import TESTED, Case

from ridgeline.compute.cuda.experts import experts_product
from ridgeline.compute.cuda.integers import GROUP_BYTES, INTEGER_FORMATS, IntegerFormat, IntegerMatrix, fields
from ridgeline.compute.cuda.triton import experts
from ridgeline.compute.cuda.weights import DeviceWeight, FloatMatrix, Fp8Matrix

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn


class Shape(NamedTuple):
    """Sizes of a layer."""

    experts: int
    chosen: int
    hidden: int
    ffn: int


QWEN, GPT_OSS = Shape(128, 8, 2048, 768), Shape(32, 4, 2880, 2880)
DECODE, PROMPT = 32, 2048
"""Tokens: tiles of few choices and of many."""


def stack(form: IntegerFormat, rows: int, columns: int, width: int) -> IntegerMatrix:
    """Packed integers of no particular numbers, tiles filled up."""
    tile = fields(form) * width
    tiles = -(-columns // tile)
    low = torch.empty(tiles, rows, tile * form.low // 8, dtype=torch.uint8)
    high = torch.empty(tiles, rows, tile * form.high // 8, dtype=torch.uint8) if form.high else None
    words = -(-(tiles * tile // form.size) * GROUP_BYTES[form.scale_type] // 4)
    super_scales = torch.empty(columns // form.superblock, rows, dtype=torch.int32) if form.superblock else None
    return IntegerMatrix("", form, (rows, columns), width, low, high, torch.empty(words, rows, dtype=torch.int32), super_scales)


def route(shape: Shape, tokens: int, **said: object) -> None:
    """The choice, its order, and the weighted sum."""
    ids, weights = torch.empty(tokens, shape.chosen, dtype=torch.int32), torch.empty(tokens, shape.chosen)
    routing = {
        "scores": "softmax",
        "normalise": True,
        "scale": 1.0,
        "groups": 1,
        "groups_kept": 1,
        "group_score": "max",
        "bias_selects": False,
    }
    scratch = torch.empty(experts.route_bytes(tokens, shape.experts, shape.hidden, invariant=False), dtype=torch.uint8)
    x, router, bias = torch.empty(tokens, shape.hidden, dtype=BF16), torch.empty(shape.experts, shape.hidden, dtype=BF16), torch.empty(256)
    experts.route(x, router, bias, ids, weights, scratch, invariant=False, k=shape.chosen, **(routing | said))()  # type: ignore[arg-type]
    order, tiles = (torch.empty(ids.numel(), width, dtype=torch.int32) for width in (1, 3))
    experts.sort_experts(ids, torch.empty(1, dtype=torch.int32), order, tiles, shape.experts)()
    experts.combine(torch.empty(ids.numel(), shape.hidden, dtype=BF16), weights, x)()


def products(shape: Shape, tokens: int, both: DeviceWeight, down: DeviceWeight, *, dtype: torch.dtype = BF16, bias: bool = False) -> None:
    """Gate, up and their unit, then down."""
    choices = tokens * shape.chosen
    order, tiles = (torch.empty(choices, width, dtype=torch.int32) for width in (1, 3))
    x, h, y = (
        torch.empty(rows, width, dtype=dtype) for rows, width in ((tokens, shape.hidden), (choices, shape.ffn), (choices, shape.hidden))
    )
    of_ffn, of_hidden = ((torch.empty(shape.experts, width),) if bias else () for width in (shape.ffn, shape.hidden))
    activation = "clamped_swish" if bias else "silu"
    experts_product(x, order, tiles, shape.experts, both, h, gate=activation, bias=(*of_ffn, *of_ffn))()
    experts_product(h, order, tiles, shape.experts, down, y, bias=of_hidden)()


def floats(shape: Shape, tokens: int, dtype: torch.dtype = BF16) -> None:
    both, down = (
        FloatMatrix(torch.empty(shape.experts * rows, columns, dtype=dtype))
        for rows, columns in ((2 * shape.ffn, shape.hidden), (shape.hidden, shape.ffn))
    )
    products(shape, tokens, both, down, dtype=dtype)


def fp8(shape: Shape, tokens: int, block: tuple[int, int] | None) -> None:
    made = []
    for rows, columns in ((2 * shape.ffn, shape.hidden), (shape.hidden, shape.ffn)):
        height, width = block or (1, columns)
        scales = torch.empty(shape.experts * rows // height, columns // width)
        made.append(Fp8Matrix(torch.empty(shape.experts * rows, columns, dtype=FP8), scales, (height, width)))
    products(shape, tokens, made[0], made[1])


def integers(form: IntegerFormat, width: int, shape: Shape, tokens: int, *, bias: bool = False) -> None:
    both = stack(form, shape.experts * 2 * shape.ffn, shape.hidden, width)
    products(shape, tokens, both, stack(form, shape.experts * shape.hidden, shape.ffn, width), bias=bias)


GROUPS = {"scores": "sigmoid", "groups": 8, "groups_kept": 4, "group_score": "top2", "bias_selects": True}
TENSOR_CORES = {"matmul_kernel": {80: ("mma.sync", "cp.async"), 90: ("mma", "cp.async")}}
PACKED = {"grouped_kernel": {80: ("mma.sync", "cp.async"), 90: ("wgmma.mma_async", "cp.async")}}
FORMS = {"Q4_K": 32, "Q5_K": 32, "Q6_K": 16, "Q8_0": 32}

CASES = [
    Case("experts: routing of 1", partial(route, QWEN, 1), capabilities=TESTED),
    *(Case(f"experts: routing of {tokens}", partial(route, QWEN, tokens)) for tokens in (DECODE, PROMPT)),
    Case("experts: routing by groups", partial(route, Shape(256, 8, 7168, 2048), DECODE, **GROUPS)),
    *(Case(f"experts: bf16, {tokens}", partial(floats, QWEN, tokens), TENSOR_CORES) for tokens in (DECODE, PROMPT)),
    Case("experts: fp32", partial(floats, QWEN, DECODE, torch.float32), capabilities=TESTED),
    *(Case(f"experts: fp8, {tokens}", partial(fp8, QWEN, tokens, None), TENSOR_CORES) for tokens in (DECODE, PROMPT)),
    *(Case(f"experts: fp8 block, {tokens}", partial(fp8, QWEN, tokens, (128, 128)), TENSOR_CORES) for tokens in (DECODE, PROMPT)),
    *(
        Case(f"experts: {kind}, {PROMPT}", partial(integers, INTEGER_FORMATS[kind], width, QWEN, PROMPT), PACKED)
        for kind, width in FORMS.items()
    ),
    *(  # products of 16 rows are compiled everywhere: these differ in where their rows lie
        Case(f"experts: {kind}, {DECODE}", partial(integers, INTEGER_FORMATS[kind], width, QWEN, DECODE), PACKED, TESTED)
        for kind, width in FORMS.items()
    ),
    *(
        Case(f"experts: MXFP4, {tokens}", partial(integers, INTEGER_FORMATS["MXFP4"], 32, GPT_OSS, tokens, bias=True), PACKED)
        for tokens in (DECODE, PROMPT)
    ),
    Case(f"experts: GPTQ, {PROMPT}", partial(integers, IntegerFormat(4, 0, 128, "fp16 + zero"), 64, QWEN, PROMPT), PACKED),
]
