"""`ridgeline bench kernels`: products with packed weights beside what the machine allows."""

from typing import Annotated

import typer

from ridgeline.cli.bench_compute import billions, computing, numbers, progress_bar, shapes, show_json, show_table


def kernels(
    formats: Annotated[str | None, typer.Option("--format", help="Stored formats, with commas: Q4_K,Q8_0 [all with a kernel].")] = None,
    tokens: Annotated[str, typer.Option(help="Tokens of a step, with commas.")] = "1,4,12,16,24,64,512",
    shape: Annotated[str, typer.Option(help="Outputs x inputs of a matrix, with commas.")] = "8192x2048,2048x8192",
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="Threads [every processor that may be used].")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object: bytes, operations and seconds.")] = False,
) -> None:
    """Time products with packed weights from memory: format by tokens by shape, each beside the ceiling that binds it."""
    from ridgeline.facts.hardware.machine import machine_facts

    kinds = [] if formats is None else [each.strip().upper() for each in formats.split(",")]
    bench = computing("kernels")
    asked = bench.cases(kinds, numbers("--tokens", tokens), shapes("--shape", shape))
    with progress_bar("measuring") as advance:
        report = bench.kernels(asked, threads or machine_facts().processors, advance)
    if as_json:
        show_json(report.as_dict())
        return
    heads = ["format", "tokens", "outputs x inputs", "µs", "median µs", "GB/s", "GOP/s", "of ceiling", "which", "× 1 token"]
    rows = [
        [
            each.case.kind, str(each.case.tokens), f"{each.case.n}x{each.case.k}", f"{each.best * 1e6:,.0f}", f"{each.middle * 1e6:,.0f}",
            billions(each.bytes_per_second), billions(each.ops_per_second), f"{each.share:.0%}", each.binds,
            "" if (times := report.over_one_token(each)) is None else f"{times:.2f}",
        ]
        for each in report.measured
    ]  # fmt: skip
    lost = [] if kinds else bench.without_kernel(shapes("--shape", shape))
    memory = billions(report.ceilings.best("dram_bytes_per_second", report.threads))
    show_table(f"{report.threads} threads, level {report.ceilings.isa}; memory {memory} GB/s; GB/s of packed weights", heads, rows)
    if lost:
        print(f"no kernel for these shapes: {', '.join(lost)}")
    print(report.noise.words())
