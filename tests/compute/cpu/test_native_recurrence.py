"""Recurrences of the native plan: their references at every ISA level, and the same bits however a sequence is cut, whoever is beside it,
and by any number of threads."""

from random import Random
from typing import Any

import numpy as np
import pytest
from recurrent import RECURRENCES, Layer, native_step

from ridgeline.compute.cpu import ext
from ridgeline.compute.graph import Sizes
from ridgeline.compute.ops.definition import Definition, Sample
from ridgeline.compute.ops.table import OPS
from ridgeline.compute.runner import relative_error

pytestmark = pytest.mark.skipif(ext.lost() is not None, reason="the native extension is not built")

CASES = [pytest.param(OPS[name], sample, id=f"{name}, {sample.name}") for name in RECURRENCES for sample in OPS[name].samples()]
LENGTH = 70
"""More than two turns of 32 tokens, whose keys are normalised together."""


def run(definition: Definition, sample: Sample, threads: int) -> tuple[np.ndarray, np.ndarray]:
    """What the op makes of a sample, and what it keeps."""
    (kept,) = definition.writes
    given: dict[str, Any] = {**sample.arguments, kept: sample.arguments[kept].copy()}
    step = native_step(definition, given, threads, Sizes(T=max(len(given["x"]), 1), R=max(len(given["kv_len"]), 1), S=1))
    return step({name: given[name] for name in definition.inputs}, given), given[kept]


@pytest.mark.parametrize("level", ext.isa_levels())
@pytest.mark.parametrize(("definition", "sample"), CASES)
def test_equals_the_reference(definition: Definition, sample: Sample, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What may not be read is NaN, and where nothing is written it stays so."""
    monkeypatch.setattr(ext, "isa", lambda: level)
    (kept,) = definition.writes
    own = {**sample.arguments, kept: sample.arguments[kept].copy()}
    expected = definition(*(own[name] for name in definition.parameters), **{name: own[name] for name in definition.attributes})
    for mine, reference in zip(run(definition, sample, 2), (expected, own[kept]), strict=True):
        assert isinstance(reference, np.ndarray) and mine.shape == reference.shape
        assert np.array_equal(np.isnan(mine), np.isnan(reference))
        assert relative_error(np.nan_to_num(mine), np.nan_to_num(reference)) <= definition.tolerance["native"]
    assert np.isfinite(expected).all()  # type: ignore[arg-type]


@pytest.mark.parametrize(("definition", "sample"), CASES)
def test_levels_and_threads_change_no_bit(definition: Definition, sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = []
    for level in ext.isa_levels():
        monkeypatch.setattr(ext, "isa", lambda level=level: level)
        kinds += [run(definition, sample, threads) for threads in (1, 3)]
    for other in kinds[1:]:
        for mine, theirs in zip(kinds[0], other, strict=True):
            assert mine.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("positions", [1, 3])
@pytest.mark.parametrize("name", RECURRENCES)
def test_cuts_company_and_threads_change_no_bit(name: str, positions: int) -> None:
    """A sequence in chunks of every size, beside others at places of their own, against itself in one step alone."""
    alone = Layer(name, length=LENGTH, rows=1, positions=positions)
    (whole,) = alone.run(alone.native(1), [(0, 0, LENGTH)])
    layers = {threads: Layer(name, length=LENGTH, rows=4, positions=positions) for threads in (1, 2)}
    steps = {threads: layer.native(threads) for threads, layer in layers.items()}
    draw = Random(7)
    for size in range(1, LENGTH + 1):
        threads, row = 1 + size % 2, draw.randrange(4)
        layer, found = layers[threads], []
        layer.sequences[row] = alone.sequences[0]
        layer.kept[:] = np.nan
        others = dict.fromkeys({0, 1, 2, 3} - {row}, 0)
        for start in range(0, LENGTH, size):
            chunks = [(row, start, min(start + size, LENGTH))]
            for other in draw.sample(sorted(others), draw.randint(0, 3)):
                end = min(others[other] + draw.choice((1, 1, 2, 9)), LENGTH)
                if end > others[other]:
                    chunks.append((other, others[other], end))
                    others[other] = end
            draw.shuffle(chunks)
            found.append(layer.run(steps[threads], chunks)[[chunk[0] for chunk in chunks].index(row)])
        assert np.concatenate(found).tobytes() == whole.tobytes(), size
        kept = min(positions, LENGTH - (LENGTH - 1) // size * size)
        assert layer.last(row, LENGTH, kept).tobytes() == alone.last(0, LENGTH, kept).tobytes(), size


@pytest.mark.parametrize("name", RECURRENCES)
def test_published_shape_has_the_same_bits_in_any_cut(name: str) -> None:
    """Heads of 128 by 128, whose columns are walked some at a time."""
    layer = Layer(name, length=LENGTH, rows=2, positions=2, wide=True)
    layer.sequences[1] = layer.sequences[0]
    step = layer.native(2)
    (whole,) = layer.run(step, [(0, 0, LENGTH)])
    parts = [layer.run(step, [(1, start, min(start + 7, LENGTH))])[0] for start in range(0, LENGTH, 7)]
    assert np.concatenate(parts).tobytes() == whole.tobytes()
    assert layer.last(0, LENGTH, 2).tobytes() == layer.last(1, LENGTH, 2).tobytes()


@pytest.mark.parametrize("name", RECURRENCES)
def test_what_is_refused_is_undone(name: str) -> None:
    """A step of a token and drafts, of which some are refused: the next begins at an earlier position and gives what it would have."""
    layer = Layer(name, length=LENGTH, rows=2, positions=4)
    layer.sequences[1] = {part: array.copy() for part, array in layer.sequences[0].items()}
    step = layer.native(2)
    (whole,) = layer.run(step, [(0, 0, LENGTH)])
    layer.run(step, [(1, 0, 5)])
    start, draw = 5, Random(3)
    while start + 4 <= LENGTH:
        stands = draw.randint(1, 4)
        drafted = {part: array.copy() for part, array in layer.sequences[0].items()}
        for array in drafted.values():
            array[start + stands : start + 4] *= -3
        layer.sequences[1] = drafted
        (found,) = layer.run(step, [(1, start, start + 4)])
        assert found[:stands].tobytes() == whole[start : start + stands].tobytes()
        start += stands


@pytest.mark.parametrize("name", RECURRENCES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_so(name: str, bad: float) -> None:
    """One number of what is kept: a row's next token shows it, other rows and a new row at the same place do not."""
    layer = Layer(name, length=LENGTH, rows=2, positions=1)
    step = layer.native(2)
    layer.run(step, [(0, 0, 6), (1, 0, 6)])
    layer.kept[0, 5 % layer.kept.shape[1]].reshape(-1)[7] = bad
    shown, clean = layer.run(step, [(0, 6, 8), (1, 6, 8)])
    assert not np.isfinite(shown).all(axis=1).any() and np.isfinite(clean).all()
    (anew,) = layer.run(step, [(0, 0, 6)])
    assert np.isfinite(anew).all()


def test_sizes_are_checked() -> None:
    (sample,) = (each for each in OPS["gated_delta"].samples() if each.name == "one row")
    x, state = (np.zeros(shape, np.float32) for shape in ((1, 4 * 257 + 512), (3, 1, 4, 257, 128)))
    wide = {**sample.arguments, "x": x, "key_dim": 257, "state": state}
    with pytest.raises(ValueError, match="too wide"):
        native_step(OPS["gated_delta"], wide, 1, Sizes(T=1, R=1, S=1))
    with pytest.raises(ValueError, match="expected a contiguous"):
        native_step(OPS["gated_delta"], {**sample.arguments, "state": np.zeros((3, 1, 4, 64, 128), np.float32)}, 1, Sizes(T=1, R=1, S=1))
    (sample,) = (each for each in OPS["short_conv"].samples() if each.name == "one row")
    with pytest.raises(ValueError, match="4 taps"):
        native_step(OPS["short_conv"], {**sample.arguments, "tail": np.zeros((3, 3, 1040), np.float32)}, 1, Sizes(T=1, R=1, S=1))
