"""`ridgeline bench gpu`: parts, each in a process of its own with a time limit, and one report.

Owns the parts with their settings and time budgets, the processes, and the report. A part that fails or hangs is reported with its error
and the rows before it; the others continue. Needs neither arrays nor the packages of a server.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ridgeline import __version__
from ridgeline.bench.gpu_targets import TargetResult, batch_invariant_costs, compare_with_targets
from ridgeline.bench.row_process import Row, run_rows
from ridgeline.errors import ConfigError
from ridgeline.facts.hardware.gpu import Gpu, gpu_missing, read_gpus
from ridgeline.facts.headers.checkpoint import read_config_facts
from ridgeline.facts.headers.read import find_config
from ridgeline.models.table import MEASURED, SPARSE

DTYPES: Final[Mapping[str, str]] = {"bf16": "bf16", "fp8": "fp8"}
"""Type of weights → type of the KV cache."""

DTYPE_FREE: Final = ("ceilings", "kernels")
"""Parts that cover both types in one run."""

FIRST_DTYPE_ONLY: Final = ("ttft", "invariant", "adapters", "experts", "host", "soak")
"""Parts that run for the first type alone."""

REFERENCE_DTYPE: Final = "bf16"
"""Type that transformers computes with, and of the Ridgeline runs it is compared with."""

ON_REQUEST: Final = ("adapters", "experts", "host", "soak")
"""Parts that run only where --only names them: ten minutes have no room for adapters and a second model, `decode` and `serving` report the
host's time beside a device, and a soak takes longer than all others together."""

BOUNDED: Final = ("decode", "prefill", "serving", "ttft")
"""Parts whose targets are shares of what the ceilings allow, which are measured before them."""

WITHOUT_GPU: Final = ("host",)
"""Parts that need no GPU."""

MAX_TOTAL_SECONDS: Final = 590.0
"""Time limit of all parts together, without those of `ON_REQUEST`."""

CONTEXT: Final = 1024
SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "ceilings": {"budget_seconds": 20.0},
    "decode": {"budget_seconds": 50.0, "batches": [1, 32, 64, 128, 256], "context": CONTEXT, "steps": 128},
    "prefill": {"budget_seconds": 30.0, "prompts": [512, 1024, 2048, 4096, 8192], "repeats": 7},
    "serving": {
        "budget_seconds": 80.0, "prompt_tokens": 1000, "output_tokens": 1000, "phases": [[32, 4.0], [256, 30.0]], "budget": 2048,
        "memory_bytes": None,
    },
    "ttft": {"budget_seconds": 35.0, "prompt_tokens": 2048, "repeats": 12},
    "transformers": {"budget_seconds": 85.0, "batches": [1, 32], "context": CONTEXT, "steps": 64, "modes": ["reduce-overhead"]},
    "invariant": {"budget_seconds": 30.0, "batches": [1, 32, 256], "context": CONTEXT, "steps": 48},
    "adapters": {"budget_seconds": 30.0, "batches": [1, 32], "context": CONTEXT, "steps": 48, "adapters": 8, "rank": 16},
    "experts": {"budget_seconds": 20.0, "batches": [1, 32, 256], "context": CONTEXT, "steps": 64},
    "kernels": {
        "budget_seconds": 60.0, "tokens": [1, 32, 256, 2048], "contexts": [[1, 1024], [32, 1024], [128, 1024], [256, 1024], [1, 8192]],
        "prompts": [2048, 8192],
    },
    "host": {"budget_seconds": 60.0, "batches": [1, 32, 256], "context": CONTEXT, "steps": 200},
    "soak": {
        "budget_seconds": 120.0, "prompt_tokens": 1500, "output_tokens": 512, "rows": 256, "budget": 2048, "memory_bytes": 24 << 30,
        "every_seconds": 2.0, "swing_seconds": 30.0,
    },
}  # fmt: skip
"""Settings of each part; `budget_seconds` includes start and compilation; a soak's minutes are added."""

PARTS: Final = tuple(SETTINGS)
"""Parts in the order in which they run: behind the ceilings most important first, should time run out."""

COLD_START_SECONDS: Final = 40.0
"""Extra budget of the first part: libraries are read from disk, and most kernels are compiled."""

ALL_MODES: Final = ("reduce-overhead", "max-autotune")
"""Modes of torch.compile where transformers is measured alone: tuning takes minutes."""

SOAK_MINUTES: Final = 8.0
MAX_MINUTES: Final = 24 * 60.0


@dataclass(frozen=True, slots=True)
class Job:
    """One part for one type of weights. settings: of its process; budget_seconds: reserved time."""

    part: str
    dtype: str
    budget_seconds: float
    settings: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Name in reports."""
        return self.part if self.part in DTYPE_FREE else f"{self.part} {self.dtype}"


def make_jobs(only: Sequence[str], dtypes: Sequence[str], config: Path, minutes: float = SOAK_MINUTES) -> list[Job]:
    """Jobs to run; without `only` all but the parts of `ON_REQUEST`. With transformers, Ridgeline's decode runs too, for the ratio, and the
    ceilings with the parts that are `BOUNDED`.

    minutes  of a soak. Raises ConfigError for unknown names.
    """
    for flag, stderr, known in (("--only", only, PARTS), ("--dtype", dtypes, tuple(DTYPES))):
        wrong = next((word for word in stderr if word not in known), None)
        if wrong is not None:
            raise ConfigError(f"{flag} has {wrong!r:.40}; {', '.join(known)} are possible", fix={flag: known[0]})
    if not 0 < minutes <= MAX_MINUTES:
        raise ConfigError(f"--minutes is {minutes:g}; more than 0 and at most {MAX_MINUTES:g} are possible", fix={"--minutes": None})
    bounded = any(part in BOUNDED for part in only)
    selected = [part for part in PARTS if (part in only or (part == "ceilings" and bounded) if only else part not in ON_REQUEST)]
    found = [_job(part, dtype, config, minutes, bool(only)) for part in PARTS for dtype in _part_dtypes(part, selected, dtypes)]
    return [replace(job, budget_seconds=job.budget_seconds + COLD_START_SECONDS) for job in found[:1]] + found[1:]


def _part_dtypes(part: str, selected: Sequence[str], dtypes: Sequence[str]) -> Sequence[str]:
    """The weight types that a part runs for."""
    if part == "transformers":
        return [REFERENCE_DTYPE] if part in selected else []
    types = [] if part not in selected else dtypes[:1] if part in (*DTYPE_FREE, *FIRST_DTYPE_ONLY) else list(dtypes)
    needs_reference = part == "decode" and "transformers" in selected and REFERENCE_DTYPE not in types
    return [REFERENCE_DTYPE, *types] if needs_reference else types


def _job(part: str, dtype: str, config: Path, minutes: float, is_alone: bool) -> Job:
    own = {key: value for key, value in SETTINGS[part].items() if key != "budget_seconds"}
    budget_seconds = SETTINGS[part]["budget_seconds"]
    if part == "soak":
        own["seconds"] = 60 * minutes
        budget_seconds += 60 * minutes
    if part == "transformers" and is_alone:
        own["modes"] = list(ALL_MODES)
    model = find_config(SPARSE) if part == "experts" else config
    common = {"part": part, "model": str(model), "dtype": dtype, "kv_dtype": DTYPES[dtype]}
    common["device"] = "cpu" if part in WITHOUT_GPU else "cuda"
    return Job(part, dtype, budget_seconds, {**common, "invariant": part == "invariant", **own})


MAX_BUDGETS: Final = 3.0
"""A part may take so many times its budget where time is left: a part that hangs is killed soon."""


@dataclass(slots=True)
class JobResult:
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
    """Results of all jobs so far, and the GPUs as the driver described them before the first."""

    model: str
    begun: str
    gpus: Sequence[Gpu]
    results: list[JobResult] = field(default_factory=list)

    @property
    def failures(self) -> list[str]:
        """One line per failed job and per failed case."""
        failed_jobs = [f"{each.job.name}: {each.error}" for each in self.results if each.error is not None]
        cases = [f"{each.job.name}: {format_row(row)}" for each in self.results for row in each.rows if "error" in row]
        return failed_jobs + cases

    @property
    def rows(self) -> dict[tuple[str, str], list[Row]]:
        """Rows by part and type of weights."""
        return {(each.job.part, each.job.dtype): each.rows for each in self.results}

    @property
    def target_results(self) -> list[TargetResult]:
        """Every target with its measurement; none for models without targets."""
        return compare_with_targets(self.rows, read_config_facts(find_config(MEASURED))) if self.model == MEASURED else []

    def as_dict(self) -> Row:
        """A dict for JSON."""
        gpus = [gpu.as_dict() for gpu in self.gpus]
        parts = [each.as_dict() for each in self.results]
        return {
            "version": __version__, "model": self.model, "begun": self.begun, "gpus": gpus, "parts": parts, "failures": self.failures,
            "invariant_costs": list(batch_invariant_costs(self.rows)), "summary": [verdict.as_dict() for verdict in self.target_results],
        }  # fmt: skip


def check_gpu(jobs: Sequence[Job]) -> None:
    """Raises ConfigError where a job needs a GPU and none can be used."""
    missing = gpu_missing() if any(job.part not in WITHOUT_GPU for job in jobs) else None
    if missing is not None:
        raise ConfigError(f"bench gpu measures an NVIDIA GPU, and none can be used: {missing}. `ridgeline doctor` says more")


def run_jobs(
    model: str,
    jobs: Sequence[Job],
    on_row: Callable[[Job, Row], None],
    on_done: Callable[[Report], None],
    max_seconds: float = MAX_TOTAL_SECONDS,
) -> Report:
    """Runs jobs in turn within `max_seconds`, or the sum of their budgets where that is more. Each job may use the time that is not
    reserved for later ones. on_row: called with each row; on_done: with the report after each job."""
    began = time.monotonic()
    report = Report(model, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), read_gpus())
    reserved = sum(job.budget_seconds for job in jobs)
    max_seconds = max(max_seconds, reserved)
    for job in jobs:
        reserved -= job.budget_seconds
        left = max_seconds - reserved - (time.monotonic() - began)
        result = JobResult(job)
        report.results.append(result)
        try:
            _run(result, min(MAX_BUDGETS * job.budget_seconds, left), on_row)
        except KeyboardInterrupt:
            result.error = "interrupted"
            on_done(report)
            raise
        on_done(report)
    return report


def command(settings: Mapping[str, Any]) -> list[str]:
    """The command that runs one part."""
    # -P: do not import from the working directory
    return [sys.executable, "-P", "-m", "ridgeline.bench.gpu_part", json.dumps(settings)]


def _run(result: JobResult, limit: float, on_row: Callable[[Job, Row], None]) -> None:
    """Runs one job. A last row with only an error is the job's error."""

    def add(row: Row) -> None:
        result.rows.append(row)
        on_row(result.job, row)

    result.seconds, result.error = run_rows(command(result.job.settings), limit, add)
    if result.error is None and result.rows and set(result.rows[-1]) == {"error"}:
        result.error = str(result.rows.pop()["error"])


def format_row(row: Mapping[str, Any]) -> str:
    """A row in one line: seconds in milliseconds, large rates in 10⁹."""
    return ", ".join(f"{name} {_format_value(name, value)}" for name, value in row.items() if not isinstance(value, list))


def _format_value(name: str, value: Any) -> str:
    if isinstance(value, dict):
        return f"({format_row(value)})"
    if not isinstance(value, float):
        return str(value)
    if name.endswith("seconds"):
        return f"{value * 1e3:.3f} ms"
    if name.startswith("share_"):
        return f"{value:.0%}"
    if value < 100:
        return f"{value:.3g}"
    return f"{value:,.0f}" if value < 1e9 else f"{value / 1e9:,.0f}·10⁹"
