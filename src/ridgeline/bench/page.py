"""A measurement as one page: its table, and the distributions of latency as curves. Style and code are those of the simulator's page."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Final

from ridgeline.planning.page import FOLDER, document
from ridgeline.sim.fleet.measures import CURVE
from ridgeline.sim.fleet.page import SOURCES

INDEX: Final = files("ridgeline.bench") / "page" / "bench.html"


def bench_page(curves: Sequence[tuple[str, Mapping[str, Sequence[float]]]], table: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    """One HTML document. curves: name and `report.Figures.curves` of each run."""
    runs = [{"name": name, "curves": each} for name, each in curves]
    data = {"runs": runs, "shares": CURVE, "table": table, "notes": notes}
    return document(INDEX, [FOLDER / "plot.js", SOURCES / "runs.js"], data)
