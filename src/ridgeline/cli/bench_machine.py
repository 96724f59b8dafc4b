"""`ridgeline bench roofline`, `kernels` and `offline`: this machine, its kernels, and the engine alone beside what the machine allows."""

import importlib
import re
from typing import Annotated, Any, Final

import typer

from ridgeline.cli.output import billions, progress_bar, show_json, show_table
from ridgeline.errors import ConfigError

_SHAPE: Final = re.compile(r"(\d{1,8})x(\d{1,8})")


def numbers(flag: str, text: str) -> tuple[int, ...]:
    """`1,4,16` as integers. Raises ConfigError."""
    words = [word.strip() for word in text.split(",")]
    wrong = next((word for word in words if not (word.isascii() and word.isdigit() and len(word) < 10)), None)
    if wrong is not None:
        raise ConfigError(f"{flag} has {wrong!r:.40}; write whole numbers with commas between them: 1,4,16", fix={flag: "1,4,16"})
    return tuple(int(word) for word in words)


def shapes(flag: str, text: str) -> tuple[tuple[int, int], ...]:
    """`8192x2048,2048x8192` as pairs. Raises ConfigError."""
    found = [(word, _SHAPE.fullmatch(word.strip())) for word in text.split(",")]
    wrong = next((word for word, match in found if match is None), None)
    if wrong is not None:
        raise ConfigError(f"{flag} has {wrong!r:.40}; write outputs x inputs: 8192x2048", fix={flag: "8192x2048"})
    return tuple((int(match[1]), int(match[2])) for _, match in found if match is not None)


def computing(module: str) -> Any:
    """A module of the computing wing, by name: it brings arrays."""
    return importlib.import_module(f"ridgeline.compute.bench.{module}")


def roofline(
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="Threads beside one [every CPU core that may be used].")] = None,
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
    print(f"threads: {found.entry_seconds * 1e6:.1f} µs to set a team to work, {found.phase_seconds * 1e9:.0f} ns per phase without work")
    print(found.noise.words())


def kernels(
    formats: Annotated[str | None, typer.Option("--format", help="Stored formats, with commas: Q4_K,Q8_0 [all with a kernel].")] = None,
    tokens: Annotated[str, typer.Option(help="Tokens of a step, with commas.")] = "1,4,12,16,24,64,512",
    shape: Annotated[str, typer.Option(help="Outputs x inputs of a matrix, with commas.")] = "8192x2048,2048x8192",
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="Threads [every CPU core that may be used].")] = None,
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


def offline(
    model: Annotated[str, typer.Argument(help="`demo`, a GGUF file, a model directory, or a name of the hub (org/name).")],
    batch: Annotated[str, typer.Option(help="Sequences at once, with commas: each is run.")] = "1,4,16",
    prompt_tokens: Annotated[int, typer.Option(help="Tokens of a prompt.")] = 128,
    output_tokens: Annotated[int, typer.Option(help="Tokens of an answer.")] = 64,
    repeats: Annotated[int, typer.Option(help="Runs of each batch size.")] = 3,
    runner: Annotated[str, typer.Option(help="auto, native or numpy.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="Threads [every CPU core that may be used].")] = None,
    kv_dtype: Annotated[str, typer.Option(help="KV cache: auto, bf16, f32 or int8.")] = "auto",
    depth: Annotated[int, typer.Option(help="Steps in flight.")] = 1,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Tokens in one step.")] = 512,
    hogs: Annotated[int, typer.Option(help="Run everything again beside so many foreign processes that take a CPU core each.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object: tokens, bytes, seconds.")] = False,
) -> None:
    """Run batches through the engine in this process: prompt and output tokens per second, and where a step's time goes."""
    from ridgeline.bench.offline import Load, offline
    from ridgeline.cli.serve import Loading
    from ridgeline.config.groups import EngineConfig

    load = Load(numbers("--batch", batch), prompt_tokens, output_tokens, repeats, hogs)
    config = EngineConfig(
        model, runner=runner, threads=threads, kv_dtype=kv_dtype, depth=depth, max_num_batched_tokens=max_num_batched_tokens
    )
    with Loading() as loading:
        report = offline(config, load, loading.show)
    if as_json:
        show_json(report.as_dict())
        return
    heads = ["batch", "prompt tok/s", "of bound", "output tok/s", "of bound", "step ms", "slowest", "computing", "copying", "rest"]
    rows = [
        [
            str(each.batch), f"{each.prefill_tokens_per_second:,.0f}", f"{each.prefill_tokens_per_second / each.prefill_bound:.0%}",
            f"{each.decode_tokens_per_second:,.1f}", f"{each.decode_tokens_per_second / each.decode_bound:.0%}",
            *(f"{seconds * 1e3:.2f}" for seconds in (each.step_seconds, each.slowest_step_seconds, each.run, each.copy, each.rest)),
        ]
        for each in report.figures
    ]  # fmt: skip
    show_table(f"{report.model}, {report.runner}: prompts of {load.prompt_tokens}, answers of {load.output_tokens} tokens", heads, rows)
    for each in report.figures:
        if each.hogged_tokens_per_second is not None:
            free, beside = each.whole_tokens_per_second, each.hogged_tokens_per_second
            others = f"{hogs} foreign process{'es' * (hogs > 1)}"
            print(f"batch {each.batch}, whole answers: {free:,.1f} tok/s, beside {others} {beside:,.1f}: {free / beside:.2f} x slower")
    peaks = [f"{kind} {rate / 1e9:,.0f} GFLOP/s" for kind, rate in report.flops_per_second.items()]
    print(f"bounds: memory {report.bytes_per_second / 1e9:.1f} GB/s, {', '.join(peaks)}")
    print(report.noise.words())
