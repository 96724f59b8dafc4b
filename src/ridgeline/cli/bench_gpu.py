"""`ridgeline bench gpu`: performance of a GPU with this engine: kernels, steps and serving beside ceilings and targets.

Owns the flags and the report's tables: steps, kernels, the cost of the batch-invariant mode, targets, failures.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.output import print_notes, print_table
from ridgeline.errors import ConfigError
from ridgeline.models.table import MEASURED

if TYPE_CHECKING:
    from ridgeline.bench.gpu import Job, Report
    from ridgeline.bench.gpu_targets import TargetResult

ONLY_HELP = "Parts, with commas: ceilings, decode, prefill, serving, ttft, transformers, invariant, kernels; if named: host, soak."


def gpu(
    only: Annotated[str | None, typer.Option(help=ONLY_HELP)] = None,
    dtype: Annotated[str, typer.Option(help="Types of weights and KV cache, with commas: bf16, fp8.")] = "bf16,fp8",
    model: Annotated[str, typer.Option(help="A known model's name, or a config.json; its weights are random.")] = MEASURED,
    minutes: Annotated[float, typer.Option(help="Minutes of the soak.")] = 8.0,
    as_json: Annotated[Path | None, typer.Option("--json", help="A file for the one report of all parts; - is stdout.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the parts and their time budgets; measure nothing.")] = False,
) -> None:
    """Measure the GPU: decode, prefill, serving, time to first token, transformers, the batch-invariant mode, kernels. All of it takes
    less than ten minutes."""
    from ridgeline.bench.gpu import check_gpu, format_row, run_jobs

    jobs = prepare_gpu(locals())
    if dry_run:
        print_budgets(jobs)
        return
    check_gpu(jobs)
    began = time.monotonic()

    def print_row(job: "Job", row: Mapping[str, Any]) -> None:
        target = format_target(job, row) if model == MEASURED else ""
        suffix = f"  (target {target})" if target else ""
        print(f"{time.monotonic() - began:4.0f} s  {job.name}: {format_row(row)}{suffix}", file=sys.stderr, flush=True)

    def save_report(report: "Report") -> None:
        last = report.results[-1]
        status = "done" if last.error is None else f"FAILED: {last.error}"
        print(f"{time.monotonic() - began:4.0f} s  {last.job.name}: {status}", file=sys.stderr, flush=True)
        if as_json is not None and str(as_json) != "-":
            as_json.expanduser().write_text(json.dumps(report.as_dict(), ensure_ascii=False) + "\n", encoding="utf-8")

    report = run_jobs(model, jobs, print_row, save_report)
    if str(as_json) == "-":
        print(json.dumps(report.as_dict(), ensure_ascii=False))
    else:
        print_report(report)
    if report.failures:
        raise typer.Exit(1)


def prepare_gpu(given: Mapping[str, Any]) -> "list[Job]":
    """The parts to run, of the flags of `bench gpu`, by parameter. Raises what is wrong with one of them."""
    from ridgeline.bench.gpu import make_jobs
    from ridgeline.cli.output import check_json
    from ridgeline.facts.headers.read import find_config

    check_json(given["as_json"])
    only, dtypes = _parse_list("--only", given["only"]), _parse_list("--dtype", given["dtype"])
    return make_jobs(only, dtypes, find_config(given["model"]), given["minutes"])


def _parse_list(flag: str, text: str | None) -> list[str]:
    items = [item.strip() for item in (text or "").split(",") if item.strip()]
    if text is not None and not items:
        raise ConfigError(f"{flag} is {text!r:.40}, which is empty", fix={flag: None})
    return items


Row = Mapping[str, Any]


def print_budgets(jobs: "Sequence[Job]") -> None:
    """Prints the parts that would run and their time budgets."""
    from ridgeline.bench.gpu import MAX_TOTAL_SECONDS

    rows = [[job.name, f"{job.budget_seconds:.0f}"] for job in jobs]
    total = sum(job.budget_seconds for job in jobs)
    print_table("Parts and their time budgets", ["part", "seconds"], [*rows, ["all", f"{total:.0f}"]])
    if total <= MAX_TOTAL_SECONDS:
        most = f"{MAX_TOTAL_SECONDS:.0f} s at most for all"
        print_notes(f"each is killed when its seconds, and those that earlier parts left, are over: {most}")


def print_report(report: "Report") -> None:
    """Prints all measurements, then failures."""
    from ridgeline.bench.gpu import format_row
    from ridgeline.bench.gpu_targets import batch_invariant_costs

    steps, kernels, others = [], [], []
    for result in report.results:
        for row in result.rows:
            if "error" in row:
                continue
            if "op" in row:
                kernels.append(_kernel_row(row))
            elif "tokens_per_second" in row:
                steps.append(_step_row(result.job, row, format_target(result.job, row) if report.model == MEASURED else ""))
            elif result.job.part in ("ttft", "host", "soak") and "about" not in row:
                others.append((result.job, row))
    if steps:
        heads = ["part", "size", "tok/s", "ms", "device ms", "idle ms", "idle p99", "host ms", "host p99", "target"]
        print_table(f"Steps of {report.model}, random weights", heads, steps, optional=("host p99", "idle p99", "host ms", "idle ms"))
    for job, row in others:
        print_notes(f"{job.name}: {format_row(row)}")
    if kernels:
        print_table("Kernels beside the GPU's ceilings", ["op", "shape", "µs", "GB/s", "TFLOP/s", "of ceiling", "bottleneck"], kernels)
    for cost in batch_invariant_costs(report.rows):
        lost = f"{cost['share_lost']:.1%} of tokens per second"
        print_notes(f"batch-invariant mode, {cost['dtype']}, batch {cost['batch']}: {cost['tokens_per_second']:,.0f} tok/s, costs {lost}")
    _print_targets(report.target_results)
    for failure in report.failures:
        print(f"FAILED  {failure}")


def format_target(job: "Job", row: Row) -> str:
    """The target of a row's main value as text; empty without one."""
    from ridgeline.bench.gpu_targets import headline_target

    target = headline_target(job.part, job.dtype, row)
    return "" if target is None else _format_value(target.unit, target.target)


def _format_value(key: str, value: float | None) -> str:
    if value is None:
        return ""
    if key == "share_of_bound":
        return f"{value:.0%}"
    if key.endswith("seconds"):
        return f"{value * 1e3:,.3g} ms"
    if key.endswith("bytes"):
        return f"{value / (1 << 20):,.1f} MiB"
    return f"{value:.2f} ×" if key == "ratio" else f"{value:,.0f}"


def _target_row(result: "TargetResult") -> list[str]:
    figures = [_format_value(result.unit, value) for value in (result.measured, result.target, result.stretch)]
    return [result.what, _format_value(result.key, result.value), *figures, result.result]


def _print_targets(compare_with_targets: "Sequence[TargetResult]") -> None:
    """Prints measurements against their targets, then the commands that measure the rest."""
    measured = [each for each in compare_with_targets if each.measured is not None]
    if measured:
        title = "Targets; speeds as shares of what the ceilings of the same run allow"
        print_table(title, ["metric", "value", "measured", "target", "stretch", "met"], [_target_row(each) for each in measured])
    for command, count in Counter(each.command for each in compare_with_targets if each.measured is None).items():
        print(f"not measured: {count} {'target' if count == 1 else 'targets'}, by {command}")


def _step_row(job: "Job", row: Row, target: str) -> list[str]:
    size = next(f"{name} {row[name]}" for name in ("batch", "tokens", "rows") if name in row)
    seconds = row.get("step_seconds", row.get("seconds", 0.0))
    names = ("device_seconds", "idle_seconds", "idle_p99_seconds", "host_seconds", "host_p99_seconds")
    times = ["" if row.get(name) is None else f"{row[name] * 1e3:.3f}" for name in names]
    how = "" if row.get("graphs", True) else ", no graphs"
    how += f", top-p {row['top_p']}" if "top_p" in row else ""
    return [job.name + how, size, f"{row['tokens_per_second']:,.0f}", f"{seconds * 1e3:.2f}", *times, target]


def _kernel_row(row: Row) -> list[str]:
    return [
        row["op"], row["shape"], f"{row['seconds'] * 1e6:,.1f}", f"{row['bytes_per_second'] / 1e9:,.0f}",
        f"{row['flops_per_second'] / 1e12:,.1f}", f"{row['share_of_ceiling']:.0%}", row["bottleneck"],
    ]  # fmt: skip
