"""Definition of an op: its signature, its meaning in numpy, sample inputs, its tolerance and what it touches.

Owns no op: one file per family defines them, `ops/table.py` lists them. The recorder that models use is made of these definitions.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.graph import Handle, Recorded

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Arrays = Floats | tuple[Floats, ...] | None
Rule = Callable[..., tuple[Handle, ...]]
"""(handles, weights, attributes by name) → what is made, without names but for those of one among several. Raises ValueError where they
do not fit each other."""

CACHE_READS = frozenset({"keys", "values", "tables", "slots", "block_tokens", "tail", "state"})
"""Reads that belong to a layer or its KV group: an op with one of them has an attribute `layer`."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Arguments of one call of an op, by parameter name: arrays, then attributes."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Definition:
    """One op.

    reference   numpy: parameters are inputs, weights and reads in order, attributes are keyword-only; a weight may default to None
    signature   as a model calls it: inputs, weights, attributes, and `layer` of an op that reads the cache
    inputs, weights, attributes  names of parameters
    matrices    of the weights, those that providers take as stored and not as arrays
    reads       parameters that come from the step or the cache: a step input's name, "keys", "values", "block_tokens", "tail" or "state"
    writes      of the reads, those changed in place
    per_token   a token's rows of the result depend on its rows of the inputs alone
    semantic    a model may record it; otherwise only `lower` introduces it
    rule        of a semantic op: what it makes
    tolerance   by runner, on a GPU by the type of activations too: the greatest error of its provider against the reference, in units
                of the reference's largest value; where none is named, nothing may differ
    """

    name: str
    reference: Callable[..., Arrays]
    signature: inspect.Signature
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    matrices: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    attributes: tuple[str, ...]
    per_token: bool
    semantic: bool
    rule: Rule
    tolerance: Mapping[str, float]
    samples: Callable[[], Sequence[Sample]]

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the arrays that a provider takes, in order."""
        return tuple(name for name in inspect.signature(self.reference).parameters if name not in self.attributes)

    @property
    def optional(self) -> int:
        """The number of weights, the last ones, that may be absent."""
        return sum(self.signature.parameters[name].default is None for name in self.weights)

    def record(self, *given: Any, **named: Any) -> Recorded:
        """The op in one place of a list: see `graph.Signature`."""
        bound = self.signature.bind(*given, **named)
        bound.apply_defaults()
        said = {name: value for name, value in bound.arguments.items() if value is not None}
        attributes = {name: said[name] for name in self.signature.parameters if name not in (*self.inputs, *self.weights)}
        made = self.rule(**{name: value for name, value in said.items() if name != "layer"})
        own = (tuple(said[name] for name in names if name in said) for names in (self.inputs, self.weights))
        return Recorded(*own, attributes, made)

    def __call__(self, *arrays: Any, **attributes: Any) -> Arrays:
        """Runs the reference."""
        return self.reference(*arrays, **attributes)


def like_first(*, x: Handle, **_: Any) -> tuple[Handle, ...]:
    """The rule of most ops: one result of the rows and width of x."""
    return (Handle("", x.axis, x.width),)


def fits(fit: bool, *said: object) -> None:
    """Refuses handles and weights that do not belong together: ValueError with the words that say how."""
    if not fit:
        raise ValueError(" ".join(map(str, said)))


def op(
    *,
    samples: Callable[[], Sequence[Sample]],
    weights: tuple[str, ...] = (),
    matrices: tuple[str, ...] = (),
    reads: tuple[str, ...] = (),
    writes: tuple[str, ...] = (),
    per_token: bool = False,
    semantic: bool = True,
    rule: Rule = like_first,
    tolerance: Mapping[str, float] | None = None,
) -> Callable[[Callable[..., Arrays]], Definition]:
    """Makes a numpy function the definition of an op. What is neither weight, read nor keyword-only is an input."""

    def define(reference: Callable[..., Arrays]) -> Definition:
        parameters = inspect.signature(reference).parameters
        keywords = tuple(name for name, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY)
        return Definition(
            name=reference.__name__,
            reference=reference,
            signature=_signature(parameters, reads),
            inputs=tuple(name for name in parameters if name not in (*weights, *reads, *keywords)),
            weights=weights,
            matrices=matrices,
            reads=reads,
            writes=writes,
            attributes=keywords,
            per_token=per_token,
            semantic=semantic,
            rule=rule,
            tolerance=tolerance or {},
            samples=samples,
        )

    return define


def _signature(parameters: Mapping[str, inspect.Parameter], reads: tuple[str, ...]) -> inspect.Signature:
    """Without reads, and with attributes by place too, so far as nothing before them may be left out."""
    own = [parameter for name, parameter in parameters.items() if name not in reads]
    found: list[inspect.Parameter] = []
    for parameter in own:
        short = any(each.default is not inspect.Parameter.empty for each in found)
        found.append(parameter if short else parameter.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD))
    if CACHE_READS & set(reads):
        found.append(inspect.Parameter("layer", inspect.Parameter.KEYWORD_ONLY))
    return inspect.Signature(found)


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
