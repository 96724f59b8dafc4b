"""`ridgeline bench serve` and `compare`: load on OpenAI-compatible servers, what their users see, and by what ratio servers differ.

Owns the flags.
"""

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


def compare(
    servers: Annotated[
        list[str],
        typer.Argument(
            help='Two or more, Ridgeline first: http://HOST:PORT, "KIND:MODEL [FLAGS]" or "cmd:COMMAND {port}"; NAME=… names one.'
        ),
    ],
    scenarios: Annotated[str | None, typer.Option(help="Names with commas [all]; a wrong name lists them.")] = None,
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Rounds, each of every scenario and server; intervals need five.")] = 5,
    starts: Annotated[int, typer.Option(min=1, max=100, help="Starts of each server, for the time to its first token.")] = 5,
    restart: Annotated[bool, typer.Option("--restart", help="Start and stop for every turn: only one server is in memory.")] = False,
    within: Annotated[float | None, typer.Option(min=1, max=86_400, help="Seconds: no further round that would end later.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="Threads of servers started here [CPU cores].")] = None,
    program: Annotated[list[str] | None, typer.Option(help="Where a kind's program is, KIND=PATH, if not on the PATH.")] = None,
    model: Annotated[str | None, typer.Option(help="Name of the model, for all [the first that each server lists].")] = None,
    api: Annotated[str, typer.Option(help="completions or chat.")] = "completions",
    api_key: Annotated[str | None, typer.Option(help="Bearer token, for all.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, max=86_400, help="Seconds that an answer may take.")] = 600.0,
    extra_body: Annotated[str | None, typer.Option(help="Further fields of each request, as JSON.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=2**31, help="Of prompts and arrivals [drawn].")] = None,
    roofline: Annotated[Path | None, typer.Option(help="JSON of `bench roofline`: figures are shown beside what it allows.")] = None,
    shape: Annotated[str | None, typer.Option(help="Model whose size counts for that [that of the first server, if started here].")] = None,
    as_json: Annotated[Path | None, typer.Option("--json", help="Write everything to this file, each round too; - is stdout.")] = None,
) -> None:
    """Measure servers in turn, on the same prompts, and say by what ratio they differ."""
    from ridgeline.bench.compare import Course
    from ridgeline.bench.scenarios import parse_scenarios
    from ridgeline.bench.session import Manner
    from ridgeline.cli.bench_runs import check_json, drawn_seed, parse_api, parse_body, write_json
    from ridgeline.cli.bench_table import Comparing, ceilings_of, show, specs_of

    number = drawn_seed() if seed is None else seed
    start, chosen = parse_scenarios(scenarios)
    specs = specs_of(servers, chosen, threads, program or [])
    manner = Manner(parse_api(api), model, api_key, timeout, True, parse_body(extra_body))
    limits = ceilings_of(chosen, roofline, shape, servers[0], threads)
    check_json(as_json)
    comparing = Comparing(specs, chosen, Course(rounds, starts if start else 0, restart, within), number, limits)
    kept = as_json if str(as_json) != "-" else None
    whole = comparing.run(manner, lambda: write_json(kept, comparing.as_dict()))
    write_json(as_json, comparing.as_dict())
    if str(as_json) != "-":
        show(comparing)
    if not whole:
        raise KeyboardInterrupt
    if not comparing.answered:
        raise typer.Exit(1)
