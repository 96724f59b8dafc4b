"""`ridgeline bench offline`: the engine alone, without HTTP, beside what the machine allows."""

from typing import Annotated

import typer

from ridgeline.cli.bench_compute import numbers, show_json, show_table


def offline(
    model: Annotated[str, typer.Argument(help="`demo`, a GGUF file, a model directory, or a name of the hub (org/name).")],
    batch: Annotated[str, typer.Option(help="Sequences at once, with commas: each is run.")] = "1,4,16",
    prompt_tokens: Annotated[int, typer.Option(help="Tokens of a prompt.")] = 128,
    output_tokens: Annotated[int, typer.Option(help="Tokens of an answer.")] = 64,
    repeats: Annotated[int, typer.Option(help="Runs of each batch size.")] = 3,
    runner: Annotated[str, typer.Option(help="auto, native or numpy.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="Threads [every processor that may be used].")] = None,
    kv_dtype: Annotated[str, typer.Option(help="KV cache: auto, bf16, f32 or int8.")] = "auto",
    depth: Annotated[int, typer.Option(help="Steps in flight.")] = 1,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Tokens in one step.")] = 512,
    hogs: Annotated[int, typer.Option(help="Run everything again beside so many foreign processes that take a processor each.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object: tokens, bytes, seconds.")] = False,
) -> None:
    """Run batches through the engine in this process: prompt and output tokens a second, and where a step's time goes."""
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
