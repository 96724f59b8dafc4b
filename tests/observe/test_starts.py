"""Cold starts: phases add up to the start, the last ones are kept, a damaged file is as none."""

import json
from pathlib import Path

import pytest

from ridgeline.observe import starts
from ridgeline.observe.starts import KEPT_STARTS, keep_start, read_starts, usual_seconds
from ridgeline.server.startup import Startup


def test_phases_add_up_to_the_start() -> None:
    now = [100.0]
    startup = Startup(lambda: now[0])
    for stage, seconds in (("resolving", 0.5), ("packing weights", 2.0), ("packing weights", 1.0), ("warming up", 0.25)):
        startup.note(stage, 0.5)
        now[0] += seconds
    startup.end()
    now[0] += 9.0
    startup.note("late", 0.1)
    phases = dict(startup.phases)
    assert phases.pop("process") > 0
    assert phases == {"starting": 0.0, "resolving": 0.5, "packing weights": 3.0, "warming up": 0.25}
    assert sum(phases.values()) == startup.snapshot().elapsed_seconds


def test_the_last_starts_are_kept(tmp_path: Path) -> None:
    for number in range(KEPT_STARTS + 3):
        keep_start(tmp_path, f"m{number}", "1", {"process": 0.1, "packing weights": float(number)})
    found = read_starts(tmp_path)
    assert [each["model"] for each in found] == [f"m{number}" for number in range(3, KEPT_STARTS + 3)]
    assert found[-1]["phases"]["packing weights"] == KEPT_STARTS + 2
    keep_start(tmp_path, "m9", "1", {"process": 1.1, "warming up": 12.0})
    assert usual_seconds(tmp_path, "m9") == pytest.approx((9.1 + 13.1) / 2) and usual_seconds(tmp_path, "other") is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1, "starts": 3}', '{"version": 2, "starts": []}'])
def test_a_damaged_file_is_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / starts.FILE).write_text(text)
    assert read_starts(tmp_path) == []
    keep_start(tmp_path, "m", "1", {})
    kept = json.loads((tmp_path / starts.FILE).read_text())
    kept["starts"] += [{"model": 3}, {"model": "m", "phases": {"a": "b"}, "time": 1.0}, None]
    (tmp_path / starts.FILE).write_text(json.dumps(kept))
    assert [each["model"] for each in read_starts(tmp_path)] == ["m"]
