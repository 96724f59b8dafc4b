"""Kernels that do one conversion of fp8 each."""

import triton
import triton.language as tl

from ridgeline.compute.cuda.triton.formulas import from_fp8, to_fp8


@triton.jit
def from_fp8_kernel(codes, out, NATIVE: tl.constexpr):
    at = tl.arange(0, 256)
    tl.store(out + at, from_fp8(tl.load(codes + at), NATIVE))


@triton.jit
def to_fp8_kernel(x, codes, NATIVE: tl.constexpr):
    at = tl.arange(0, 1024)
    tl.store(codes + at, to_fp8(tl.load(x + at), NATIVE))
