"""Traces: what threads did, in a file that Perfetto opens, even of a process that was killed; of so many steps, and then no more."""

import json
import stat
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native import NativeDriver
from serving import serve
from tiny import Tiny, open_tiny, write_tiny

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.packing import pack_weights
from ridgeline.compute.trace import StepTrace
from ridgeline.core.params import Admitted, Sampling
from ridgeline.engine.engine import Engine


def events(path: Path) -> list[dict[str, Any]]:
    """The array is left open at its end until the trace is closed."""
    text = path.read_text().rstrip()
    found: list[dict[str, Any]] = json.loads(text if text.endswith("]") else text + "]")
    return found


def test_a_phase_of_a_thread_is_an_event(tmp_path: Path) -> None:
    trace = StepTrace(tmp_path / "trace.json")
    columns = np.array([[[1_000, 3_000, 2], [3_500, 4_000, 1]], [[1_200, 2_000, 4], [0, 0, 0]]], np.int64)
    trace.count(8.0, "screened head", {"steps": 3})
    trace.phases(7.0, ["norm", "attention"], columns)
    trace.end_step()
    trace.phases(9.0, ["norm", "attention"], columns)
    trace.end_step()
    found = events(tmp_path / "trace.json")  # before it is closed: what a killed process leaves
    assert len(found) == 3 + 1 + 3, "a thread without chunks did nothing"
    first, second, other = found[1:4]
    assert (first["name"], first["ph"], first["tid"], first["args"]) == ("norm", "X", 0, {"step": 0, "chunks": 2})
    assert (first["ts"], first["dur"]) == (pytest.approx(7e6 + 1), pytest.approx(2)), "microseconds"
    assert (second["name"], second["tid"]) == ("attention", 0) and (other["name"], other["tid"]) == ("norm", 1)
    assert (found[0]["ph"], found[0]["args"]) == ("C", {"steps": 3})
    assert {event["args"]["step"] for event in found[4:]} == {1}
    trace.close()
    trace.close()
    assert len(json.loads((tmp_path / "trace.json").read_text())) == 7, "whole JSON"


@pytest.mark.parametrize("steps", [None, 3])
def test_a_full_disk_ends_the_trace_and_not_the_steps(tmp_path: Path, steps: int | None) -> None:
    name = "t.json" if steps is None else "t.json.part"
    (tmp_path / name).symlink_to("/dev/full")
    trace = StepTrace(tmp_path / "t.json", steps)
    for _ in range(5):
        trace.span("step", 1.0, 2.0)
        trace.end_step()
    assert trace.is_closed and not trace._events, "nothing is kept that will not be written"
    trace.close()
    assert steps is None or not [*tmp_path.iterdir()]


@pytest.mark.skipif(ext.lost() is not None, reason="the native extension is not built")
def test_every_phase_of_a_step_is_told(tmp_path: Path) -> None:
    facts, _ = open_tiny(tmp_path / "tiny.gguf", Tiny())
    driver = NativeDriver(facts, pack_weights(facts, 2, lambda stage, fraction: None), threads=2)
    trace = driver.runner.trace = StepTrace(tmp_path / "trace.json")
    for ids in (list(range(4, 40)), [5], [6]):
        driver.step((0, ids), select=[0])
        trace.end_step()
    phases = driver.runner._of(driver.kv).names
    driver.runner.close()
    found = events(tmp_path / "trace.json")
    assert {event["args"]["step"] for event in found if event["ph"] == "X"} == {0, 1, 2}
    for step in range(3):
        told = [event for event in found if event["args"].get("step") == step and event["name"] != "run"]
        assert {event["name"] for event in told} == {name for name in phases if not name.startswith("merge ")}, "one split has no merge"
        assert {event["tid"] for event in told} <= {0, 1} and all(event["dur"] >= 0 for event in told)


def traced(model: Path, path: Path, steps: int, outputs: int, **settings: object) -> list[dict[str, Any]]:
    """Events of the first `steps` steps of a request, by an engine that goes on to its end."""

    def prepare(engine: Engine) -> None:
        assert engine.executor.trace is not None
        engine.executor.trace(str(path), steps)

    serve(model, [[Admitted("r", (5, 6, 7, 8), max_tokens=outputs, seed=0, sampling=Sampling(temperature=0.0))]], prepare, **settings)
    assert not path.with_name(f"{path.name}.part").exists() and stat.S_IMODE(path.stat().st_mode) == 0o600
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return [event for event in found if event["ph"] == "X"]


@pytest.mark.skipif(ext.lost() is not None, reason="the native extension is not built")
@pytest.mark.alone
def test_phases_sum_to_the_time_of_their_step(demo_file: Path, tmp_path: Path) -> None:
    """One thread: what it does one after the other is the runner's time, and that but for sampling the step's."""
    settings = {"runner": "native", "threads": 1, "max_model_len": 256, "block_size": 16, "max_num_batched_tokens": 64}
    found = traced(demo_file, tmp_path / "t.json", 6, 9, **settings)
    taken: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for event in found:
        taken[event["args"]["step"]][event["name"] if event["name"] in ("step", "run") else "phases"] += event["dur"]
    assert sorted(taken) == [*range(6)], "so many steps as were asked for, and no more"
    for each in taken.values():
        assert each["phases"] <= each["run"] <= each["step"]
    shares = sorted(each["phases"] / each["run"] for each in taken.values())
    assert shares[2] > 0.95, shares
    of_steps = sorted(each["run"] / each["step"] for each in taken.values())
    assert of_steps[2] > 0.9, of_steps
    assert {event["tid"] for event in found} == {0}


def test_the_numpy_runner_tells_of_every_op(tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "tiny.gguf", Tiny(layers=2))
    found = traced(model, tmp_path / "t.json", 3, 6, runner="numpy")
    names = [event["name"] for event in found if event["args"]["step"] == 1]
    assert names[-2:] == ["run", "step"]
    assert sum(name.startswith("attention →") for name in names) == 2 and sum("linear" in name for name in names) == 2 * 7 + 1
    ops = [event for event in found if event["args"]["step"] == 1][:-2]
    run, step = found[-2:]
    assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-3 for a, b in pairwise(ops)), "one behind the other"
    assert run["dur"] <= step["dur"] and run["args"]["tokens"] == 1


def test_nothing_is_done_where_nothing_is_traced(tmp_path: Path) -> None:
    """Functions entered in a step before, and behind, a trace: the same ones, none of a trace; the native call gets no memory for one."""
    facts, _ = open_tiny(tmp_path / "tiny.gguf", Tiny())
    driver = NativeDriver(facts, pack_weights(facts, 1, lambda stage, fraction: None), threads=1)

    def entered() -> list[str]:
        found: list[str] = []
        sys.setprofile(lambda frame, event, _: found.append(frame.f_code.co_filename) if event == "call" else None)
        try:
            driver.step((0, [5]), select=[0])
        finally:
            sys.setprofile(None)
        return found

    driver.step((0, list(range(4, 20))), select=[0])
    before = entered()
    trace = driver.runner.trace = StepTrace(tmp_path / "t.json")
    during = entered()
    driver.runner.trace = None
    trace.close()
    assert entered() == before and not any("trace.py" in each for each in before)
    assert any("trace.py" in each for each in during), "the check can fail"
    driver.runner.close()


def test_a_trace_that_is_ended_early_has_the_steps_that_ran(tmp_path: Path) -> None:
    def prepare(engine: Engine) -> None:
        assert engine.executor.trace is not None
        engine.executor.trace(str(tmp_path / "a.json"), 5)
        engine.executor.trace(str(tmp_path / "b.json"), 50)

    model = write_tiny(tmp_path / "tiny.gguf", Tiny(layers=2))
    serve(model, [[Admitted("r", (5, 6), max_tokens=3, seed=0)]], prepare, runner="numpy")
    assert json.loads((tmp_path / "a.json").read_text()) == [], "another took its place before a step"
    assert {event["args"]["step"] for event in json.loads((tmp_path / "b.json").read_text())} == {0, 1, 2}, "the engine ended"
