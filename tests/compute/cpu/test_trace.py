"""`--trace`: what threads did, in a file that Perfetto opens, even of a process that was killed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native import NativeDriver
from tiny import Tiny, open_tiny

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.packing import pack_weights
from ridgeline.compute.cpu.runner import StepTrace


def events(path: Path) -> list[dict[str, Any]]:
    """The array is left open at its end."""
    found: list[dict[str, Any]] = json.loads(path.read_text().rstrip().rstrip(",") + "]")
    return found


def test_a_phase_of_a_thread_is_an_event(tmp_path: Path) -> None:
    trace = StepTrace(tmp_path / "trace.json")
    columns = np.array([[[1_000, 3_000, 2], [3_500, 4_000, 1]], [[1_200, 2_000, 4], [0, 0, 0]]], np.int64)
    trace.write(7.0, ["norm", "attention"], columns)
    trace.count(8.0, "screened head", {"steps": 3})
    trace.write(9.0, ["norm", "attention"], columns)
    found = events(tmp_path / "trace.json")  # before it is closed: what a killed process leaves
    assert len(found) == 3 + 1 + 3, "a thread without chunks did nothing"
    first, second, other = found[:3]
    assert (first["name"], first["ph"], first["tid"], first["args"]) == ("norm", "X", 0, {"step": 0, "chunks": 2})
    assert (first["ts"], first["dur"]) == (pytest.approx(7e6 + 1), pytest.approx(2)), "microseconds"
    assert (second["name"], second["tid"]) == ("attention", 0) and (other["name"], other["tid"]) == ("norm", 1)
    assert (found[3]["ph"], found[3]["args"]) == ("C", {"steps": 3})
    assert {event["args"]["step"] for event in found[4:]} == {1}
    trace.close()
    trace.close()


@pytest.mark.skipif(ext.lost() is not None, reason="the native extension is not built")
def test_every_phase_of_a_step_is_told(tmp_path: Path) -> None:
    facts, _ = open_tiny(tmp_path / "tiny.gguf", Tiny())
    driver = NativeDriver(facts, pack_weights(facts, 2, lambda stage, fraction: None), threads=2)
    driver.runner._trace = StepTrace(tmp_path / "trace.json")
    for ids in (list(range(4, 40)), [5], [6]):
        driver.step((0, ids), select=[0])
    phases = driver.runner._of(driver.kv).names
    driver.runner.close()
    found = events(tmp_path / "trace.json")
    assert {event["args"]["step"] for event in found if event["ph"] == "X"} == {0, 1, 2}
    for step in range(3):
        told = [event for event in found if event["args"].get("step") == step]
        assert {event["name"] for event in told} == {name for name in phases if not name.startswith("merge ")}, "one split has no merge"
        assert {event["tid"] for event in told} <= {0, 1} and all(event["dur"] >= 0 for event in told)
