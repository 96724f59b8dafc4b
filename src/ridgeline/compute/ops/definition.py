"""What is known of an op: its signature, its meaning in numpy, sample inputs, how exact it is and what it touches.

Owns no op: one file a family defines them, `ops/table.py` lists them.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Arrays = Floats | tuple[Floats, ...] | None


@dataclass(frozen=True, slots=True)
class Sample:
    """Arguments of one call of an op, by parameter name: arrays, then attributes."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Definition:
    """One op.

    reference   numpy: parameters are inputs, weights and reads in order, attributes are keyword-only
    inputs, weights, attributes  names of parameters
    reads       parameters that come from the step or the cache: a step input's name, "keys", "values" or "block_tokens"
    writes      of the reads, those changed in place
    per_token   row t of the result depends on row t of the inputs alone
    exact       an exact runner gives the same bits for a sequence whatever runs beside it
    capturable  a device graph may hold it: no result's shape and no branch depends on data
    semantic    a model may record it; otherwise only `lower` introduces it
    tolerance   by runner, on a GPU by the type of activations too: the greatest error of its provider against the reference, in units
                of the reference's largest value; where none is named, nothing may differ
    """

    name: str
    reference: Callable[..., Arrays]
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    attributes: tuple[str, ...]
    per_token: bool
    exact: bool
    capturable: bool
    semantic: bool
    tolerance: Mapping[str, float]
    samples: Callable[[], Sequence[Sample]]

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the arrays that a provider takes, in order."""
        return tuple(name for name in inspect.signature(self.reference).parameters if name not in self.attributes)

    def __call__(self, *arrays: Any, **attributes: Any) -> Arrays:
        """Runs the reference."""
        return self.reference(*arrays, **attributes)


def op(
    *,
    samples: Callable[[], Sequence[Sample]],
    weights: tuple[str, ...] = (),
    reads: tuple[str, ...] = (),
    writes: tuple[str, ...] = (),
    per_token: bool = False,
    exact: bool = True,
    capturable: bool = True,
    semantic: bool = True,
    tolerance: Mapping[str, float] | None = None,
) -> Callable[[Callable[..., Arrays]], Definition]:
    """Makes a numpy function the definition of an op. What is neither weight, read nor keyword-only is an input."""

    def define(reference: Callable[..., Arrays]) -> Definition:
        parameters = inspect.signature(reference).parameters
        keywords = tuple(name for name, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY)
        return Definition(
            name=reference.__name__,
            reference=reference,
            inputs=tuple(name for name in parameters if name not in (*weights, *reads, *keywords)),
            weights=weights,
            reads=reads,
            writes=writes,
            attributes=keywords,
            per_token=per_token,
            exact=exact,
            capturable=capturable,
            semantic=semantic,
            tolerance=tolerance or {},
            samples=samples,
        )

    return define


def on_cuda(*, f32: float, bf16: float, fp16: float) -> dict[str, float]:
    """The part of a `tolerance` that is for a GPU's provider, by the type of activations: of inputs that are rounded to it, the error of
    results that are rounded to it again."""
    return {"cuda f32": f32, "cuda bf16": bf16, "cuda fp16": fp16}


ROUNDED: Final = on_cuda(f32=2e-6, bf16=8e-3, fp16=1e-3)
"""One rounding of a result, and its like inside: half a unit in the last place of bf16 is 2^-9 of a number, of fp16 2^-12."""

SUMMED: Final = on_cuda(f32=2e-5, bf16=1e-2, fp16=2e-3)
"""A result of sums over many numbers, in any order."""


def floats(seed: int, *shape: int, size: float = 1.0) -> Floats:
    """Normal fp32 numbers of the given shape and standard deviation, the same at every call."""
    return (np.random.default_rng(seed).standard_normal(shape) * size).astype(np.float32)
