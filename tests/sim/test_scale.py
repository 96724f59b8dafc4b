"""`docs/scale.py`: its scenarios are ones that `sim` takes, and a small one makes its page."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from ridgeline.cli.scenarios import make_scenario

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "scale.py"


@pytest.fixture
def scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("scale", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    return module


def test_a_small_fleet_makes_its_page(scale: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for runs in scale.PAGES.values():
        for changes in runs.values():
            make_scenario(scale.MODEL, scale.USUAL | changes, None).check()
    small = {"replicas": "6", "rate": "6", "requests": "60"}
    scale.simulate("small", {"calm": small, "a third lost": small | {"outage": "4:60:0.3333"}})
    page, told = (tmp_path / "small.html").read_text(), capsys.readouterr().out
    assert "a third lost" in page and "http://" not in page.replace("http://www.w3.org", "") and len(page) < 200_000
    (answered,) = [line.split()[-2:] for line in told.splitlines() if "requests answered" in line]
    (seconds,) = [line.split() for line in told.splitlines() if "replica seconds" in line]
    assert answered == ["60", "60"] and len(seconds) > 3


def test_a_router_bears_less_with_more_replicas(scale: ModuleType) -> None:
    few, many = (scale.router_load(replicas, 200) for replicas in (4, 400))
    assert few["choices"] > many["choices"] > 0 and 100 < few["index_bytes"] < 2_000
    assert few["gossip"] == many["gossip"] == pytest.approx(2 * 40e6 / 86_400 * 500 / 16 * 16 * 2)
