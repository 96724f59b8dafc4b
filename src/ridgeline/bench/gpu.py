"""`ridgeline bench gpu`: its parts, each in a process of its own under a time limit, and the one report of all.

Owns which parts there are, what each is asked to measure, its share of the ten minutes, the processes, and the report. A part that fails,
hangs or takes the device down is told with its error, beside what it had measured; the others run on. Needs neither arrays nor the packages
of a server.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryFile
from threading import Timer
from typing import Any, Final

from ridgeline import __version__
from ridgeline.bench.gpu_targets import Verdict, costs, verdicts
from ridgeline.bench.processes import Guard
from ridgeline.errors import ConfigError
from ridgeline.facts.hardware.gpu import Gpu, gpu_missing, read_gpus
from ridgeline.models.table import MEASURED

DTYPES: Final[Mapping[str, str]] = {"bf16": "bf16", "fp8": "fp8"}
"""Of weights → of the KV cache."""

WITHOUT_DTYPE: Final = ("ceilings", "kernels")
"""Parts that cover both types in one run."""

FIRST_DTYPE: Final = ("ttft", "invariant", "host", "soak")
"""Parts that run for the first type alone."""

PLAIN: Final = "bf16"
"""What transformers computes with, and what of ours stands beside it."""

ASKED: Final = ("ceilings", "host", "soak")
"""Parts that run only where --only names them: `kernels` begins with the ceilings, `decode` and `serving` tell the host's time beside a
device, and a soak takes longer than all others together."""

WITHOUT_GPU: Final = ("host",)
"""Parts that need no GPU."""

MOST_SECONDS: Final = 590.0
"""Of all parts together, but for those of `ASKED`."""

CONTEXT: Final = 1024
SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "decode": {"share": 50.0, "batches": [1, 32, 64, 128, 256], "context": CONTEXT, "steps": 128},
    "prefill": {"share": 30.0, "prompts": [512, 1024, 2048, 4096, 8192], "repeats": 7},
    "serving": {
        "share": 80.0, "prompt_tokens": 1000, "output_tokens": 1000, "phases": [[32, 4.0], [256, 30.0]], "budget": 2048,
        "memory_bytes": None,
    },
    "ttft": {"share": 40.0, "prompt_tokens": 2048, "repeats": 12},
    "transformers": {"share": 95.0, "batches": [1, 32], "context": CONTEXT, "steps": 64, "modes": ["reduce-overhead"]},
    "invariant": {"share": 35.0, "batches": [1, 32, 256], "context": CONTEXT, "steps": 48},
    "kernels": {
        "share": 60.0, "tokens": [1, 32, 256, 2048], "contexts": [[1, 1024], [32, 1024], [128, 1024], [256, 1024], [1, 8192]],
        "prompts": [2048, 8192],
    },
    "ceilings": {"share": 20.0},
    "host": {"share": 60.0, "batches": [1, 32, 256], "context": CONTEXT, "steps": 200},
    "soak": {
        "share": 120.0, "prompt_tokens": 1500, "output_tokens": 512, "rows": 256, "budget": 2048, "memory_bytes": 24 << 30,
        "every_seconds": 2.0, "swing_seconds": 30.0,
    },
}  # fmt: skip
"""Of each part; `share` is its seconds, a start with compilation included, to which a soak's own minutes come."""

PARTS: Final = tuple(SETTINGS)
"""In the order in which they run: what matters most comes first, should time run out."""

COLD_SECONDS: Final = 40.0
"""That the first part has beside its share: libraries come from the disk, and most kernels are compiled in it."""

ALL_MODES: Final = ("reduce-overhead", "max-autotune")
"""Of torch.compile, where transformers is measured by itself: tuning takes minutes."""

SOAK_MINUTES: Final = 8.0
MOST_MINUTES: Final = 24 * 60.0


@dataclass(frozen=True, slots=True)
class Job:
    """One part for one type of weights. `settings` are those of its process; `share` the seconds that are kept for it."""

    part: str
    dtype: str
    share: float
    settings: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name for people."""
        return self.part if self.part in WITHOUT_DTYPE else f"{self.part} {self.dtype}"


def jobs(only: Sequence[str], dtypes: Sequence[str], config: Path, minutes: float = SOAK_MINUTES) -> list[Job]:
    """Jobs to run; no `only`: everything but the parts of `ASKED`. Beside transformers our own decoding runs too, for the ratio.

    minutes  of a soak. Raises ConfigError for words that name nothing.
    """
    for flag, words, known in (("--only", only, PARTS), ("--dtype", dtypes, tuple(DTYPES))):
        wrong = next((word for word in words if word not in known), None)
        if wrong is not None:
            raise ConfigError(f"{flag} has {wrong!r:.40}; {', '.join(known)} are possible", fix={flag: known[0]})
    if not 0 < minutes <= MOST_MINUTES:
        raise ConfigError(f"--minutes is {minutes:g}; more than 0 and at most {MOST_MINUTES:g} are possible", fix={"--minutes": None})
    wanted = [part for part in PARTS if (part in only if only else part not in ASKED)]
    found = [_job(part, dtype, config, minutes, bool(only)) for part in PARTS for dtype in _types(part, wanted, dtypes)]
    return [replace(job, share=job.share + COLD_SECONDS) for job in found[:1]] + found[1:]


def _types(part: str, wanted: Sequence[str], dtypes: Sequence[str]) -> Sequence[str]:
    """The types that a part runs for."""
    if part == "transformers":
        return [PLAIN] if part in wanted else []
    types = [] if part not in wanted else dtypes[:1] if part in (*WITHOUT_DTYPE, *FIRST_DTYPE) else list(dtypes)
    beside = part == "decode" and "transformers" in wanted and PLAIN not in types
    return [PLAIN, *types] if beside else types


def _job(part: str, dtype: str, config: Path, minutes: float, alone: bool) -> Job:
    own = {key: value for key, value in SETTINGS[part].items() if key != "share"}
    share = SETTINGS[part]["share"]
    if part == "soak":
        own["seconds"] = 60 * minutes
        share += 60 * minutes
    if part == "transformers" and alone:
        own["modes"] = list(ALL_MODES)
    common = {"part": part, "model": str(config), "dtype": dtype, "kv_dtype": DTYPES[dtype]}
    common["device"] = "cpu" if part in WITHOUT_GPU else "cuda"
    return Job(part, dtype, share, {**common, "invariant": part == "invariant", **own})


MOST_SHARES: Final = 3.0
"""A part may have so many times its share where nothing behind it needs the time: one that hangs is then ended soon."""

READ_BYTES: Final = 1 << 16
QUIET_SECONDS: Final = 0.5
"""Without a word from a process that has ended."""

ERROR_CHARACTERS: Final = 4000
"""Of a process' last words that are kept."""

Row = dict[str, Any]


@dataclass(slots=True)
class Done:
    """The result of a job: its rows, its seconds, and why it ended early if it did."""

    job: Job
    rows: list[Row] = field(default_factory=list)
    seconds: float = 0.0
    error: str | None = None

    def as_dict(self) -> Row:
        """A dict for JSON: numbers are seconds, bytes, tokens and operations."""
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

    @property
    def rows(self) -> dict[tuple[str, str], list[Row]]:
        """Rows by part and type of weights."""
        return {(each.job.part, each.job.dtype): each.rows for each in self.done}

    @property
    def verdicts(self) -> list[Verdict]:
        """Every target, with what was measured of it; none for a model that they are not about."""
        return verdicts(self.rows) if self.model == MEASURED else []

    def as_dict(self) -> Row:
        """A dict for JSON."""
        gpus = [gpu.as_dict() for gpu in self.gpus]
        parts = [each.as_dict() for each in self.done]
        return {
            "version": __version__, "model": self.model, "begun": self.begun, "gpus": gpus, "parts": parts, "failures": self.failures,
            "invariant_costs": list(costs(self.rows)), "summary": [verdict.as_dict() for verdict in self.verdicts],
        }  # fmt: skip


def check_gpu(asked: Sequence[Job]) -> None:
    """Raises ConfigError where what is asked for cannot be measured."""
    missing = gpu_missing() if any(job.part not in WITHOUT_GPU for job in asked) else None
    if missing is not None:
        raise ConfigError(f"bench gpu measures an NVIDIA GPU, and none can be used: {missing}. `ridgeline doctor` says more")


def measure(
    model: str, asked: Sequence[Job], on_row: Callable[[Job, Row], None], on_done: Callable[[Report], None], most: float = MOST_SECONDS
) -> Report:
    """Runs jobs in turn, `most` seconds altogether, or the sum of their shares where that is more: each job may use what is not kept for
    those behind it. `on_row` sees each row as it comes, `on_done` the report behind each job."""
    began = time.monotonic()
    report = Report(model, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), read_gpus())
    kept = sum(job.share for job in asked)
    most = max(most, kept)
    for job in asked:
        kept -= job.share
        left = most - kept - (time.monotonic() - began)
        done = Done(job)
        report.done.append(done)
        try:
            _run(done, min(MOST_SHARES * job.share, left), on_row)
        except KeyboardInterrupt:
            done.error = "interrupted"
            on_done(report)
            raise
        on_done(report)
    return report


def command(settings: Mapping[str, Any]) -> list[str]:
    """The command that runs one part."""
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
            for row in _rows(_lines(process)):
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


def _lines(process: "subprocess.Popen[bytes]") -> Iterator[bytes]:
    """Lines that a process writes, until it has ended: others that it started may hold its stdout open and say nothing."""
    assert process.stdout is not None
    rest, stdout = b"", process.stdout.fileno()
    while True:
        ended = process.poll() is not None
        if not select.select([stdout], [], [], QUIET_SECONDS)[0]:
            if ended:
                break
            continue
        data = os.read(stdout, READ_BYTES)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        yield from lines
    yield rest


def _rows(lines: Iterable[bytes]) -> Iterator[Row]:
    """Each line as a row; what is none, a library's message, is kept as a note."""
    for line in lines:
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
    if name.startswith("share_"):
        return f"{value:.0%}"
    if value < 100:
        return f"{value:.3g}"
    return f"{value:,.0f}" if value < 1e9 else f"{value / 1e9:,.0f}·10⁹"
