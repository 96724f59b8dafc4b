"""Runs the steps of a part, each in a process of its own, and keeps what they say in a few files.

Owns the files, the clock of a part, and which steps run beside each other. A step that hangs, dies or has no time left ends alone.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from threading import Lock
from typing import Any

from ridgeline.bench.row_process import run_rows

Row = dict[str, Any]

TOGETHER = 8
"""Processes of steps that may run beside each other."""
LEAST_SECONDS = 10.0
"""A step that has less is left for another visit."""
LAST_NOTES = 60
ROWS_BYTES = 12 << 20
"""Of all rows: what comes back of a visit is small."""


@dataclass(frozen=True, slots=True)
class Step:
    """A command that prints rows, killed after `limit` seconds. beside: others that are `beside` run meanwhile."""

    name: str
    command: tuple[str, ...]
    limit: float
    beside: bool = False


@dataclass
class Visit:
    """The files of a visit, and what those of an earlier one say."""

    out: Path
    after: Path | None = None
    rows: list[Row] = field(default_factory=list)
    done: dict[tuple[int, str], Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        self._lock = Lock()
        if self.after is not None and self.after.resolve() != self.out.resolve():
            for name in ("steps.jsonl", "rows.jsonl"):
                if not (self.out / name).exists() and (self.after / name).exists():
                    (self.out / name).write_bytes((self.after / name).read_bytes())
        self.rows += _read(self.out / "rows.jsonl")
        self.done |= {(step["part"], step["step"]): step for step in _read(self.out / "steps.jsonl") if not step.get("left")}

    @property
    def failures(self) -> list[Row]:
        """Steps that ended with an error."""
        return [step for step in self.done.values() if step["error"]]

    def add(self, name: str, row: Row) -> None:
        """Appends a row to one of the files."""
        with self._lock, (self.out / name).open("a", encoding="utf-8") as file:
            if file.tell() < ROWS_BYTES:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
            if name == "rows.jsonl":
                self.rows.append(row)

    def log(self, title: str, notes: Iterable[str]) -> None:
        """Appends the end of what a step printed beside its rows."""
        with self._lock, (self.out / "log.txt").open("a", encoding="utf-8") as file:
            file.write("\n".join([f"== {title}", *notes]) + "\n")


def walk(visit: Visit, part: int, steps: Sequence[Step], seconds: float, on_step: Callable[[Visit], None]) -> None:
    """Runs the steps that are not done, in their order, within `seconds`. on_step: called after each, one at a time."""
    ends = time.monotonic() + seconds
    for beside, group in groupby(steps, key=lambda step: step.beside):
        with ThreadPoolExecutor(TOGETHER if beside else 1) as pool:
            for ended in as_completed([pool.submit(_run, visit, part, step, ends) for step in group]):
                ended.result()
                on_step(visit)


def _run(visit: Visit, part: int, step: Step, ends: float) -> None:
    """One step, unless it is done."""
    if (part, step.name) in visit.done:
        return
    where = {"part": part, "step": step.name}
    left = ends - time.monotonic()
    if left < min(step.limit, LEAST_SECONDS):
        visit.add("steps.jsonl", {**where, "left": True, "error": f"{left:.0f} s of the part were left"})
        print(f"part {part}: {step.name}: left for another visit", flush=True)
        return
    notes: deque[str] = deque(maxlen=LAST_NOTES)
    errors: list[str] = []

    def add(row: Row) -> None:
        if "note" in row:
            notes.append(row["note"])
            return
        if "error" in row:
            errors.append(str(row["error"]))
        visit.add("rows.jsonl", {**where, **row})

    ended = run_rows(step.command, min(step.limit, left), add)
    error = ended.error or (f"{len(errors)} rows tell of errors; the first: {errors[0]}" if errors else None)
    found = {**where, "seconds": round(ended.seconds, 1), "error": error, "command": " ".join(step.command)}
    visit.done[part, step.name] = found
    visit.add("steps.jsonl", found)
    if error:
        visit.log(f"part {part}: {step.name}: {error}", notes)
    print(f"part {part}: {step.name}: {ended.seconds:.0f} s{': FAILED: ' + error[:300] if error else ''}", flush=True)


def _read(path: Path) -> list[Row]:
    """Rows of a file; a line that was cut off is left out."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found
