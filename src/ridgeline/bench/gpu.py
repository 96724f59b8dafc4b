"""`ridgeline bench gpu`: which parts there are, each in a process of its own under a time limit, and the one report of all.

Owns parts, limits and targets. A part that fails, hangs or takes the device down is told with its error, beside what it had measured; the
others run on. Needs neither arrays nor the packages of a server.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from threading import Timer
from typing import Any, Final

from ridgeline import __version__
from ridgeline.bench.guard import Guard
from ridgeline.errors import ConfigError, ModelNotFoundError
from ridgeline.facts.describe import KNOWN, known_names
from ridgeline.facts.gpu import Gpu, gpu_missing, read_gpus

PARTS: Final = ("ceilings", "decode", "prefill", "serving", "invariant", "kernels")
"""In the order in which they run: what matters most comes first, should time run out."""

DTYPES: Final[Mapping[str, str]] = {"bf16": "bf16", "fp8": "fp8"}
"""Of weights → of the KV cache."""

WITHOUT_DTYPE: Final = ("ceilings", "kernels")
"""Parts that cover both types in one run."""

MOST_SECONDS: Final = 590.0
"""Of all parts together."""

ERROR_CHARACTERS: Final = 4000
"""Of a process' last words that are kept."""

CONTEXT: Final = 1024
SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "ceilings": {"limit": 60.0},
    "decode": {"limit": 120.0, "batches": [1, 32, 64, 128, 256], "context": CONTEXT, "steps": 64},
    "prefill": {"limit": 90.0, "prompts": [512, 1024, 2048, 4096, 8192], "repeats": 7},
    "serving": {
        "limit": 200.0, "requests": 512, "prompt_tokens": 1000, "output_tokens": 1000, "rows": 256, "budget": 2048, "seconds": 75.0,
        "memory_bytes": None,
    },
    "invariant": {"limit": 90.0, "batches": [1, 32, 256], "context": CONTEXT, "steps": 32},
    "kernels": {
        "limit": 150.0, "tokens": [1, 32, 256, 2048], "contexts": [[1, 1024], [32, 1024], [128, 1024], [256, 1024], [1, 8192]],
        "prompts": [2048, 8192],
    },
}  # fmt: skip
"""Of each part; `limit` is its seconds, a start with compilation included."""

TARGETS: Final[Mapping[str, Mapping[str, Mapping[int, float]]]] = {
    "decode": {
        "bf16": {1: 225, 32: 5_300, 64: 8_700, 128: 12_800, 256: 14_000},
        "fp8": {1: 400, 32: 9_400, 64: 15_500, 128: 22_500, 256: 25_000},
    },
    "prefill": {"bf16": {2048: 0.052}, "fp8": {2048: 0.034}},
    "serving": {"bf16": {256: 8_000}, "fp8": {256: 11_000}},
}
"""What one H200 is to reach with the default model: tokens a second by batch, seconds by tokens of a prompt, output tokens a second."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Job:
    """One part for one type of weights. `settings` are those of its process; `limit` its seconds."""

    part: str
    dtype: str
    limit: float
    settings: Mapping[str, Any]

    @property
    def name(self) -> str:
        """For people."""
        return self.part if self.part in WITHOUT_DTYPE else f"{self.part} {self.dtype}"


@dataclass(slots=True)
class Done:
    """What a job brought: its rows, its seconds, and why it ended early if it did."""

    job: Job
    rows: list[Row] = field(default_factory=list)
    seconds: float = 0.0
    error: str | None = None

    def as_dict(self) -> Row:
        """For JSON: numbers are seconds, bytes, tokens and operations."""
        found = {"part": self.job.part, "dtype": self.job.dtype, "settings": dict(self.job.settings), "seconds": self.seconds}
        return {**found, "error": self.error, "rows": self.rows}


@dataclass(slots=True)
class Report:
    """All jobs so far, and the GPUs as the driver describes them before the first."""

    model: str
    begun: str
    gpus: Sequence[Gpu]
    done: list[Done] = field(default_factory=list)

    @property
    def failures(self) -> list[str]:
        """One line for each job, and each case, that went wrong."""
        jobs = [f"{each.job.name}: {each.error}" for each in self.done if each.error is not None]
        cases = [f"{each.job.name}: {row_words(row)}" for each in self.done for row in each.rows if "error" in row]
        return jobs + cases

    def as_dict(self) -> Row:
        """For JSON."""
        gpus = [gpu.as_dict() for gpu in self.gpus]
        parts = [each.as_dict() for each in self.done]
        return {"version": __version__, "model": self.model, "begun": self.begun, "gpus": gpus, "parts": parts, "failures": self.failures}


def jobs(only: Sequence[str], dtypes: Sequence[str], config: Path) -> list[Job]:
    """What is to be run; no `only`: everything. Raises ConfigError for words that name nothing."""
    for flag, words, known in (("--only", only, PARTS), ("--dtype", dtypes, tuple(DTYPES))):
        wrong = next((word for word in words if word not in known), None)
        if wrong is not None:
            raise ConfigError(f"{flag} has {wrong!r:.40}; {', '.join(known)} are possible", fix={flag: known[0]})
    found = []
    for part in PARTS:
        if only and part not in only:
            continue
        for dtype in dtypes[:1] if part in (*WITHOUT_DTYPE, "invariant") else dtypes:
            own = {key: value for key, value in SETTINGS[part].items() if key != "limit"}
            common = {"part": part, "model": str(config), "device": "cuda", "dtype": dtype, "kv_dtype": DTYPES[dtype]}
            found.append(Job(part, dtype, SETTINGS[part]["limit"], {**common, "invariant": part == "invariant", **own}))
    return found


def config_of(model: str) -> Path:
    """The config.json of a model whose weights will be random. Raises ModelNotFoundError."""
    if model.lower() in known_names():
        return KNOWN / f"{model.lower()}.json"
    path = Path(model).expanduser()
    path = path / "config.json" if path.is_dir() else path
    if path.suffix != ".json" or not path.is_file():
        raise ModelNotFoundError(f"--model {model!r:.200} is no config.json; give the path of one, or one of: {', '.join(known_names())}")
    return path.resolve()


def check_gpu() -> None:
    """Raises ConfigError where nothing can be measured."""
    missing = gpu_missing()
    if missing is not None:
        raise ConfigError(f"bench gpu measures an NVIDIA GPU, and none can be used: {missing}. `ridgeline doctor` says more")


def measure(
    model: str, asked: Sequence[Job], on_row: Callable[[Job, Row], None], on_done: Callable[[Report], None], most: float = MOST_SECONDS
) -> Report:
    """Runs jobs in turn, `most` seconds altogether. `on_row` sees each row as it comes, `on_done` the report behind each job."""
    began = time.monotonic()
    report = Report(model, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), read_gpus())
    for job in asked:
        left = most - (time.monotonic() - began)
        done = Done(job)
        report.done.append(done)
        if left < 1:
            done.error = f"not begun: the {most:.0f} s of all parts are over; run it alone with --only {job.part}"
        else:
            try:
                _run(done, min(job.limit, left), on_row)
            except KeyboardInterrupt:
                done.error = "interrupted"
                on_done(report)
                raise
        on_done(report)
    return report


def command(settings: Mapping[str, Any]) -> list[str]:
    """What runs one part."""
    # -P: the working directory is no place to import from.
    return [sys.executable, "-P", "-m", "ridgeline.bench.gpu_part", json.dumps(settings)]


def _run(done: Done, limit: float, on_row: Callable[[Job, Row], None]) -> None:
    """One job in a process that is ended at its limit, and with this one. A last row that is an error alone is why it ended."""
    began = time.monotonic()
    late: list[bool] = []
    with TemporaryFile() as words:
        process = subprocess.Popen(
            command(done.job.settings), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=words, start_new_session=True
        )
        guard = Guard(process.pid)

        def end() -> None:
            late.append(True)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

        timer = Timer(limit, end)
        timer.start()
        assert process.stdout is not None
        try:
            for row in _rows(process.stdout):
                done.rows.append(row)
                on_row(done.job, row)
            status = process.wait()
        finally:
            timer.cancel()
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            process.stdout.close()
            guard.release()
        done.seconds = time.monotonic() - began
        told = done.rows[-1] if done.rows else {}
        if late:
            done.error = f"ended at its limit of {limit:.0f} s; what it had measured is kept"
        elif set(told) == {"error"}:
            done.error = str(done.rows.pop()["error"])
        elif status:
            last = _tail(words).strip() or "none"
            done.error = f"its process ended with status {status} after {done.seconds:.0f} s; its last words: {last}"


def _rows(stream: Any) -> Iterator[Row]:
    """Each line as a row; what is none, a library's message, is kept as a note."""
    for line in stream:
        text = line.decode("utf-8", "replace").strip()
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if text:
            yield found if isinstance(found, dict) else {"note": text[:ERROR_CHARACTERS]}


def _tail(words: Any) -> str:
    end = words.seek(0, 2)
    words.seek(max(0, end - ERROR_CHARACTERS))
    return str(words.read().decode("utf-8", "replace"))


def target(job: Job, row: Mapping[str, Any]) -> float | None:
    """What the row is to reach; None where nothing was said of it, and for steps that are not yet graphs."""
    if row.get("graphs") is False:
        return None
    by_size = TARGETS.get(job.part, {}).get(job.dtype, {})
    size = row.get("batch", row.get("tokens", row.get("rows_at_most")))
    return by_size.get(size) if isinstance(size, int) else None


def row_words(row: Mapping[str, Any]) -> str:
    """A row in one line: sizes as they are, seconds in milliseconds, rates in units that a person reads."""
    return ", ".join(f"{name} {_word(name, value)}" for name, value in row.items() if not isinstance(value, list))


def _word(name: str, value: Any) -> str:
    if isinstance(value, dict):
        return f"({row_words(value)})"
    if not isinstance(value, float):
        return str(value)
    if name.endswith("seconds"):
        return f"{value * 1e3:.3f} ms"
    if name == "share_of_ceiling":
        return f"{value:.0%}"
    return f"{value:,.0f}" if value < 1e9 else f"{value / 1e9:,.0f}·10⁹"
