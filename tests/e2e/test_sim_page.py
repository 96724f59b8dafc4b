"""The simulator's page in a real browser: the table of runs, distributions, the knee; it asks nobody for anything."""

import json
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli.scenarios import make_scenario, scenario_at_rate
from ridgeline.cli.sim_runs import SimulationRuns
from ridgeline.sim.fleet.experiment import runs_page

BASE = {"requests": "60", "rate": "20", "prompt": "lognormal:300", "output": "40"}
POINTS = """
[...document.querySelectorAll('#ttft path')].map(path => path.getAttribute('d').match(/[-.0-9]+/g).map(Number).filter((_, i) => i % 2))
"""


@pytest.fixture(scope="module")
def runs() -> SimulationRuns:
    with SimulationRuns(2, quiet=True) as found:
        for limit in ("64", "2"):
            found.run(f"max_num_seqs={limit}", make_scenario("llama-3-8b", BASE | {"max_num_seqs": limit}, None))
        found.find_knee(scenario_at_rate("llama-3-8b", BASE, None))
    return found


@pytest.fixture
def page(runs: SimulationRuns, tmp_path: Path, browser: Any) -> Any:
    (tmp_path / "sim.html").write_text(runs_page(runs.as_dict(), runs.table(), runs.notes), encoding="utf-8")
    browser.resize(1280, 900)
    browser.open((tmp_path / "sim.html").as_uri())
    return browser


def test_it_shows_the_runs(page: Any, runs: SimulationRuns) -> None:
    cells = page.value("[...document.querySelectorAll('#runs tbody tr')].map(row => [...row.children].map(cell => cell.textContent))")
    assert cells == runs.table() and len(cells) > 20
    assert page.value("[...document.querySelectorAll('#runs thead th')].map(e => e.textContent)") == [run.name for run in runs.done]
    assert page.value("document.getElementById('notes').textContent") == "".join(runs.notes)
    assert page.value("[...document.querySelectorAll('#ttft .legend li')].map(e => e.textContent)") == [run.name for run in runs.done]
    tight, free = page.value(POINTS)
    assert len(free) == len(tight) == len(runs.as_dict()["shares"])
    for heights in (free, tight):
        assert heights == sorted(heights, reverse=True), "a distribution only rises"
    assert sum(tight) < sum(free), "two at once make others wait: a higher curve"
    assert page.value("['met', 'late'].map(name => document.querySelectorAll(`#${name} path`).length)") == [2, 2]
    assert "arrival, s" in page.value("document.getElementById('late').textContent")
    assert "knee" in page.value("document.getElementById('knee').textContent")
    page.value("document.getElementById('ttft').scrollIntoView()")
    x, y = page.value("(b => [b.left + b.width / 2, b.top + 50])(document.querySelector('#ttft svg').getBoundingClientRect())")
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    assert "percentile p" in page.value("document.querySelector('#ttft .reading').textContent")
    assert page.problems == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_fits_and_asks_nobody(page: Any, tmp_path: Path, theme: str) -> None:
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
    for width, height in ((390, 844), (1280, 900)):
        page.resize(width, height)
        page.wait(f"innerWidth === {width} && Number(document.querySelector('#ttft svg').viewBox.baseVal.width) < {width}")
        assert page.value("document.documentElement.scrollWidth") <= width
        boxes = "[...document.querySelectorAll('svg text')].map(e => [e.textContent, e.getBoundingClientRect()])"
        assert page.value(f"{boxes}.filter(([, b]) => b.left < 0 || b.right > innerWidth).map(([text]) => text)") == []
        page.screenshot(tmp_path / "page.png")
        assert (tmp_path / "page.png").stat().st_size > 10_000
    assert page.value("[...document.querySelectorAll('svg')].filter(e => !e.getAttribute('aria-label')).length") == 0
    assert page.requests and all(each.startswith("file://") for each in page.requests)
    assert page.problems == []


def test_many_runs_and_hostile_names(page: Any, runs: SimulationRuns, tmp_path: Path) -> None:
    """Twelve runs, of which eight have colours; a name that would end the script; a run that measured nothing."""
    found = runs.as_dict()
    first = found["runs"][0] | {"name": "</script><script>window.broken = 1</script>"}
    nothing = {kind: {name: [] for name in first[kind]} for kind in ("curves", "over_time")}
    empty = found["runs"][1] | {"name": "nothing"} | nothing
    found = {"shares": found["shares"], "runs": [first, empty, *[first] * 10]}
    table = [[row[0], *row[1:2] * 12] for row in runs.table()]
    (tmp_path / "many.html").write_text(runs_page(json.loads(json.dumps(found)), table, []), encoding="utf-8")
    for width in (390, 1280):
        page.resize(width, 844)
        page.open((tmp_path / "many.html").as_uri())
        assert page.value("document.documentElement.scrollWidth") <= width
    assert page.value("document.querySelectorAll('#ttft path').length") == 7
    assert "first 8 of 12" in page.value("document.getElementById('shown').textContent")
    assert page.value("document.getElementById('knee').hidden")
    assert page.value("document.querySelector('#runs th').textContent") == first["name"]
    assert page.value("window.broken") is None and page.problems == []
