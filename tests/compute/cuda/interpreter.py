"""Triton's interpreter, made to round as a GPU does.

As shipped (triton 3.6) it multiplies bf16 operands as the integers that hold their bits, truncates fp32 to bf16, rounds ties to fp8
upwards, loses carries and NaN there, draws a DeprecationWarning from numpy wherever a kernel's value bounds a loop, and spends most of
its time on replacing `triton.language` anew at every call of one function by another.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, InterpreterOptions, TensorHandle

_FP8 = {tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}
_LARGEST = {tl.float8e4nv: 448.0, tl.float8e5: 57344.0}
_CAST = InterpreterBuilder.cast_impl
_PATCH_TENSOR = interpreter._patch_lang_tensor
_PATCH_LANGUAGE = interpreter._patch_lang
_replaced: set[str] = set()
"""Modules of the language that the launch in progress has replaced."""


def install() -> None:
    """Changes the interpreter of this process, once and for all of its tests."""
    InterpreterBuilder.create_dot = _dot
    InterpreterBuilder.cast_impl = _cast
    InterpreterBuilder.create_fp_to_fp = lambda self, source, target, rounding: _cast(self, source, target)
    interpreter._patch_lang_tensor = _patch_tensor
    interpreter._patch_lang = _patch_language
    interpreter.interpreter_builder.options = InterpreterOptions(sanitize_overflow=False)  # as on a GPU: each addition costs one


def _widened(handle: TensorHandle) -> np.ndarray:
    """Numbers of any type that numpy computes with; bf16 and fp8 become fp32, which holds them exactly."""
    kind = handle.dtype.scalar
    if kind == tl.bfloat16:
        return (handle.data.astype(np.uint32) << 16).view(np.float32)
    if kind in _FP8:
        return torch.from_numpy(np.ascontiguousarray(handle.data)).view(_FP8[kind]).float().numpy()
    return handle.data.astype(np.float32) if kind.is_floating() and kind != tl.float64 else handle.data


def _dot(self: InterpreterBuilder, a: TensorHandle, b: TensorHandle, d: TensorHandle, precision: object, imprecise: int) -> TensorHandle:
    """Sums of exact products in double precision: numpy's fp32 sums depend on where in a matrix a row stands."""
    wide = np.float64 if a.dtype.scalar.is_floating() else d.data.dtype
    product = np.matmul(_widened(a), _widened(b), dtype=wide).astype(d.data.dtype)
    return TensorHandle(product + d.data, d.dtype.scalar)


def _cast(self: InterpreterBuilder, source: TensorHandle, target: tl.dtype) -> TensorHandle:
    """Floats to the nearest, ties to even; fp8 saturates, as `cvt.satfinite` does, and keeps NaN."""
    kind = target.scalar
    odd = (tl.bfloat16, *_FP8)
    if source.dtype.scalar not in odd and kind not in odd:
        return _CAST(self, source, target)
    wide = _widened(source).astype(np.float32)
    if kind in _FP8:
        limited = np.where(np.isnan(wide), wide, np.clip(wide, -_LARGEST[kind], _LARGEST[kind]))
        return TensorHandle(torch.from_numpy(limited).to(_FP8[kind]).view(torch.uint8).numpy(), kind)
    if kind == tl.bfloat16:
        return TensorHandle(torch.from_numpy(np.ascontiguousarray(wide)).bfloat16().view(torch.uint16).numpy(), kind)
    return _CAST(self, TensorHandle(wide, tl.float32), target) if kind != tl.float32 else TensorHandle(wide, tl.float32)


def _patch_tensor(tensor: type, scope: interpreter._LangPatchScope) -> None:
    _PATCH_TENSOR(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


class _Launch:
    """What a launch replaced, until it ends."""

    def __init__(self, scope: interpreter._LangPatchScope) -> None:
        self._scope = scope

    def restore(self) -> None:
        self._scope.restore()
        _replaced.clear()


def _patch_language(function: Callable[..., Any]) -> Any:
    """As shipped, but once a launch and module instead of once a call."""
    wanted = {module.__name__ for module in function.__globals__.values() if module is tl or module is tl.core}
    if wanted <= _replaced:
        return interpreter._LangPatchScope()
    _replaced.update(wanted)
    return _Launch(_PATCH_LANGUAGE(function))
