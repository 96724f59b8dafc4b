"""The op of adapters: native kernels against the reference at every ISA level, a token alone and in company."""

from typing import Any

import numpy as np
import pytest

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.adapters import NativeAdapterSlots
from ridgeline.compute.ops.definition import Sample, floats
from ridgeline.compute.ops.lora import Pair, lora
from ridgeline.compute.runner import relative_error

pytestmark = pytest.mark.skipif(ext.lost() is not None, reason="the native extension is not built")


def native(given: Any, rows: list[int]) -> np.ndarray:
    """The op by the native kernel, of some rows."""
    x, y, numbers = (np.ascontiguousarray(given[name][rows]) for name in ("x", "y", "slots"))
    slots = NativeAdapterSlots({"m": (y.shape[1], x.shape[1])}, max(len(given["pairs"]), 4))
    for slot, pair in enumerate(given["pairs"]):
        slots.fill(slot, slots.pack({} if pair is None else {"m": pair}))
    out = np.full_like(y, np.nan)
    places = {"x": x, "y": y, "slots": numbers, "pairs": slots.records["m"], "out": out}
    values = {name: array.ctypes.data for name, array in places.items()} | {"columns": x.shape[1], "width": y.shape[1]}
    ext.native().run_rows(ext.level_number(), "lora", ext.record(ext.params("lora"), values), len(x))
    return out


def in_codes(name: str, rows: list[int], outputs: int, inputs: int, *ranks: int, kind: str = "F32") -> Sample:
    """Rows of pairs that only native kernels hold in codes."""
    stored = {"F32": np.float32, "F16": np.float16}[kind]
    pairs = [
        Pair(
            kind,
            floats(rank, rank, inputs, size=0.3).astype(stored),
            floats(rank + 1, rank, outputs, size=0.3).astype(stored),
            0.25,
            coded=True,
        )
        for rank in ranks
    ]
    own = {"x": floats(1, len(rows), inputs), "y": floats(2, len(rows), outputs), "slots": np.array(rows, np.int32).reshape(-1, 1)}
    return Sample(name, {**own, "pairs": pairs})


SAMPLES = [
    *lora.samples(), in_codes("codes", [0, -1, 1, 2, 3, 1], 300, 530, 16, 9, 70, 256),
    in_codes("codes of few columns", [0, 1], 20, 37, 16, 33, kind="F16"),
]  # fmt: skip


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_native_lora_equals_the_reference(sample: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = sample.arguments
    every = list(range(len(given["x"])))
    expected, bits = lora(*(given[name] for name in lora.parameters)), set()
    for level in ext.isa_levels():
        monkeypatch.setattr(ext, "isa", lambda level=level: level)
        found = native(given, every)
        assert relative_error(found, expected) <= lora.tolerance["native"]
        bits.add(found.tobytes())
        crowd = [row for row in every for _ in range(5)]  # several tokens of one adapter follow each other
        assert native(given, crowd).tobytes() == found[crowd].tobytes()
        for row in every:
            assert native(given, [row]).tobytes() == found[[row]].tobytes()
            if given["slots"][row, 0] < 0:
                assert found[row].tobytes() == given["y"][row].tobytes()
    assert len(bits) == 1
