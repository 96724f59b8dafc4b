"""`ridgeline bench gpu`: what a GPU reaches with this engine: kernels, steps and serving beside its ceilings and its targets.

Owns the flags and the report's tables: steps, kernels, the price of the batch-invariant mode, every target, what failed.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.output import show_table
from ridgeline.errors import ConfigError
from ridgeline.models.table import MEASURED

if TYPE_CHECKING:
    from ridgeline.bench.gpu import Job, Report
    from ridgeline.bench.gpu_targets import Verdict

ONLY = "Parts, with commas: decode, prefill, serving, ttft, transformers, invariant, kernels; if named: ceilings, host, soak."


def gpu(
    only: Annotated[str | None, typer.Option(help=ONLY)] = None,
    dtype: Annotated[str, typer.Option(help="Of weights, with commas; the KV cache has the same: bf16, fp8.")] = "bf16,fp8",
    model: Annotated[str, typer.Option(help="A known model's name, or a config.json; its weights are random.")] = MEASURED,
    minutes: Annotated[float, typer.Option(help="Of the soak.")] = 8.0,
    as_json: Annotated[Path | None, typer.Option("--json", help="A file for the one report of all parts; - is stdout.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the parts and their shares of the time; measure nothing.")] = False,
) -> None:
    """Measure the GPU: decoding, prompts, serving, time to first token, transformers, the batch-invariant mode, kernels. All of it takes
    less than ten minutes."""
    from ridgeline.bench.gpu import check_gpu, jobs, measure, row_words
    from ridgeline.cli.output import check_page
    from ridgeline.facts.headers.read import find_config

    asked = jobs(_words("--only", only), _words("--dtype", dtype), find_config(model), minutes)
    if dry_run:
        show_shares(asked)
        return
    check_page(as_json if str(as_json) != "-" else None, "--json")
    check_gpu(asked)
    began = time.monotonic()

    def say(job: "Job", row: Mapping[str, Any]) -> None:
        aim = aim_words(job, row) if model == MEASURED else ""
        wanted = f"  (target {aim})" if aim else ""
        print(f"{time.monotonic() - began:4.0f} s  {job.name}: {row_words(row)}{wanted}", file=sys.stderr, flush=True)

    def keep(report: "Report") -> None:
        last = report.done[-1]
        ended = "done" if last.error is None else f"FAILED: {last.error}"
        print(f"{time.monotonic() - began:4.0f} s  {last.job.name}: {ended}", file=sys.stderr, flush=True)
        if as_json is not None and str(as_json) != "-":
            as_json.expanduser().write_text(json.dumps(report.as_dict(), ensure_ascii=False) + "\n", encoding="utf-8")

    report = measure(model, asked, say, keep)
    if str(as_json) == "-":
        print(json.dumps(report.as_dict(), ensure_ascii=False))
    else:
        show_report(report)
    if report.failures:
        raise typer.Exit(1)


def _words(flag: str, text: str | None) -> list[str]:
    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    if text is not None and not words:
        raise ConfigError(f"{flag} is {text!r:.40}, which names nothing", fix={flag: None})
    return words


Row = Mapping[str, Any]


def show_shares(asked: "Sequence[Job]") -> None:
    """Shows what would run, and the seconds that are kept for each part."""
    from ridgeline.bench.gpu import MOST_SECONDS

    rows = [[job.name, f"{job.share:.0f}"] for job in asked]
    total = sum(job.share for job in asked)
    show_table("parts", ["part", "seconds"], [*rows, ["all", f"{total:.0f}"]])
    if total <= MOST_SECONDS:
        print(f"each is ended when its seconds, and those that parts before it left, are over: {MOST_SECONDS:.0f} s at most for all")


def show_report(report: "Report") -> None:
    """Everything that was measured, then what went wrong."""
    from ridgeline.bench.gpu import row_words
    from ridgeline.bench.gpu_targets import costs

    steps, kernels, others = [], [], []
    for done in report.done:
        for row in done.rows:
            if "error" in row:
                continue
            if "op" in row:
                kernels.append(_kernel(row))
            elif "tokens_per_second" in row:
                steps.append(_step(done.job, row, aim_words(done.job, row) if report.model == MEASURED else ""))
            elif done.job.part in ("ttft", "host", "soak") and "about" not in row:
                others.append((done.job, row))
    if steps:
        heads = ["", "size", "tok/s", "ms", "device ms", "idle ms", "p99", "host ms", "p99", "target"]
        show_table(f"{report.model}, random weights", heads, steps)
    for job, row in others:
        print(f"{job.name}: {row_words(row)}")
    if kernels:
        show_table("kernels", ["op", "shape", "µs", "GB/s", "TFLOP/s", "of ceiling", "which"], kernels)
    for cost in costs(report.rows):
        lost = f"{cost['share_lost']:.1%} of tokens per second"
        print(f"the batch-invariant mode, {cost['dtype']}, batch {cost['batch']}: {cost['tokens_per_second']:,.0f} tok/s, costs {lost}")
    _show_verdicts(report.verdicts)
    for failure in report.failures:
        print(f"FAILED  {failure}")


def aim_words(job: "Job", row: Row) -> str:
    """The target of a row's chief figure; nothing where there is none."""
    from ridgeline.bench.gpu_targets import headline

    aim = headline(job.part, job.dtype, row)
    return "" if aim is None else _figure(aim.key, aim.target)


def _figure(key: str, value: float | None) -> str:
    if value is None:
        return ""
    if key.endswith("seconds"):
        return f"{value * 1e3:,.3g} ms"
    if key.endswith("bytes"):
        return f"{value / (1 << 20):,.1f} MiB"
    return f"{value:.2f} ×" if key == "ratio" else f"{value:,.0f}"


def _verdict(verdict: "Verdict") -> list[str]:
    figures = [_figure(verdict.key, value) for value in (verdict.measured, verdict.target, verdict.stretch)]
    return [verdict.what, *figures, verdict.result]


def _show_verdicts(verdicts: "Sequence[Verdict]") -> None:
    """Shows what was measured against its targets, then what would measure the rest."""
    measured = [each for each in verdicts if each.measured is not None]
    if measured:
        show_table("targets of one H200", ["what", "measured", "target", "stretch", ""], [_verdict(each) for each in measured])
    for command, count in Counter(each.command for each in verdicts if each.measured is None).items():
        print(f"not measured: {count} {'target' if count == 1 else 'targets'}, by {command}")


def _step(job: "Job", row: Row, aim: str) -> list[str]:
    size = next(f"{name} {row[name]}" for name in ("batch", "tokens", "rows") if name in row)
    seconds = row.get("step_seconds", row.get("seconds", 0.0))
    names = ("device_seconds", "idle_seconds", "idle_p99_seconds", "host_seconds", "host_p99_seconds")
    shown = ["" if row.get(name) is None else f"{row[name] * 1e3:.3f}" for name in names]
    how = "" if row.get("graphs", True) else ", no graphs"
    return [job.name + how, size, f"{row['tokens_per_second']:,.0f}", f"{seconds * 1e3:.2f}", *shown, aim]


def _kernel(row: Row) -> list[str]:
    return [
        row["op"], row["shape"], f"{row['seconds'] * 1e6:,.1f}", f"{row['bytes_per_second'] / 1e9:,.0f}",
        f"{row['flops_per_second'] / 1e12:,.1f}", f"{row['share_of_ceiling']:.0%}", row["bottleneck"],
    ]  # fmt: skip
