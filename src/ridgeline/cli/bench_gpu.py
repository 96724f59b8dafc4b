"""`ridgeline bench gpu`: what a GPU reaches with this engine: kernels, steps and serving beside its ceilings."""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.cli.bench_compute import show_table
from ridgeline.facts.families import MEASURED


def gpu(
    only: Annotated[str | None, typer.Option(help="Parts, with commas: ceilings, decode, prefill, serving, invariant, kernels.")] = None,
    dtype: Annotated[str, typer.Option(help="Of weights, with commas; the KV cache has the same: bf16, fp8.")] = "bf16,fp8",
    model: Annotated[str, typer.Option(help="A known model's name, or a config.json; its weights are random.")] = MEASURED,
    as_json: Annotated[Path | None, typer.Option("--json", help="A file for the one report of all parts; - is stdout.")] = None,
) -> None:
    """Measure the GPU: ceilings, decoding, prompts, serving, the batch-invariant mode, kernels. Takes less than ten minutes."""
    from ridgeline.bench.gpu import Job, Report, check_gpu, config_of, jobs, measure, row_words, target
    from ridgeline.cli.pages import check_page

    asked = jobs(_words(only), _words(dtype), config_of(model))
    check_page(as_json if str(as_json) != "-" else None, "--json")
    check_gpu()
    began = time.monotonic()

    def say(job: Job, row: Mapping[str, Any]) -> None:
        aim = _aim(job, target(job, row) if model == MEASURED else None)
        wanted = f"  (target {aim})" if aim else ""
        print(f"{time.monotonic() - began:4.0f} s  {job.name}: {row_words(row)}{wanted}", file=sys.stderr, flush=True)

    def keep(report: Report) -> None:
        last = report.done[-1]
        ended = "done" if last.error is None else f"FAILED: {last.error}"
        print(f"{time.monotonic() - began:4.0f} s  {last.job.name}: {ended}", file=sys.stderr, flush=True)
        if as_json is not None and str(as_json) != "-":
            as_json.expanduser().write_text(json.dumps(report.as_dict(), ensure_ascii=False) + "\n", encoding="utf-8")

    report = measure(model, asked, say, keep)
    if str(as_json) == "-":
        print(json.dumps(report.as_dict(), ensure_ascii=False))
        return
    _show(report, target if model == MEASURED else lambda job, row: None)
    if report.failures:
        raise typer.Exit(1)


def _words(text: str | None) -> list[str]:
    return [] if text is None else [word.strip() for word in text.split(",") if word.strip()]


def _show(report: Any, target: Any) -> None:
    """Tables of steps and of kernels, then what went wrong."""
    steps, kernels = [], []
    for done in report.done:
        for row in done.rows:
            if "error" in row:
                continue
            if "op" in row:
                kernels.append(_kernel(row))
            elif "tokens_per_second" in row:
                steps.append(_step(done.job, row, _aim(done.job, target(done.job, row))))
            elif "output_tokens_per_second" in row:
                steps.append(_served(done.job, row, _aim(done.job, target(done.job, row))))
    heads = ["", "size", "tok/s", "ms", "device ms", "idle ms", "host ms", "target"]
    if steps:
        show_table(f"{report.model}, random weights", heads, steps)
    if kernels:
        show_table("kernels", ["op", "shape", "µs", "GB/s", "TFLOP/s", "of ceiling", "which"], kernels)
    for failure in report.failures:
        print(f"FAILED  {failure}")


def _aim(job: Any, aim: float | None) -> str:
    """A target: seconds of prompts, else tokens a second."""
    return "" if aim is None else f"{aim * 1e3:g} ms" if job.part == "prefill" else f"{aim:,g}"


def _served(job: Any, row: Mapping[str, Any], aim: str) -> list[str]:
    times = [f"{row['step_seconds'] * 1e3:.2f}", "", "", f"{row['host_seconds'] * 1e3:.3f}"]
    return [job.name, f"{row['rows_at_most']} rows", f"{row['output_tokens_per_second']:,.0f}", *times, aim]


def _step(job: Any, row: Mapping[str, Any], aim: str) -> list[str]:
    size = f"batch {row['batch']}" if "batch" in row else f"{row['tokens']} tokens"
    seconds = row.get("step_seconds", row.get("seconds", 0.0))
    times = [row.get(name) for name in ("device_seconds", "idle_seconds", "host_seconds")]
    how = "" if row.get("graphs", True) else ", no graphs"
    shown = ["" if each is None else f"{each * 1e3:.3f}" for each in times]
    return [job.name + how, size, f"{row['tokens_per_second']:,.0f}", f"{seconds * 1e3:.2f}", *shown, aim]


def _kernel(row: Mapping[str, Any]) -> list[str]:
    return [
        row["op"], row["shape"], f"{row['seconds'] * 1e6:,.1f}", f"{row['bytes_per_second'] / 1e9:,.0f}",
        f"{row['flops_per_second'] / 1e12:,.1f}", f"{row['share_of_ceiling']:.0%}", row["binds"],
    ]  # fmt: skip
