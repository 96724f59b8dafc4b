"""The ledger of cold starts: seconds by phase, from the process's begin to its first token, the canary's; requests are taken from then on.

The last starts are kept in the cache directory.
"""

import time
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any, Final

from ridgeline.facts.files.kept import read_kept, write_kept

FILE: Final = "cold_starts.json"
VERSION: Final = 1
KEPT_STARTS: Final = 20
MAX_PHASES: Final = 32
PROCESS: Final = "process"
"""The phase before the first stage of the server's own."""


def read_starts(cache: Path) -> list[dict[str, Any]]:
    """The kept starts, the oldest first: when (seconds since 1970), model, version, seconds by phase. Damaged ones are left out."""
    found = read_kept(cache / FILE)
    starts = found.get("starts") if found.get("version") == VERSION else None
    return [each for each in starts if _is_sound(each)][-KEPT_STARTS:] if isinstance(starts, list) else []


def keep_start(cache: Path, model: str, version: str, phases: Mapping[str, float]) -> None:
    """Adds a start; the oldest makes room."""
    own = {"time": time.time(), "model": model, "version": version, "phases": dict(list(phases.items())[:MAX_PHASES])}
    write_kept(cache / FILE, {"version": VERSION, "starts": [*read_starts(cache), own][-KEPT_STARTS:]})


def last_start(cache: Path, model: str) -> dict[str, float]:
    """Seconds of each stage of the server's own when a model was started last; empty where that is not known."""
    phases: Mapping[str, float] = next((each["phases"] for each in reversed(read_starts(cache)) if each["model"] == model), {})
    return {stage: float(took) for stage, took in phases.items() if stage != PROCESS}


def usual_seconds(cache: Path, model: str) -> float | None:
    """The median of the kept starts of a model; None where there is none."""
    totals = [sum(each["phases"].values()) for each in read_starts(cache) if each["model"] == model]
    return median(totals) if totals else None


def _is_sound(start: Any) -> bool:
    if not isinstance(start, dict) or not isinstance(start.get("phases"), dict) or not isinstance(start.get("model"), str):
        return False
    numbers = [start.get("time"), *start["phases"].values()]
    return all(isinstance(each, (int, float)) and isfinite(each) and each >= 0 for each in numbers)
