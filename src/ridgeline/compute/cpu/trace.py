"""What every thread did in every phase of every step, in the format that Perfetto and chrome://tracing open.

Owns the file. Costs two looks at the clock a chunk, and one line a phase and thread.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


class StepTrace:
    """Writes complete events ("ph": "X"), a thread a track. The array is left open at its end, as the format allows: a killed process
    leaves a file that opens."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._file.write("[\n")
        self._steps = 0

    def write(self, began: float, names: Sequence[str], columns: NDArray[np.int64]) -> None:
        """One step that began at `began` seconds: columns int64 [threads, phases, 3] of first and last nanosecond, and chunks."""
        for thread, phases in enumerate(columns.tolist()):
            for name, (first, last, chunks) in zip(names, phases, strict=True):
                if chunks:
                    event = {"name": name, "ph": "X", "pid": 1, "tid": thread, "ts": began * 1e6 + first / 1e3, "dur": (last - first) / 1e3}
                    self._file.write(json.dumps({**event, "args": {"step": self._steps, "chunks": chunks}}) + ",\n")
        self._steps += 1
        self._file.flush()

    def count(self, at: float, name: str, counts: Mapping[str, int]) -> None:
        """Counters at a point in time, drawn as a track of their own."""
        event = {"name": name, "ph": "C", "pid": 1, "ts": at * 1e6, "args": dict(counts)}
        self._file.write(json.dumps(event) + ",\n")

    def close(self) -> None:
        """Ends the file. Safe to call twice."""
        self._file.close()
