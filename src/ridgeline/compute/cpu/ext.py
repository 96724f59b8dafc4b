"""Loads the native extension and says what it offers on this machine, or what is lost without it.

Owns the choice of the ISA level, the types of records that the extension reads (csrc/runtime/ops.def), and the checks of arrays
before their addresses leave Python; never allocates results.
"""

from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from ridgeline.config import env
from ridgeline.errors import ConfigError

_missing = ""
_C: ModuleType | None
try:
    from ridgeline.compute.cpu import _C
except ImportError as cause:
    _C, _missing = None, str(cause)


def lost() -> str | None:
    """None when the extension is loaded; else what is lost, why, and how to get it back."""
    if _C is not None:
        return None
    return (
        f"the native extension is not there ({_missing}): the native runner and native sampling are lost, "
        "numpy computes alone and many times slower; "
        "reinstall with a C++17 compiler and without RIDGELINE_NO_EXT"
    )


def native() -> ModuleType:
    """The extension module. Raises ConfigError where it is missing."""
    if _C is None:
        raise ConfigError(str(lost()))
    return _C


def isa_levels() -> tuple[str, ...]:
    """ISA levels that this build has and this machine runs, slowest first; empty without the extension."""
    return () if _C is None else tuple(name for _, name in _C.levels())


@cache
def isa() -> str | None:
    """The level in use: the fastest, unless RIDGELINE_ISA (for tests) names another. None without the extension."""
    levels = isa_levels()
    if not levels:
        return None
    wanted = env.isa_override()
    if wanted is None:
        return levels[-1]
    if wanted not in levels:
        raise ConfigError(f"RIDGELINE_ISA={wanted}: this machine runs {', '.join(levels)}; unset it or name one")
    return wanted


def level_number(name: str | None = None) -> int:
    """The extension's number of a level; of the level in use when no name is given."""
    wanted = isa() if name is None else name
    return next(number for number, level in native().levels() if level == wanted)


def splits() -> bool:
    """True where fp32 matrices in two halves of bf16 are multiplied faster than as they are: AMX, at the level in use."""
    return _C is not None and bool(_C.splits(level_number()))


@cache
def values(enum: str) -> tuple[str, ...]:
    """Values of an enumeration of csrc/runtime/ops.def, by number; none without the extension."""
    return () if _C is None else tuple(_C.ENUMS[enum])


@cache
def struct(name: str) -> np.dtype[np.void]:
    """The type of records of a struct of csrc/runtime/ops.def: fields by name, addresses as numbers."""
    return _dtype(native().STRUCTS[name])


@cache
def params(op: str) -> np.dtype[np.void]:
    """The type of records of an op's parameters."""
    return _dtype(native().OPS[op])


def _dtype(described: tuple[int, tuple[tuple[str, str, int], ...]]) -> np.dtype[np.void]:
    size, fields = described
    names, types, offsets = zip(*fields, strict=True)
    formats = [struct(type) if type in native().STRUCTS else type for type in types]
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})


def record(dtype: np.dtype[np.void], fields: Mapping[str, Any]) -> bytes:
    """One record with these values, all of its fields and no others; of a struct inside it a tuple."""
    if fields.keys() != set(dtype.names or ()):
        raise ValueError(f"a record of {dtype.names} is given {tuple(fields)}")
    made = np.zeros((), dtype)
    for name, value in fields.items():
        made[name] = value
    return made.tobytes()


def address(array: np.ndarray, dtype: type[np.generic], shape: tuple[int, ...]) -> int:
    """Address of a C-contiguous array, after checking that it is what a kernel will read or write."""
    if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
        raise ValueError(f"expected a contiguous {np.dtype(dtype)} array {shape}, got {array.dtype} {array.shape}")
    return int(array.ctypes.data)
