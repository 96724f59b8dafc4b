"""`ridgeline bench gpu`: what a GPU reaches with this engine: kernels, steps and serving beside its ceilings and its targets."""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.errors import ConfigError
from ridgeline.models.table import MEASURED

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
    from ridgeline.bench.gpu import Report, check_gpu, measure, row_words
    from ridgeline.bench.gpu_parts import Job, jobs
    from ridgeline.cli.bench_gpu_tables import aim_words, show_report, show_shares
    from ridgeline.cli.pages import check_page
    from ridgeline.facts.headers.read import config_of

    asked = jobs(_words("--only", only), _words("--dtype", dtype), config_of(model), minutes)
    if dry_run:
        show_shares(asked)
        return
    check_page(as_json if str(as_json) != "-" else None, "--json")
    check_gpu(asked)
    began = time.monotonic()

    def say(job: Job, row: Mapping[str, Any]) -> None:
        aim = aim_words(job, row) if model == MEASURED else ""
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
    else:
        show_report(report)
    if report.failures:
        raise typer.Exit(1)


def _words(flag: str, text: str | None) -> list[str]:
    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    if text is not None and not words:
        raise ConfigError(f"{flag} is {text!r:.40}, which names nothing", fix={flag: None})
    return words
