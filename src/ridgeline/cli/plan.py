"""`ridgeline plan`: memory, speed and cost of a model on given devices, before anything is downloaded.

Owns the flags, `--workload` (words or a recorded trace), and the output: a summary, then tables.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.sizes import gigabytes_option, size_option

if TYPE_CHECKING:
    from ridgeline.planning.deployment import Deployment
    from ridgeline.planning.levers import Lever
    from ridgeline.planning.objectives import Objective
    from ridgeline.planning.report import Report
    from ridgeline.sim.fleet.traffic import Arrival


def plan(
    model: Annotated[str, typer.Argument(help="A config.json, a GGUF file, a directory with one of them, `demo` or a known name.")],
    device: Annotated[str, typer.Option(help="Device: `this` machine, or a name (h100, rtx-4090, m4 …); a wrong one lists all.")] = "this",
    count: Annotated[int, typer.Option(help="Devices in all.")] = 1,
    dtype: Annotated[str | None, typer.Option(help="Weight format: bf16, fp8, int8, int4, awq, q4_k … [as stored].")] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="KV cache: f32, f16, bf16, fp8, int8, int4 [f16].")] = None,
    context: Annotated[int | None, size_option("--context", "Tokens of a sequence, prompt and output [4096].")] = None,
    users: Annotated[int | None, typer.Option(help="Sequences at once [1; then the batch to run is the knee's].")] = None,
    slo: Annotated[str | None, typer.Option(help="Objective, for instance ttft=500ms,itl=50ms.")] = None,
    workload: Annotated[str | None, typer.Option(help="Average request: in=2000,out=500,prefix=0.5,burst=3; or a recorded trace.")] = None,
    tensor_parallel_size: Annotated[int | None, typer.Option(help="Devices that share each matrix [automatic].")] = None,
    pipeline_parallel_size: Annotated[int | None, typer.Option(help="Stages of layers [automatic].")] = None,
    expert_parallel_size: Annotated[int | None, typer.Option(help="Devices that share a mixture's experts [1].")] = None,
    memory_utilization: Annotated[float, typer.Option(help="Share of a device's memory that may be used.")] = 0.90,
    max_num_batched_tokens: Annotated[int, size_option("--max-num-batched-tokens", "Tokens in one step.")] = 2048,
    memory: Annotated[float | None, gigabytes_option("--memory", "Memory of a device, instead of the table's.")] = None,
    bandwidth: Annotated[float | None, typer.Option(help="GB/s of memory bandwidth, instead of the table's.")] = None,
    tflops: Annotated[float | None, typer.Option(help="TFLOP/s of matrix products, instead of the table's.")] = None,
    price_per_hour: Annotated[float | None, typer.Option(help="Dollars per hour for one device, instead of the table's.")] = None,
    api_price: Annotated[float | None, typer.Option(help="Dollars per million tokens of an API, for the break-even.")] = None,
    draft_model: Annotated[str | None, typer.Option(help="What drafts: MODEL, or medusa, eagle, eagle3, mtp.")] = None,
    acceptance: Annotated[float | None, typer.Option(help="Share of drafts that are right, for what speculation would bring.")] = None,
    max_loras: Annotated[int, typer.Option(help="LoRA adapters that the sequences of one step may have.")] = 0,
    max_lora_rank: Annotated[int, typer.Option(help="Largest rank of an adapter.")] = 64,
    expert_memory: Annotated[float | None, typer.Option(help="GiB for experts of a sparse model; others are read from disk [all].")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Load the model and set what is measured beside the plan.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object: bytes, seconds, dollars.")] = False,
    html: Annotated[Path | None, typer.Option(help="Also write a page with sliders and plots to this file; it needs no network.")] = None,
) -> None:
    """Say what a model needs and yields on given devices, before anything is downloaded. Ends with 1 where it does not fit."""
    given = locals()
    planned = prepare_plan(given)
    if verify:
        from ridgeline.cli.plan_verify import run_verify

        run_verify(given)
    else:
        _report(*planned, users is not None, html, as_json)


def _report(
    deployment: "Deployment", objective: "Objective", api: float | None, users_given: bool, html: Path | None, as_json: bool
) -> None:
    """Writes the page, prints the report, and ends with 1 where it does not fit."""
    from ridgeline.planning.report import make_report

    report = make_report(deployment, objective, users_given, api)
    if html is not None:
        from ridgeline.cli.output import write_page
        from ridgeline.planning.page import plan_page

        write_page(html, plan_page(deployment, objective, users_given))
    if as_json:
        print(json.dumps(report.as_dict(), ensure_ascii=False))
    else:
        print_report(report)
    if not report.fits:
        raise typer.Exit(1)


def prepare_plan(given: Mapping[str, Any]) -> "tuple[Deployment, Objective, float | None]":
    """(deployment, objective, price of an API) of the flags of `plan`, by parameter. Raises what is wrong with one of them."""
    from ridgeline.config.env import model_stores
    from ridgeline.errors import ConfigError
    from ridgeline.facts.headers.read import describe_model
    from ridgeline.planning.arguments import PlanOptions, api_price_of, deployment_of, parse_objective
    from ridgeline.planning.heads import HEAD_KINDS

    if given["verify"] and given["device"] != "this":
        raise ConfigError("--verify measures this machine; leave --device out", fix={"--device": None})
    words, longest = read_workload(given["workload"])
    options = PlanOptions(
        device=given["device"],
        count=given["count"],
        dtype=given["dtype"],
        kv_dtype=given["kv_dtype"],
        context=longest if given["context"] is None else given["context"],
        users=given["users"],
        workload=words,
        tensor=given["tensor_parallel_size"],
        pipeline=given["pipeline_parallel_size"],
        expert=given["expert_parallel_size"],
        utilisation=given["memory_utilization"],
        chunk=given["max_num_batched_tokens"],
        memory_gb=given["memory"],
        bandwidth_gb=given["bandwidth"],
        tflops=given["tflops"],
        price=given["price_per_hour"],
        acceptance=given["acceptance"],
        adapters=given["max_loras"],
        adapter_rank=given["max_lora_rank"],
        expert_memory=given["expert_memory"],
    )
    draft = given["draft_model"]
    if draft is not None and draft not in HEAD_KINDS:
        draft = describe_model(draft, model_stores())
    objective, api = parse_objective(given["slo"]), api_price_of(given["api_price"])
    return deployment_of(describe_model(given["model"], model_stores()), options, draft), objective, api


SLICES = 60
"""Parts of a trace in which arrivals are counted to measure its burst."""


def read_workload(text: str | None) -> tuple[str | None, int | None]:
    """(words, tokens of the longest request): `text` itself, or words that describe the trace at the path `text`.

    Raises ConfigError as `read_trace` does.
    """
    if text is None or not text.endswith((".jsonl", ".csv")):
        return text, None
    from ridgeline.sim.fleet.traffic import read_trace

    arrivals = read_trace(Path(text))
    return describe_arrivals(arrivals), max(each.prompt + each.output for each in arrivals)


def describe_arrivals(arrivals: "Sequence[Arrival]") -> str:
    """Mean tokens in and out, share of prompt tokens in earlier prompts, and arrivals in the busiest of `SLICES` parts over the mean."""
    prompt, output = (ceil(fmean(values)) for values in zip(*[(each.prompt, each.output) for each in arrivals], strict=True))
    seen: set[int] = set()
    reused = 0
    for each in arrivals:
        reused += each.shared if each.prefix in seen else 0
        seen.add(each.prefix)
    share, span, burst = min(0.99, reused / sum(each.prompt for each in arrivals)), arrivals[-1].time, 1.0
    if span:
        fullest = max(Counter(min(SLICES - 1, int(each.time / span * SLICES)) for each in arrivals).values())
        burst = min(1000.0, max(1.0, fullest * SLICES / len(arrivals)))
    return f"in={prompt},out={output},prefix={share:.3f},burst={burst:.2f}"


def print_report(report: "Report") -> None:
    """Prints the report to stdout: a summary, tables, what follows from them."""
    from ridgeline.cli.output import print_notes, print_table

    print_notes(*_summary_lines(report), "")
    print_table(*memory_table(report))
    print_notes("")
    print_table(*physics_table(report))
    print_notes("")
    print_table(*curve_table(report))
    if report.batch_table:
        print_notes("")
        print_table(*batch_table(report), optional=("decode tok/s", "KV GB", "$/M tokens"))
        if report.levers:
            print_notes("")
            print_table(*lever_table(report), optional=("sequences", "$/M tokens", "batch"), wrapped="why")
    print_notes("")
    print_notes(*_closing_lines(report))
    if report.flags:
        print_notes("")
        rows = [[flag.name, flag.value, flag.reason] for flag in report.flags]
        print_table("Flags (names of ridgeline serve and vLLM)", ["flag", "value", "why"], rows, wrapped="why")


Tabulated = tuple[str, list[str], list[list[str]]]
"""Title, heads, rows."""


def gigabytes(value: float) -> str:
    """Bytes as 10⁹ bytes."""
    return f"{value / 1e9:,.2f} GB" if abs(value) < 1e11 else f"{value / 1e9:,.0f} GB"


def milliseconds(value: float) -> str:
    """Seconds as milliseconds."""
    return f"{value * 1e3:,.2f} ms" if value < 0.1 else f"{value * 1e3:,.0f} ms"


def money(value: float | None) -> str:
    """Dollars, or a dash without a price."""
    return "–" if value is None else f"${value:,.3f}" if value < 10 else f"${value:,.2f}"


def _summary_lines(report: "Report") -> list[str]:
    sharding = " × ".join(f"{name} {ranks}" for name, ranks in report.layout.items() if ranks > 1) or "TP=1"
    active = f", {report.active_parameters / 1e9:.2f} B active" if report.active_parameters < report.parameters else ""
    size = f"{report.parameters / 1e9:.2f} B parameters{active}"
    lines = [
        f"{report.model}: {size}, {report.attention}, weights {report.weights_format}, KV {report.kv_dtype}",
        f"{report.devices} × {report.device}, {sharding}; {report.users:,} × {report.context:,} tokens",
    ]
    if report.fits:
        lines.append(f"It fits: up to {report.max_sequences:,} sequences of {report.context:,} tokens.")
    else:
        least = f"{report.min_devices} devices are enough" if report.min_devices else "1,024 of these devices are not enough"
        missing = gigabytes(report.shortfall_bytes)
        lines.append(
            f"It does not fit: {missing} are missing; {least}, or lower --users, --context, --dtype or --kv-dtype, "
            "or take another --device."
        )
    return lines


def memory_table(report: "Report") -> Tabulated:
    """Memory by use."""
    uses = {
        "weights": report.weights_bytes,
        **({"what drafts, and its cache": report.draft_bytes} if report.draft_bytes else {}),
        **({"LoRA adapters (--max-loras)": report.adapter_bytes} if report.adapter_bytes else {}),
        "activations (tiled attention)": report.activation_bytes,
        "driver and framework": report.overhead_bytes,
        "reserve (--memory-utilization)": report.reserve_bytes,
        "left for the KV cache": report.kv_budget_bytes,
        "all": report.memory_bytes,
    }
    rows = [[name, gigabytes(value), f"{value / report.memory_bytes:.1%}"] for name, value in uses.items()]
    parts = {f"of the weights: {name}": size for name, size in report.weights_by_class_bytes.items() if size}
    parts |= {f"KV cache of {report.context:,} tokens": report.kv_bytes_per_sequence}
    if report.state_bytes_per_sequence:
        parts["state of a sequence"] = report.state_bytes_per_sequence
    parts["activations, if scores were stored"] = report.untiled_activation_bytes
    rows += [[name, gigabytes(size), ""] for name, size in parts.items()]
    rows.append(["KV cache per token", f"{report.kv_bytes_per_token:,} B", ""])
    return "Memory of one replica, on all its devices", ["use", "bytes", "share"], rows


def physics_table(report: "Report") -> Tabulated:
    """Arithmetic intensities, bottleneck, floors."""
    rows = [
        ["ridge point", f"{report.ridge_intensity:,.0f} FLOP/B"],
        ["intensity of prefill", f"{report.prefill_intensity:,.0f} FLOP/B"],
        [f"intensity of decode at batch {max(1, report.recommended_batch)}", f"{report.decode_intensity:,.1f} FLOP/B"],
        ["bottleneck of decode", report.bound_by],
        ["floor between tokens, one sequence", milliseconds(report.decode_floor_seconds)],
        ["floor of a prompt's prefill", milliseconds(report.prefill_floor_seconds)],
        ["estimate of a prompt's prefill", milliseconds(report.prefill_seconds)],
    ]
    rows += [[f"a prompt's blocks from {each.tier}", f"{milliseconds(each.seconds)}, {each.of_computing:.1%}"] for each in report.tiers]
    rows += [
        [
            f"one stream, {each.hit_rate:.0%} of experts in memory",
            f"{milliseconds(each.itl)} per token, {each.read_bytes_per_token / 1e6:,.0f} MB read",
        ]
        for each in report.expert_reads
    ]
    return "Physics: what memory and arithmetic allow", ["quantity", "value"], rows


def curve_table(report: "Report") -> Tabulated:
    """Sequences that fit by context length."""
    rows = [[f"{point.context:,}", f"{point.max_sequences:,}"] for point in report.context_curve]
    rows.append([f"longest for {report.users} at once", f"{report.max_context_tokens:,} tokens"])
    return "Context against users: sequences that fit at once", ["tokens of each", "sequences"], rows


def batch_table(report: "Report") -> Tabulated:
    """Speed by batch size; the knee and the recommended batch are marked."""
    heads = ["batch", "ITL ms", "with prefill", "tok/s", "decode tok/s", "compute", "KV GB", "bottleneck", "$/M tokens", ""]
    rows = [
        [
            f"{point.batch}",
            f"{point.itl * 1e3:,.1f}",
            f"{point.mixed_itl * 1e3:,.1f}",
            f"{point.tokens_per_second:,.0f}",
            f"{point.decode_tokens_per_second:,.0f}",
            f"{point.utilisation:.0%}",
            f"{point.kv_bytes / 1e9:,.2f}",
            point.bound_by,
            money(point.cost),
            " ".join(
                mark for mark, at in (("knee", report.knee_batch), ("← run", report.recommended_batch)) if point.batch == at
            ),
        ]
        for point in report.batch_table
    ]  # fmt: skip
    lengths = f"{report.workload['prompt']:,} prompt and {report.workload['output']:,} output tokens"
    return f"Batches, estimated for requests of {lengths}", heads, rows


def lever_table(report: "Report") -> Tabulated:
    """The effect of each lever alone."""
    heads = ["lever", "sequences", "batch", "tok/s", "change", "$/M tokens", "why"]
    return "Levers, each alone, at the same ITL or objective", heads, [_lever_row(lever, report) for lever in report.levers]


def _lever_row(lever: "Lever", report: "Report") -> list[str]:
    effect = lever.effect
    change = f"{effect.tokens_per_second / report.tokens_per_second - 1:+.0%}" if report.tokens_per_second else ""
    rate = f"{effect.tokens_per_second:,.0f}"
    return [lever.name, f"{effect.max_sequences:,}", f"{effect.batch:,}", rate, change, money(effect.cost), lever.note]


def _closing_lines(report: "Report") -> list[str]:
    split = report.phase_split
    lines = [
        f"Least devices for {report.users} × {report.context} tokens: {report.min_devices or 'more than 1,024'}.",
        f"Prefill and decode: {split.layout}; a prompt adds {milliseconds(split.interference)} to running streams, "
        f"moving its KV takes {milliseconds(split.transfer)}.",
    ]
    if report.price_per_hour is None:
        lines.append("Cost: no price is known for this device; give --price-per-hour.")
    elif report.cost_per_million_tokens is not None:
        lines.append(
            f"Cost: {money(report.cost_per_million_tokens)} per million output tokens at batch {report.recommended_batch}, "
            f"from ${report.price_per_hour:,.2f}/h ({report.price_seen})."
        )
    if report.recommended_batch == 0 and report.fits:
        lines.append("No batch meets the objective: relax --slo, take faster devices, or shard the model over more of them.")
    if report.self_hosting is not None:
        host = report.self_hosting
        even = f"{host.break_even_tokens_per_day:,.0f} tokens per day"
        lines.append(f"Against an API at ${host.api_price_per_million:g}/M: even at {even}; {host.advice}.")
    lines += [f"As traffic grows ({row.shape}): {row.symptom} → {row.action}." for row in report.scaling]
    return lines
