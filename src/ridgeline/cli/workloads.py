"""What `--workload` of `plan` may be: words, or a recorded trace of which the average request, the longest and the burst are taken."""

from collections import Counter
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ridgeline.sim.fleet.traffic import Arrival

SLICES = 60
"""Parts of a trace in which arrivals are counted for its burst."""


def workload_of(text: str | None) -> tuple[str | None, int | None]:
    """(words, tokens of the longest request): the words themselves, or those that describe the trace whose path `text` is.

    Raises ConfigError as `read_trace` does.
    """
    if text is None or not text.endswith((".jsonl", ".csv")):
        return text, None
    from ridgeline.sim.fleet.traces import read_trace

    arrivals = read_trace(Path(text))
    return described(arrivals), max(each.prompt + each.output for each in arrivals)


def described(arrivals: "Sequence[Arrival]") -> str:
    """Mean tokens in and out, share of prompt tokens that an earlier request had, and the fullest of `SLICES` parts over the mean one."""
    prompt, output = (ceil(fmean(values)) for values in zip(*[(each.prompt, each.output) for each in arrivals], strict=True))
    seen: set[int] = set()
    reused = 0
    for each in arrivals:
        reused += each.shared if each.prefix in seen else 0
        seen.add(each.prefix)
    share, span, burst = min(0.99, reused / sum(each.prompt for each in arrivals)), arrivals[-1].time, 1.0
    if span:
        fullest = max(Counter(min(SLICES - 1, int(each.time / span * SLICES)) for each in arrivals).values())
        burst = min(1000.0, max(1.0, fullest * SLICES / len(arrivals)))
    return f"in={prompt},out={output},prefix={share:.3f},burst={burst:.2f}"
