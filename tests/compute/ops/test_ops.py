"""Every op: its definition is consistent, and every runner's provider equals its reference on every sample."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from ridgeline.compute.exact.runner import providers
from ridgeline.compute.exact.threads import Team
from ridgeline.compute.graph import INPUTS
from ridgeline.compute.ops.definition import CACHE_READS, Definition, Sample
from ridgeline.compute.ops.table import OPS
from ridgeline.compute.quant.weight import DenseWeight
from ridgeline.compute.runner import relative_error

TEAMS = {"numpy": Team(1), "numpy, three threads": Team(3)}


def cases() -> Iterator[Any]:
    """(definition, runner, sample) for every provider: in the numpy runner an op without one runs its reference."""
    for runner, team in TEAMS.items():
        for name, provider in providers(team).items():
            for sample in OPS[name].samples():
                yield pytest.param(OPS[name], runner, provider, sample, id=f"{name}, {runner}, {sample.name}")


def call(definition: Definition, function: Any, arguments: Mapping[str, Any], *, handles: bool) -> tuple[np.ndarray, ...]:
    """Results, then arrays written in place."""
    own = {name: copy.deepcopy(value) for name, value in arguments.items()}
    arrays = [DenseWeight(own[name]) if handles and name in definition.matrices else own[name] for name in definition.parameters]
    made = function(*arrays, **{name: own[name] for name in definition.attributes})
    results = () if made is None else made if isinstance(made, tuple) else (made,)
    return (*results, *(own[name] for name in definition.writes))


@pytest.mark.parametrize(("definition", "runner", "provider", "sample"), list(cases()))
def test_provider_equals_reference(definition: Definition, runner: str, provider: Any, sample: Sample) -> None:
    ours = call(definition, provider, sample.arguments, handles=True)
    theirs = call(definition, definition.reference, sample.arguments, handles=False)
    assert len(ours) == len(theirs) > 0
    for mine, reference in zip(ours, theirs, strict=True):
        assert mine.dtype == reference.dtype
        if mine.dtype != np.float32:
            assert np.array_equal(mine, reference)
            continue
        assert relative_error(mine, reference) <= definition.tolerance.get(runner.split(",")[0], 0.0)


@pytest.mark.parametrize("name", sorted(OPS))
def test_definition(name: str) -> None:
    definition = OPS[name]
    assert definition.reference.__doc__
    assert set(definition.reads) <= INPUTS | CACHE_READS
    assert set(definition.writes) <= set(definition.reads)
    # Weights that may be absent come last, where a reference reads a step's inputs too.
    needed = definition.weights[: len(definition.weights) - definition.optional] if definition.reads else definition.weights
    assert definition.parameters == (*definition.inputs, *needed, *definition.reads, *definition.weights[len(needed) :])
    samples = definition.samples()
    assert {"ragged", "one row"} <= {sample.name for sample in samples}
    for sample in samples:
        assert set(sample.arguments) == {*definition.parameters, *definition.attributes}


def rows_of(chosen: list[int], rows: int, tokens: int) -> list[int]:
    """Rows of some tokens in an array with as many for each of them."""
    factor = rows // max(tokens, 1)
    return [token * factor + row for token in chosen for row in range(factor)]


@pytest.mark.parametrize("name", sorted(name for name, definition in OPS.items() if definition.per_token))
def test_a_token_does_not_feel_its_neighbours(name: str) -> None:
    """Bit for bit, by what the numpy runner runs: the whole, reversed, and every token by itself."""
    definition = OPS[name]
    function = providers(TEAMS["numpy"]).get(name, definition.reference)
    for sample in definition.samples():
        # Ids and positions may be [1, T]; whatever else an op takes is [T · factor, …].
        axis = {part: sample.arguments[part].ndim - 1 if part in ("ids", "positions") else 0 for part in definition.inputs}
        tokens = min(sample.arguments[part].shape[axis[part]] for part in definition.inputs)
        whole = call(definition, function, sample.arguments, handles=name in providers(TEAMS["numpy"]))
        for chosen in (list(range(tokens))[::-1], *([token] for token in range(tokens))):
            part = dict(sample.arguments)
            for value in definition.inputs:
                part[value] = part[value].take(rows_of(chosen, part[value].shape[axis[value]], tokens), axis=axis[value])
            for mine, all_of_them in zip(call(definition, function, part, handles=name in providers(TEAMS["numpy"])), whole, strict=True):
                assert mine.tobytes() == all_of_them[rows_of(chosen, len(all_of_them), tokens)].tobytes()
