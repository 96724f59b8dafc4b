"""Simulations as one page: runs beside each other, distributions of latency as curves, and the curve of the knee where one was searched.

Owns what is embedded; figures and their words are the caller's. Style and plots are those of the planner's page.
"""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

from ridgeline.planning.page import FOLDER, document

SOURCES: Final = files("ridgeline.sim.fleet") / "page"


def runs_page(found: Mapping[str, Any], table: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    """One HTML document of what was found (`Runs.as_dict`), its rows as text, and what is to be said about them."""
    return document(SOURCES / "runs.html", [FOLDER / "plot.js", SOURCES / "runs.js"], {**found, "table": table, "notes": notes})
