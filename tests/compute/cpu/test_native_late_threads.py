"""Threads that the system puts aside come back in a later step: nothing of it is theirs, whatever its phases are cut into."""

from pathlib import Path
from threading import Thread
from time import monotonic

import numpy as np
import pytest
from native import NativeDriver
from tiny import Tiny, write_tiny

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.packing import pack_weights
from ridgeline.facts.headers.read import read_model_facts

pytestmark = pytest.mark.skipif(ext.lost() is not None, reason="the native extension is not built")

THREADS = 8
"""More than processors, so that some are always late."""


def test_steps_of_changing_size_end_and_have_their_bits(tmp_path: Path) -> None:
    """One token and sixty in turn: few chunks a phase, then many."""
    facts = read_model_facts(write_tiny(tmp_path / "tiny.gguf", Tiny(), kind="Q8_0"))
    driver = NativeDriver(facts, pack_weights(facts, 2, lambda stage, fraction: None), threads=THREADS, kv_dtype="f32")
    steps = [driver.inputs([(0, [5])]), driver.inputs([(1, list(range(3, 63)))])]
    wanted = [driver.runner.run(step, driver.kv)["logits"].view(np.uint32).copy() for step in steps]
    same: list[bool] = []

    def run() -> None:
        until = monotonic() + 2
        while monotonic() < until:
            for step, bits in zip(steps, wanted, strict=True):
                same.append(np.array_equal(driver.runner.run(step, driver.kv)["logits"].view(np.uint32), bits))

    worker = Thread(target=run, daemon=True)  # a step that does not end cannot be interrupted
    worker.start()
    worker.join(60)
    assert not worker.is_alive(), f"step {len(same)} did not end"
    assert same and all(same)
