"""The comparison of two commits in turn (tests/speed): the same commit twice, on an engine that computes nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SPEED = Path(__file__).resolve().parents[1] / "speed"
SOURCE = Path(__file__).resolve().parents[2] / "src"


@pytest.mark.parametrize("loads", [["host"], pytest.param(["decode", "prefill", "host"], marks=pytest.mark.night)], ids=["day", "night"])
def test_a_commit_beside_itself(loads: list[str]) -> None:
    sides = [f"--{side}{what}" for side in ("old", "new") for what in (f"={sys.executable}", f"-path={SOURCE}")]
    command = [
        sys.executable,
        str(SPEED / "compare.py"),
        *sides,
        "--model",
        "fake:{}",
        "--rounds",
        "2",
        "--json",
        "--loads",
        ",".join(loads),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    sizes = {"decode": [1, 4, 16, 32], "prefill": [512, 2048], "host": [32, 256]}
    assert [(each["load"], each["size"]) for each in found] == [(load, size) for load in loads for size in sizes[load]]
    for each in found:
        assert each["rounds"] == 2 and each["old_seconds"] > 0 and each["new_seconds"] > 0
        assert each["speed_interval"][0] <= each["speed"] <= each["speed_interval"][1]


def test_intervals_hold_what_is_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SPEED))
    import compare

    assert compare.interval([1.01] * 5) == (1.01, 1.01)
    low, high = compare.interval([0.9, 1.0, 1.0, 1.0, 1.1])
    assert 0.9 <= low <= 1.0 <= high <= 1.1
    assert compare.interval([0.5, 0.6, 0.7, 1.5, 1.6])[0] < 0.6
