"""`ridgeline bench serve`: load on an OpenAI-compatible server, and what its users see. Owns the flags, and where results go."""

from pathlib import Path
from typing import Annotated

import typer


def serve(
    url: Annotated[str, typer.Option(help="Where the server is.")] = "http://127.0.0.1:8000",
    model: Annotated[str | None, typer.Option(help="Name of the model [the first that the server lists].")] = None,
    requests: Annotated[int | None, typer.Option(min=1, max=100_000, help="Requests of each run [100, or the whole trace].")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.1, max=86_400, help="Send nothing new after so long.")] = None,
    streams: Annotated[str | None, typer.Option(help="Closed loop of so many streams [1]; 1,4,16: runs after each other.")] = None,
    rate: Annotated[str | None, typer.Option(help="Open loop of so many requests per second, or several; --streams then limits.")] = None,
    arrivals: Annotated[str, typer.Option(help="Of the open loop: poisson, bursty, diurnal, or burst (all at once).")] = "poisson",
    input_len: Annotated[str, typer.Option(help="Prompt tokens: 127, 20-1000, lognormal:500, uniform:500, exponential:500.")] = "127",
    output_len: Annotated[str, typer.Option(help="Output tokens, the same way.")] = "64",
    shared_prefix: Annotated[int, typer.Option(min=0, max=1 << 20, help="Leading prompt tokens that requests share.")] = 0,
    prefixes: Annotated[int, typer.Option(min=1, max=1 << 20, help="How many different ones of these there are.")] = 1,
    trace: Annotated[Path | None, typer.Option(help="Recorded traffic: jsonl (Ridgeline's, Mooncake's) or csv (BurstGPT).")] = None,
    speed: Annotated[float, typer.Option(help="Play the trace so many times as fast.")] = 1.0,
    warm_up: Annotated[int, typer.Option(min=0, max=10_000, help="Requests before each run that do not count.")] = 1,
    slo: Annotated[str | None, typer.Option(help="Objective, for instance ttft=500ms,itl=50ms.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Ask for all output tokens, whatever the model says.")] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**31, help="Of prompts and arrivals [drawn, so that no cache knows them].")
    ] = None,
    api: Annotated[str, typer.Option(help="completions or chat.")] = "completions",
    api_key: Annotated[str | None, typer.Option(help="Bearer token.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, max=86_400, help="Seconds that an answer may take.")] = 600.0,
    extra_body: Annotated[str | None, typer.Option(help='Further fields of each request, as JSON: {"temperature": 1}.')] = None,
    as_json: Annotated[Path | None, typer.Option("--json", help="Write everything to this file, each request too; - is stdout.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with table and plots to this file; it needs no network.")] = None,
) -> None:
    """Put load on an OpenAI-compatible server and measure what its users see."""
    from ridgeline.bench.session import Manner
    from ridgeline.cli.bench_runs import Asked, Runs, check_json, drawn_seed, loads_of, parse_api, parse_body, write_json
    from ridgeline.cli.output import check_page, write_page
    from ridgeline.planning.arguments import parse_objective

    number = drawn_seed() if seed is None else seed
    manner = Manner(parse_api(api), model, api_key, timeout, ignore_eos, parse_body(extra_body))
    asked = Asked(requests, seconds, streams, rate, arrivals, input_len, output_len, shared_prefix, prefixes, trace, speed, number)
    runs = Runs(url, manner, number, parse_objective(slo))
    loads = loads_of(asked)
    check_page(html)
    check_json(as_json)
    runs.run(loads, warm_up)
    if html is not None:
        write_page(html, runs.page())
    write_json(as_json, runs.as_dict())
    if str(as_json) != "-":
        runs.show()
    if not runs.answered:
        raise typer.Exit(1)
