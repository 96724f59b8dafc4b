"""A file of what steps did, phase by phase and thread by thread or op by op, in the format that Perfetto and chrome://tracing open.

Runners note into it while it is theirs (`trace` of a runner is None else, and costs that one look); nothing is written before a step ends.
"""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

STEP: Final = "step"
"""Name of the event of a whole step."""
RUN: Final = "run"
"""Name of the event of what a runner does in a step; what is left of the step is inputs before it, masks and sampling behind."""


class StepTrace:
    """Complete events ("ph": "X"), a thread per track, times in microseconds of `perf_counter`.

    The file of a process that is killed opens too: the format allows an array that is left open. With `steps` so many are told; the file is
    `path` with ".part" until then, for its owner alone, and comes whole or not at all. Costs two looks at the clock per chunk or op.

    Any thread may close it; one thread notes. A disk that takes no more ends the trace, and not the steps.
    """

    def __init__(self, path: Path, steps: int | None = None) -> None:
        self._path, self._left = path, steps
        self._part = path if steps is None else path.with_name(f"{path.name}.part")
        rights = 0o666 if steps is None else 0o600
        self._file = os.fdopen(os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, rights), "w", encoding="utf-8")
        self._file.write("[")
        self._lock = Lock()
        self._is_first = True
        self._phases: list[tuple[float, Sequence[str], NDArray[np.int64]]] = []
        self._events: list[dict[str, Any]] = []
        self._steps = 0

    @property
    def is_closed(self) -> bool:
        """True behind the last step that it tells of."""
        return self._file.closed

    def phases(self, began: float, names: Sequence[str], columns: NDArray[np.int64]) -> None:
        """Notes phases of threads, which began at `began` seconds: int64 [threads, phases, 3] of first and last nanosecond, and chunks."""
        self._phases.append((began, names, columns))

    def span(self, name: str, began: float, ended: float, **told: object) -> None:
        """Notes what the step's own thread did, in seconds of `perf_counter`."""
        self._events.append(_event(name, 0, began * 1e6, (ended - began) * 1e6, {"step": self._steps, **told}))

    def count(self, at: float, name: str, counts: Mapping[str, int]) -> None:
        """Notes counters at a point in time, drawn as a track of their own."""
        self._events.append({"name": name, "ph": "C", "pid": 1, "ts": at * 1e6, "args": dict(counts)})

    def end_step(self) -> None:
        """Writes what was noted of a step. Behind the last one that was asked for the file is complete."""
        with self._lock:
            if not self._file.closed:
                try:
                    self._write()
                    if self._left is not None and self._steps >= self._left:
                        self._close()
                except OSError:
                    self._give_up()
            self._events, self._phases = [], []

    def close(self) -> None:
        """Ends the file, with the steps that it has. Safe to call twice."""
        with self._lock:
            if not self._file.closed:
                try:
                    self._close()
                except OSError:
                    self._give_up()

    def _write(self) -> None:
        for event in (*self._events, *(event for phases in self._phases for event in self._of_threads(*phases))):
            self._file.write(("\n" if self._is_first else ",\n") + json.dumps(event))
            self._is_first = False
        self._file.flush()
        self._steps += 1

    def _of_threads(self, began: float, names: Sequence[str], columns: NDArray[np.int64]) -> list[dict[str, Any]]:
        return [
            _event(name, thread, began * 1e6 + first / 1e3, (last - first) / 1e3, {"step": self._steps, "chunks": chunks})
            for thread, of_thread in enumerate(columns.tolist())
            for name, (first, last, chunks) in zip(names, of_thread, strict=True)
            if chunks
        ]

    def _close(self) -> None:
        self._file.write("\n]\n")
        self._file.close()
        if self._part != self._path:
            os.replace(self._part, self._path)

    def _give_up(self) -> None:
        with suppress(OSError):
            self._file.close()
        if self._part != self._path:
            with suppress(OSError):
                self._part.unlink()


def _event(name: str, thread: int, microsecond: float, microseconds: float, told: dict[str, object]) -> dict[str, Any]:
    return {"name": name, "ph": "X", "pid": 1, "tid": thread, "ts": microsecond, "dur": microseconds, "args": told}
