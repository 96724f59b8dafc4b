"""`ridgeline bench compare`: servers in turn on the same prompts, and by what ratio they differ. Owns the flags."""

from pathlib import Path
from typing import Annotated

import typer


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
