"""`ridgeline bench`: measurements as verbs. Owns their flags; what measures is imported when a verb runs.

`serve` and `compare` put load on OpenAI-compatible servers; `roofline`, `kernels` and `offline` measure this machine, its kernels and the
engine alone; `gpu` is in `bench_gpu`.
"""

import importlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ridgeline.cli.main import group
from ridgeline.cli.output import format_giga, print_json, print_notes, print_status, print_table, progress_bar
from ridgeline.cli.setting_flags import OF_TEXTS, located, read_engine_flags, with_engine_flags
from ridgeline.cli.sizes import size_option
from ridgeline.errors import ConfigError

VERBS: Final[dict[str, str]] = {
    "serve": "Put load on a server and measure what its users see.",
    "compare": "Measure servers in turn, on the same prompts, and compare them.",
    "roofline": "Measure this machine: memory, caches, arithmetic.",
    "kernels": "Time products with packed weights beside these peaks.",
    "gpu": "Measure a GPU: ceilings, kernels, decode, prefill, serving.",
    "offline": "Run batches through the engine alone, without HTTP.",
}
MODULES: Final = dict.fromkeys(VERBS, "bench") | {"gpu": "bench_gpu"}
OFFLINE: Final[dict[str, Any]] = {"depth": 1, "max_num_batched_tokens": 512}
"""Settings of `offline` where nobody gave others: steps one by one, as their parts are told."""

bench = group(VERBS, MODULES)


@bench.callback()
def _bench() -> None:
    """Measure servers, kernels and this machine."""


def serve(
    url: Annotated[str, typer.Option(help="Address of the server.")] = "http://127.0.0.1:8000",
    model: Annotated[str | None, typer.Option(help="Name of the model [the first that the server lists].")] = None,
    requests: Annotated[int | None, typer.Option(min=1, max=100_000, help="Requests of each run [100, or the whole trace].")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.1, max=86_400, help="Send nothing new after this time.")] = None,
    streams: Annotated[str | None, typer.Option(help="Streams of a closed loop [1]; 1,4,16: one run each.")] = None,
    rate: Annotated[str | None, typer.Option(help="Requests per second of an open loop, or several rates; --streams then limits.")] = None,
    arrivals: Annotated[str, typer.Option(help="Arrivals of the open loop: poisson, bursty, diurnal, or burst (all at once).")] = "poisson",
    input_len: Annotated[str, typer.Option(help="Prompt tokens: 127, 20-1000, lognormal:500, uniform:500, exponential:500.")] = "127",
    output_len: Annotated[str, typer.Option(help="Output tokens, the same way.")] = "64",
    shared_prefix: Annotated[int, size_option("--shared-prefix", "Leading prompt tokens that requests share.", high=1 << 20)] = 0,
    prefixes: Annotated[int, typer.Option(min=1, max=1 << 20, help="Number of different shared prefixes.")] = 1,
    trace: Annotated[Path | None, typer.Option(help="Recorded traffic: jsonl (Ridgeline's, Mooncake's) or csv (BurstGPT).")] = None,
    speed: Annotated[float, typer.Option(help="Replay the trace this many times as fast.")] = 1.0,
    warm_up: Annotated[int, typer.Option(min=0, max=10_000, help="Requests before each run that do not count.")] = 1,
    slo: Annotated[str | None, typer.Option(help="Objective, for instance ttft=500ms,itl=50ms.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Request all output tokens, past end-of-sequence.")] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**31, help="Seed of prompts and arrivals [random, so that no cache has them].")
    ] = None,
    api: Annotated[str, typer.Option(help="completions or chat.")] = "completions",
    api_key: Annotated[str | None, typer.Option(help="Bearer token.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, max=86_400, help="Seconds that an answer may take.")] = 600.0,
    extra_body: Annotated[str | None, typer.Option(help='Further fields of each request, as JSON: {"temperature": 1}.')] = None,
    as_json: Annotated[Path | None, typer.Option("--json", help="Write everything to this file, each request too; - is stdout.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with table and plots to this file; it needs no network.")] = None,
) -> None:
    """Put load on an OpenAI-compatible server and measure what its users see."""
    from ridgeline.bench.session import RequestOptions
    from ridgeline.cli.bench_serve import LoadOptions, ServeRuns, make_loads, parse_api, parse_body, random_seed, write_json
    from ridgeline.cli.output import check_json, check_writable, write_page
    from ridgeline.planning.arguments import parse_objective

    number = random_seed() if seed is None else seed
    request_options = RequestOptions(parse_api(api), model, api_key, timeout, ignore_eos, parse_body(extra_body))
    options = LoadOptions(requests, seconds, streams, rate, arrivals, input_len, output_len, shared_prefix, prefixes, trace, speed, number)
    runs = ServeRuns(url, request_options, number, parse_objective(slo))
    loads = make_loads(options)
    check_writable(html)
    check_json(as_json)
    runs.run(loads, warm_up)
    if html is not None:
        write_page(html, runs.page())
    write_json(as_json, runs.as_dict())
    if str(as_json) != "-":
        runs.show()
    if not runs.has_answers:
        raise typer.Exit(1)


def compare(
    servers: Annotated[
        list[str],
        typer.Argument(
            help='Two or more, Ridgeline first: http://HOST:PORT, "KIND:MODEL [FLAGS]" or "cmd:COMMAND {port}"; NAME=… sets its name.'
        ),
    ],
    scenarios: Annotated[str | None, typer.Option(help="Names with commas [all]; a wrong name lists them.")] = None,
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Rounds, each of every scenario and server; intervals need five.")] = 5,
    starts: Annotated[int, typer.Option(min=1, max=100, help="Starts of each server, for the time to its first token.")] = 5,
    restart: Annotated[bool, typer.Option("--restart", help="Start and stop the server for every turn: only one is in memory.")] = False,
    within: Annotated[float | None, typer.Option(min=1, max=86_400, help="Seconds: no round starts that would end later.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="Threads of servers started here [CPU cores].")] = None,
    program: Annotated[list[str] | None, typer.Option(help="Path of a kind's program, KIND=PATH, if not on the PATH.")] = None,
    model: Annotated[str | None, typer.Option(help="Name of the model, for all [the first that each server lists].")] = None,
    api: Annotated[str, typer.Option(help="completions or chat.")] = "completions",
    api_key: Annotated[str | None, typer.Option(help="Bearer token, for all.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, max=86_400, help="Seconds that an answer may take.")] = 600.0,
    extra_body: Annotated[str | None, typer.Option(help="Further fields of each request, as JSON.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=2**31, help="Seed of prompts and arrivals [random].")] = None,
    roofline: Annotated[Path | None, typer.Option(help="JSON of `bench roofline`: show results beside its ceilings.")] = None,
    shape: Annotated[str | None, typer.Option(help="Model whose size sets the ceilings [the first server's, if started here].")] = None,
    as_json: Annotated[Path | None, typer.Option("--json", help="Write everything to this file, each round too; - is stdout.")] = None,
) -> None:
    """Measure servers in turn, on the same prompts, and compare them."""
    from ridgeline.bench.compare import ComparisonOptions, parse_scenarios
    from ridgeline.bench.session import RequestOptions
    from ridgeline.cli.bench_compare import ComparisonRun, parse_servers, print_comparison, read_ceilings
    from ridgeline.cli.bench_serve import parse_api, parse_body, random_seed, write_json
    from ridgeline.cli.output import check_json

    number = random_seed() if seed is None else seed
    start, selected = parse_scenarios(scenarios)
    specs, not_run = parse_servers(servers, selected, threads, program or [])
    request_options = RequestOptions(parse_api(api), model, api_key, timeout, True, parse_body(extra_body))
    limits = read_ceilings(selected, roofline, shape, servers[0], threads)
    check_json(as_json)
    settings = ComparisonOptions(rounds, starts if start else 0, restart, within)
    comparing = ComparisonRun(specs, selected, settings, number, limits, not_run)
    kept = as_json if str(as_json) != "-" else None
    whole = comparing.run(request_options, lambda: write_json(kept, comparing.as_dict()))
    write_json(as_json, comparing.as_dict())
    if str(as_json) != "-":
        print_comparison(comparing)
    if not whole:
        raise KeyboardInterrupt
    if not comparing.has_answers:
        raise typer.Exit(1)


_SHAPE: Final = re.compile(r"(\d{1,8})x(\d{1,8})")


def parse_numbers(flag: str, text: str) -> tuple[int, ...]:
    """Integers of `1,4,16`. Raises ConfigError."""
    words = [word.strip() for word in text.split(",")]
    wrong = next((word for word in words if not (word.isascii() and word.isdigit() and len(word) < 10)), None)
    if wrong is not None:
        raise ConfigError(f"{flag} has {wrong!r:.40}; write whole numbers with commas between them: 1,4,16", fix={flag: "1,4,16"})
    return tuple(int(word) for word in words)


def parse_shapes(flag: str, text: str) -> tuple[tuple[int, int], ...]:
    """Pairs of `8192x2048,2048x8192`. Raises ConfigError."""
    found = [(word, _SHAPE.fullmatch(word.strip())) for word in text.split(",")]
    wrong = next((word for word, match in found if match is None), None)
    if wrong is not None:
        raise ConfigError(f"{flag} has {wrong!r:.40}; write outputs x inputs: 8192x2048", fix={flag: "8192x2048"})
    return tuple((int(match[1]), int(match[2])) for _, match in found if match is not None)


def import_compute(module: str) -> Any:
    """Imports a benchmark of `ridgeline.compute` by name: it needs numpy."""
    return importlib.import_module(f"ridgeline.compute.bench.{module}")


def roofline(
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="Threads of the parallel rates [all available CPU cores].")] = None,
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Rounds, each of every rate: five take a second.")] = 24,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object: bytes, operations and seconds.")] = False,
) -> None:
    """Measure the peak rates of this machine: memory, caches, arithmetic, thread barriers. Takes about five seconds."""
    bench = import_compute("roofline")
    with progress_bar("measuring") as advance:
        report = bench.roofline(threads, rounds, advance)
    if as_json:
        print_json(report.as_dict())
    else:
        print_roofline(report, bench.NAMES)


def print_roofline(report: Any, names: dict[str, str]) -> None:
    """Prints the ceilings as a table."""
    rows = []
    for key, name in names.items():
        rate = report.rates[key]
        unit = "GB/s" if key.endswith("bytes_per_second") else "GFLOP/s" if "flops" in key else "GOP/s"
        cells = ["–"] * 4 if rate is None else [format_giga(each) for each in (rate.one, rate.median_one, rate.all, rate.median_all)]
        rows.append([name, unit, *cells])
    title = f"Ceilings of this machine, level {report.isa}, {report.clock_hertz / 1e9:.2f} GHz: best and median round"
    heads = ["ceiling", "unit", "1 thread", "its median", f"{report.threads} threads", "their median"]
    print_table(title, heads, rows, optional=("its median", "their median"))
    print_notes(f"threads: {report.entry_seconds * 1e6:.1f} µs to start a team, {report.phase_seconds * 1e9:.0f} ns per phase without work")
    print_notes(report.noise.summary())


def kernels(
    formats: Annotated[str | None, typer.Option("--format", help="Stored formats, with commas: Q4_K,Q8_0 [all with a kernel].")] = None,
    tokens: Annotated[str, typer.Option(help="Tokens of a step, with commas.")] = "1,4,12,16,24,64,512",
    shape: Annotated[str, typer.Option(help="Outputs x inputs of a matrix, with commas.")] = "8192x2048,2048x8192",
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="Threads [all available CPU cores].")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object: bytes, operations and seconds.")] = False,
) -> None:
    """Time products with packed weights from memory: format by tokens by shape, each with its share of the bottleneck's ceiling."""
    from ridgeline.facts.hardware.machine import machine_facts

    kinds = [] if formats is None else [each.strip().upper() for each in formats.split(",")]
    bench = import_compute("kernels")
    options = bench.cases(kinds, parse_numbers("--tokens", tokens), parse_shapes("--shape", shape))
    with progress_bar("measuring") as advance:
        report = bench.kernels(options, threads or machine_facts().cpu_cores, advance)
    if as_json:
        print_json(report.as_dict())
        return
    heads = ["format", "tokens", "outputs x inputs", "µs", "median µs", "GB/s", "GOP/s", "of ceiling", "bottleneck", "× 1 token"]
    rows = [
        [
            each.case.kind, str(each.case.tokens), f"{each.case.n}x{each.case.k}", f"{each.best * 1e6:,.0f}",
            f"{each.median_seconds * 1e6:,.0f}",
            format_giga(each.bytes_per_second), format_giga(each.ops_per_second), f"{each.share:.0%}", each.bottleneck,
            "" if (times := report.over_one_token(each)) is None else f"{times:.2f}",
        ]
        for each in report.measured
    ]  # fmt: skip
    missing_shapes = [] if kinds else bench.without_kernel(parse_shapes("--shape", shape))
    memory = format_giga(report.ceilings.best("dram_bytes_per_second", report.threads))
    title = f"Products with packed weights, {report.threads} threads, level {report.ceilings.isa}, memory {memory} GB/s"
    print_table(title, heads, rows, optional=("median µs", "GOP/s"))
    if missing_shapes:
        print_notes(f"no kernel for these shapes: {', '.join(missing_shapes)}")
    print_notes(report.noise.summary())


def _beside_bound(figure: float | None, bound: float, form: str) -> tuple[str, str]:
    """A figure and its share of its bound; none that is above it."""
    return ("", "") if figure is None else (f"{figure:{form}}", f"{figure / bound:.0%}")


@with_engine_flags("max_model_len", "max_num_seqs", "enable_prefix_caching", "step_ms", *OF_TEXTS)
def offline(
    model: Annotated[str, typer.Argument(help="`demo`, a GGUF file, a model directory, or a name of the hub (org/name).")],
    batch: Annotated[str, typer.Option(help="Batch sizes, with commas.")] = "1,4,16",
    prompt_tokens: Annotated[int, size_option("--prompt-tokens", "Tokens of a prompt.")] = 128,
    output_tokens: Annotated[int, size_option("--output-tokens", "Tokens of an answer.")] = 64,
    repeats: Annotated[int, typer.Option(help="Runs of each batch size.")] = 3,
    busy_processes: Annotated[
        int, typer.Option("--hogs", help="Run everything again beside so many processes that keep a CPU core busy each.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object: tokens, bytes, seconds.")] = False,
    **given: Any,
) -> None:
    """Run batches through the engine in this process: prompt and output tokens per second, and where a step's time goes."""
    from ridgeline.bench.offline import OfflineLoad, offline
    from ridgeline.cli.output import LoadingProgress

    load = OfflineLoad(parse_numbers("--batch", batch), prompt_tokens, output_tokens, repeats, busy_processes)
    settings = read_engine_flags(given, model)
    for note in settings.notes:
        print_status(f"note: {note}")
    config = replace(settings.engine, **{name: value for name, value in OFFLINE.items() if name not in settings.origins})
    with LoadingProgress() as loading, located(settings):
        report = offline(config, load, loading.show)
    if as_json:
        print_json(report.as_dict())
        return
    heads = ["batch", "prompt tok/s", "of its bound", "output tok/s", "of bound", "step ms", "slowest", "computing", "preparing", "rest"]
    rows = [
        [
            str(each.batch), *_beside_bound(each.prefill_tokens_per_second, each.prefill_bound, ",.0f"),
            *_beside_bound(each.decode_tokens_per_second, each.decode_bound, ",.1f"),
            *(f"{seconds * 1e3:.2f}" for seconds in (each.step_seconds, each.slowest_step_seconds, each.run, each.prepare, each.rest)),
        ]
        for each in report.figures
    ]  # fmt: skip
    title = f"{report.model}, {report.runner}: prompts of {load.prompt_tokens}, answers of {load.output_tokens} tokens; steps in ms"
    print_table(title, heads, rows, optional=("rest", "preparing", "slowest"))
    if any(None in (each.prefill_tokens_per_second, each.decode_tokens_per_second) for each in report.figures):
        print_notes("a figure above its bound is not shown: the ceilings were measured in a disturbed moment; measure again")
    for each in report.figures:
        if each.contended_tokens_per_second is not None:
            idle, contended = each.whole_tokens_per_second, each.contended_tokens_per_second
            others = f"{busy_processes} busy process{'es' * (busy_processes > 1)}"
            rates = f"{idle:,.1f} tok/s, beside {others} {contended:,.1f}: {idle / contended:.2f} × slower"
            print_notes(f"batch {each.batch}, whole answers: {rates}")
    peaks = [f"{kind} {rate / 1e9:,.0f} GFLOP/s" for kind, rate in report.flops_per_second.items()]
    print_notes(f"bounds: memory {report.bytes_per_second / 1e9:.1f} GB/s, {', '.join(peaks)}")
    print_notes(report.noise.summary())
