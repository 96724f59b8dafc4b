"""Products, quantisation and sampling as they are launched for models of 8 billion weights."""

from functools import partial

import torch
from compile_only import TESTED, Case

from ridgeline.compute.cuda.integers import GROUP_BYTES, INTEGER_FORMATS, IntegerFormat, IntegerMatrix, fields
from ridgeline.compute.cuda.triton import sampling
from ridgeline.compute.cuda.triton.linear_grouped import linear_grouped, scratch_bytes
from ridgeline.compute.cuda.triton.matmul import linear_fp8, linear_glu, linear_heads, matmul
from ridgeline.compute.cuda.triton.quantise import dequantise, quantise_fp8
from ridgeline.compute.cuda.weights import Fp8Matrix

HIDDEN, VOCAB = 4096, 128256
FP8 = torch.float8_e4m3fn


def matrix(form: IntegerFormat, width: int) -> IntegerMatrix:
    """A matrix of HIDDEN by HIDDEN of no particular numbers."""
    tile = fields(form) * width
    low = torch.empty(HIDDEN // tile, HIDDEN, tile * form.low // 8, dtype=torch.uint8)
    high = torch.empty(HIDDEN // tile, HIDDEN, tile * form.high // 8, dtype=torch.uint8) if form.high else None
    groups = HIDDEN // form.size if form.size else 1
    scale_words = torch.empty(groups * GROUP_BYTES[form.scale_type] // 4, HIDDEN, dtype=torch.int32)
    super_scales = torch.empty(HIDDEN // form.superblock, HIDDEN, dtype=torch.int32) if form.superblock else None
    return IntegerMatrix("", form, (HIDDEN, HIDDEN), width, low, high, scale_words, super_scales)


def integers(weight: IntegerMatrix, rows: int, dtype: torch.dtype) -> None:
    """The product of a few rows, and the matrix as numbers."""
    out = torch.empty(rows, HIDDEN, dtype=dtype)
    linear_grouped(torch.empty(rows, HIDDEN, dtype=dtype), weight, out, torch.empty(scratch_bytes(weight, rows), dtype=torch.uint8))()
    dequantise(weight, 0, torch.empty(HIDDEN, HIDDEN, dtype=dtype))()


def fp8(rows: int, block: tuple[int, int], *, invariant: bool = False, floats: bool = False, activation: str = "") -> None:
    """Products of codes or floats, and gated units."""
    outputs = 2 * HIDDEN if activation else HIDDEN
    weight = Fp8Matrix(torch.empty(outputs, HIDDEN, dtype=FP8), torch.empty(outputs // block[0], HIDDEN // block[1]), block)
    x, out = torch.empty(rows, HIDDEN, dtype=torch.bfloat16 if floats else FP8), torch.empty(rows, HIDDEN, dtype=torch.bfloat16)
    linear_fp8(x, None if floats else torch.empty(rows), weight, out, invariant=invariant, activation=activation)()


def numbers() -> None:
    """Between numbers and fp8, on machines that have it and those that have not."""
    x, codes = torch.empty(16, 14336, dtype=torch.bfloat16), torch.empty(16, 14336, dtype=FP8)
    quantise_fp8(x, codes, torch.empty(16))()
    for block in ((1, HIDDEN), (128, 128)):
        scales = torch.empty(HIDDEN // block[0], HIDDEN // block[1])
        dequantise(Fp8Matrix(torch.empty(HIDDEN, HIDDEN, dtype=FP8), scales, block), 0, torch.empty(HIDDEN, HIDDEN, dtype=torch.bfloat16))()


def floats(dtype: torch.dtype) -> None:
    """The product that does not depend on the batch."""
    x, out = (torch.empty(16, HIDDEN, dtype=dtype) for _ in range(2))
    matmul(x, torch.empty(HIDDEN, HIDDEN, dtype=dtype), out)()


def heads() -> None:
    """A matrix for each of 128 heads, into a latent of 512."""
    x, out = (torch.empty(16, 128 * width, dtype=torch.bfloat16) for width in (128, 512))
    linear_heads(x, torch.empty(128 * 512, 128, dtype=torch.bfloat16), 128, out)()


def gate(rows: int) -> None:
    """A gated unit."""
    x, out = (torch.empty(rows, width, dtype=torch.bfloat16) for width in (HIDDEN, 14336))
    linear_glu(x, torch.empty(2 * 14336, HIDDEN, dtype=torch.bfloat16), "silu", out)()


def sample(dtype: torch.dtype) -> None:
    """All rows of a step."""
    rows, single = 32, partial(torch.empty, 32)
    sampling.sample(
        torch.empty(rows, VOCAB, dtype=dtype), single(dtype=torch.float64), single(dtype=torch.int32), single(dtype=torch.float64),
        single(dtype=torch.float64), single(dtype=torch.int64), single(dtype=torch.int64), single(dtype=torch.int32),
        single(dtype=torch.int32), torch.empty(sampling.scratch_bytes(rows), dtype=torch.uint8),
    )()  # fmt: skip
    sampling.finite(torch.empty(16, HIDDEN, dtype=dtype), single(dtype=torch.int32)[:16], single(dtype=torch.int32))()


BF16 = torch.bfloat16
TENSOR_CORES = {"grouped_kernel": {80: ("mma.sync", "cp.async"), 90: ("wgmma.mma_async", "cp.async")}}
MATMUL = {"matmul_kernel": {80: ("mma.sync", "cp.async"), 90: ("wgmma.mma_async", "cp.async")}}
WGMMA = {"matmul_kernel": {90: ("wgmma.mma_async.sync.aligned.m64", "e4m3.e4m3")}}
FP8_UNITS = (89, 90, 100, 120)
"""Devices that multiply fp8."""

CASES = [
    Case("Q4_K, 16 rows", lambda: integers(matrix(INTEGER_FORMATS["Q4_K"], 32), 16, BF16), TENSOR_CORES),
    Case("Q5_K, 16 rows", lambda: integers(matrix(INTEGER_FORMATS["Q5_K"], 32), 16, BF16), TENSOR_CORES),
    Case("Q6_K, 32 rows", lambda: integers(matrix(INTEGER_FORMATS["Q6_K"], 16), 32, BF16), TENSOR_CORES),
    Case("Q8_0, fp16", lambda: integers(matrix(INTEGER_FORMATS["Q8_0"], 32), 16, torch.float16), TENSOR_CORES),
    Case("Q4_0, fp32", lambda: integers(matrix(INTEGER_FORMATS["Q4_0"], 32), 16, torch.float32), capabilities=TESTED),
    Case("GPTQ, 16 rows", lambda: integers(matrix(IntegerFormat(4, 0, 128, "fp16 + zero"), 64), 16, BF16), TENSOR_CORES),
    Case("Q4_K, 64 rows", lambda: integers(matrix(INTEGER_FORMATS["Q4_K"], 32), 64, BF16), TENSOR_CORES),
    Case("Q6_K, all rows", lambda: integers(matrix(INTEGER_FORMATS["Q6_K"], 16), 256, BF16), TENSOR_CORES),
    Case("Q5_K, all rows", lambda: integers(matrix(INTEGER_FORMATS["Q5_K"], 32), 256, BF16), TENSOR_CORES),
    Case("Q3_K, all rows", lambda: integers(matrix(INTEGER_FORMATS["Q3_K"], 16), 256, BF16), TENSOR_CORES),
    Case(  # zeros take a second sum: others spill 40 bytes of a thread
        "GPTQ, all rows", lambda: integers(matrix(IntegerFormat(4, 0, 128, "fp16 + zero"), 64), 256, BF16), TENSOR_CORES, (90, 100)
    ),
    Case("Q5_K, fp32", lambda: integers(matrix(INTEGER_FORMATS["Q5_K"], 32), 256, torch.float32), capabilities=(86,)),
    Case("int8, 16 rows", lambda: integers(matrix(IntegerFormat(8, 0, 0, "fp32", 128), 64), 16, BF16), TENSOR_CORES),
    Case("fp8, 1 row", partial(fp8, 1, (1, HIDDEN)), capabilities=FP8_UNITS),
    Case("fp8 block, 128 rows", partial(fp8, 128, (128, 128)), WGMMA, capabilities=FP8_UNITS),
    Case("fp8, invariant", partial(fp8, 16, (1, HIDDEN), invariant=True), WGMMA, capabilities=FP8_UNITS),
    *(Case(f"fp8 of floats, {rows} rows", partial(fp8, rows, (1, HIDDEN), floats=True), capabilities=FP8_UNITS) for rows in (1, 32)),
    Case("fp8 of floats, block, 256 rows", partial(fp8, 256, (128, 128), floats=True), WGMMA, capabilities=FP8_UNITS),
    *(
        Case(f"gated unit, fp8, {rows} rows", partial(fp8, rows, (1, HIDDEN), activation="silu"), capabilities=FP8_UNITS)
        for rows in (1, 32, 64, 256)
    ),
    Case("gated unit, fp8 block, 256 rows", partial(fp8, 256, (128, 128), activation="silu"), WGMMA, capabilities=FP8_UNITS),
    Case("quantise", numbers),
    *(Case(f"gated unit, {rows} rows", partial(gate, rows)) for rows in (1, 32, 64, 256)),
    Case("matmul, bf16", lambda: floats(BF16), MATMUL),
    Case("matrices of latent heads", heads, MATMUL, capabilities=TESTED),
    Case("matmul, fp32", lambda: floats(torch.float32)),
    Case("sample, bf16", lambda: sample(BF16)),
    Case("sample, fp32", lambda: sample(torch.float32), capabilities=(90,)),  # as bf16 but for what it loads, and slow to compile
]
