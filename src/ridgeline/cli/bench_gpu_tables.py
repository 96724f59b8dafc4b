"""The report of `ridgeline bench gpu` as tables: steps, kernels, the price of the batch-invariant mode, every target, what failed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline.bench.gpu import Report, row_words
from ridgeline.bench.gpu_parts import MOST_SECONDS, Job
from ridgeline.bench.gpu_targets import Verdict, costs, headline
from ridgeline.cli.bench_compute import show_table
from ridgeline.models.table import MEASURED

Row = Mapping[str, Any]


def show_shares(asked: Sequence[Job]) -> None:
    """What would run, and the seconds that are kept for each part."""
    rows = [[job.name, f"{job.share:.0f}"] for job in asked]
    total = sum(job.share for job in asked)
    show_table("parts", ["part", "seconds"], [*rows, ["all", f"{total:.0f}"]])
    if total <= MOST_SECONDS:
        print(f"each is ended when its seconds, and those that parts before it left, are over: {MOST_SECONDS:.0f} s at most for all")


def show_report(report: Report) -> None:
    """Everything that was measured, then what went wrong."""
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
        lost = f"{cost['share_lost']:.1%} of tokens a second"
        print(f"the batch-invariant mode, {cost['dtype']}, batch {cost['batch']}: {cost['tokens_per_second']:,.0f} tok/s, costs {lost}")
    _show_verdicts(report.verdicts)
    for failure in report.failures:
        print(f"FAILED  {failure}")


def aim_words(job: Job, row: Row) -> str:
    """The target of a row's chief figure; nothing where there is none."""
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


def _verdict(verdict: Verdict) -> list[str]:
    figures = [_figure(verdict.key, value) for value in (verdict.measured, verdict.target, verdict.stretch)]
    return [verdict.what, *figures, verdict.result]


def _show_verdicts(verdicts: Sequence[Verdict]) -> None:
    """What was measured against its targets, then what would measure the rest."""
    measured = [each for each in verdicts if each.measured is not None]
    if measured:
        show_table("targets of one H200", ["what", "measured", "target", "stretch", ""], [_verdict(each) for each in measured])
    for command, count in Counter(each.command for each in verdicts if each.measured is None).items():
        print(f"not measured: {count} {'target' if count == 1 else 'targets'}, by {command}")


def _step(job: Job, row: Row, aim: str) -> list[str]:
    size = next(f"{name} {row[name]}" for name in ("batch", "tokens", "rows") if name in row)
    seconds = row.get("step_seconds", row.get("seconds", 0.0))
    names = ("device_seconds", "idle_seconds", "idle_p99_seconds", "host_seconds", "host_p99_seconds")
    shown = ["" if row.get(name) is None else f"{row[name] * 1e3:.3f}" for name in names]
    how = "" if row.get("graphs", True) else ", no graphs"
    return [job.name + how, size, f"{row['tokens_per_second']:,.0f}", f"{seconds * 1e3:.2f}", *shown, aim]


def _kernel(row: Row) -> list[str]:
    return [
        row["op"], row["shape"], f"{row['seconds'] * 1e6:,.1f}", f"{row['bytes_per_second'] / 1e9:,.0f}",
        f"{row['flops_per_second'] / 1e12:,.1f}", f"{row['share_of_ceiling']:.0%}", row["binds"],
    ]  # fmt: skip
