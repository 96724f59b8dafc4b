"""`ridgeline plan`: what a model needs and yields on given devices, from physics, before anything is downloaded."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ridgeline.planning.report import Report


def plan(
    model: Annotated[str, typer.Argument(help="A config.json, a GGUF file, a directory with one of them, `demo` or a known name.")],
    device: Annotated[str, typer.Option(help="Name of a device; a wrong one lists all.")] = "h100-sxm",
    count: Annotated[int, typer.Option(help="Devices in all.")] = 1,
    dtype: Annotated[str | None, typer.Option(help="Weight format: bf16, fp8, int8, int4, awq, q4_k … [as stored].")] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="KV cache: f32, f16, bf16, fp8, int8, int4 [f16].")] = None,
    context: Annotated[int | None, typer.Option(help="Tokens of a sequence, prompt and output [4096].")] = None,
    users: Annotated[int | None, typer.Option(help="Sequences at once [1; then the batch to run is the knee's].")] = None,
    slo: Annotated[str | None, typer.Option(help="Objective, for instance ttft=500ms,itl=50ms.")] = None,
    workload: Annotated[str | None, typer.Option(help="Average request: in=2000,out=500,prefix=0.5,burst=3; or a recorded trace.")] = None,
    tensor_parallel_size: Annotated[int | None, typer.Option(help="Devices over which matrices are cut [automatic].")] = None,
    pipeline_parallel_size: Annotated[int | None, typer.Option(help="Stages of layers [automatic].")] = None,
    expert_parallel_size: Annotated[int | None, typer.Option(help="Devices over which a mixture's experts are spread [1].")] = None,
    memory_utilization: Annotated[float, typer.Option(help="Share of a device's memory that may be used.")] = 0.90,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Tokens in one step.")] = 2048,
    memory: Annotated[float | None, typer.Option(help="GB of memory of a device, instead of the table's.")] = None,
    bandwidth: Annotated[float | None, typer.Option(help="GB/s of memory bandwidth, instead of the table's.")] = None,
    tflops: Annotated[float | None, typer.Option(help="TFLOP/s of matrix products, instead of the table's.")] = None,
    price_per_hour: Annotated[float | None, typer.Option(help="Dollars an hour for one device, instead of the table's.")] = None,
    api_price: Annotated[float | None, typer.Option(help="Dollars a million tokens that an API asks, for the break-even.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object: bytes, seconds, dollars.")] = False,
    html: Annotated[Path | None, typer.Option(help="Also write a page with sliders and plots to this file; it needs no network.")] = None,
) -> None:
    """Say what a model needs and yields on given devices, before anything is downloaded."""
    from ridgeline.cli.workloads import workload_of
    from ridgeline.config.env import cache_directory
    from ridgeline.facts.headers.read import describe_model
    from ridgeline.planning.arguments import Question, api_price_of, deployment_of, parse_objective
    from ridgeline.planning.report import make_report

    words, longest = workload_of(workload)
    asked = Question(
        device=device,
        count=count,
        dtype=dtype,
        kv_dtype=kv_dtype,
        context=longest if context is None else context,
        users=users,
        workload=words,
        tensor=tensor_parallel_size,
        pipeline=pipeline_parallel_size,
        expert=expert_parallel_size,
        utilisation=memory_utilization,
        chunk=max_num_batched_tokens,
        memory_gb=memory,
        bandwidth_gb=bandwidth,
        tflops=tflops,
        price=price_per_hour,
    )
    objective = parse_objective(slo)
    deployment = deployment_of(describe_model(model, cache_directory()), asked)
    report = make_report(deployment, objective, users is not None, api_price_of(api_price))
    if html is not None:
        from ridgeline.cli.pages import write_page
        from ridgeline.planning.page import plan_page

        write_page(html, plan_page(deployment, objective, users is not None))
    _tell(report, as_json)


def _tell(report: "Report", as_json: bool) -> None:
    if as_json:
        print(json.dumps(report.as_dict(), ensure_ascii=False))
        return
    from ridgeline.cli.plan_tables import show

    show(report)
