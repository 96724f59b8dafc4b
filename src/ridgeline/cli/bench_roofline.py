"""`ridgeline bench roofline`: what this machine can do at most."""

from typing import Annotated, Any

import typer

from ridgeline.cli.bench_compute import billions, computing, progress_bar, show_json, show_table


def roofline(
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="Threads beside one [every processor that may be used].")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object: bytes, operations and seconds.")] = False,
) -> None:
    """Measure what this machine can do at most: memory, caches, arithmetic, threads that wait for each other. Takes some five seconds."""
    bench = computing("roofline")
    with progress_bar("measuring") as advance:
        found = bench.roofline(threads, on_progress=advance)
    if as_json:
        show_json(found.as_dict())
    else:
        show(found, bench.NAMES)


def show(found: Any, names: dict[str, str]) -> None:
    """Tables for a person."""
    rows = []
    for key, name in names.items():
        rate = found.rates[key]
        unit = "GB/s" if key.endswith("bytes_per_second") else "GFLOP/s" if "flops" in key else "GOP/s"
        cells = ["–"] * 4 if rate is None else [billions(each) for each in (rate.one, rate.median_one, rate.all, rate.median_all)]
        rows.append([name, unit, *cells])
    title = f"level {found.isa}, {found.clock_hertz / 1e9:.2f} GHz; the best round, and the median one"
    show_table(title, ["ceiling", "", "1 thread", "median", f"{found.threads} threads", "median"], rows)
    print(f"threads: {found.entry_seconds * 1e6:.1f} µs to set a team to work, {found.phase_seconds * 1e9:.0f} ns a phase without work")
    print(found.noise.words())
