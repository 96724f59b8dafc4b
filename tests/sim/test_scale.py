"""`docs/scale.py`: its scenarios are ones that `sim` takes, a small one makes its page, and what routers bear is measured with theirs."""

import importlib.util
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

from ridgeline.cli.scenarios import make_scenario
from ridgeline.sim.fleet.fleet import Outage

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "scale.py"


@pytest.fixture
def scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    spec = importlib.util.spec_from_file_location("scale", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    return module


def test_a_small_fleet_makes_its_page(scale: ModuleType, tmp_path: Path) -> None:
    for page in scale.PAGES.values():
        for changes in page.runs.values():
            make_scenario(scale.MODEL, scale.USUAL | changes, None).check()
    small, outage = {"replicas": "6", "rate": "9", "requests": "300"}, Outage(10.0, 10.0, 2 / 3)
    lost = small | {"outage": "10:10:0.6667"}
    told = scale.simulate("small", scale.Page({"calm": small, "two thirds lost": lost}, {"two thirds lost": outage}))
    page = (tmp_path / "small.html").read_text()
    assert "two thirds lost" in page and "http://" not in page.replace("http://www.w3.org", "") and len(page) < 200_000
    (answered,) = [line.split()[-2:] for line in told if "requests answered" in line]
    (note,) = [line for line in told if "within the objective from 5 to 10 s" in line]
    assert answered == ["300", "300"] and "while 67% of the replicas are lost" in note


def test_phases_of_an_outage(scale: ModuleType) -> None:
    scenario = make_scenario(scale.MODEL, scale.USUAL | {"replicas": "6", "rate": "9", "requests": "300", "outage": "10:10:0.6667"}, None)
    report = scenario.run(1)
    assert all(before <= after for before, after in pairwise(report.over_time["time"]))
    at, back = Outage(10.0, 10.0, 2 / 3), {"time": (5.0, 12.0, 18.0, 22.0, 26.0, 30.0), "met": (1.0, 0.5, 0.4, 0.6, 0.9, 1.0)}
    told = scale.phases(replace(report, over_time=back), at)
    assert told.startswith("100.0% within the objective from 5 to 10 s, 45.0% while")
    assert told.endswith("83.3% from 20 s on, as before 6 s later")
    assert scale.phases(replace(report, over_time=back | {"met": (1.0, 0.5, 0.4, 1.0, 1.0, 1.0)}), at).endswith("as before at once")
    assert scale.phases(replace(report, over_time=back | {"met": (1.0, 0.5, 0.4, 0.6, 0.6, 0.6)}), at).endswith("not within the run")


def test_a_router_bears_less_with_more_replicas(scale: ModuleType) -> None:
    router = scale.scale_router
    for is_exact in (False, True):
        few, many = (router.choices(replicas, 300, 100, is_exact=is_exact) for replicas in (4, 400))
        assert few > many > 0
    (new, parts), (shared, fewer) = (router.index_bytes(tokens, 300) for tokens in (0, 300))
    assert parts == 3 and 1 < fewer < 2.5 and 300 < shared < new < 3_000
    assert 50 < router.held_bytes(2) < 300


def test_gossip_is_measured_on_a_server(scale: ModuleType) -> None:
    """Digests of 8 bytes in base 64, and a head on either side of each answer."""
    told = scale.scale_router.gossip(questions=20, prompts=8)
    assert 10.6 < told.digest_bytes < 11.5 and 200 < told.empty_bytes < 1_000
    assert told.empty_us > told.digest_us > 0
