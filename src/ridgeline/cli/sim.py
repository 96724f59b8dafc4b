"""`ridgeline sim`: the real scheduler under a virtual clock, on devices that only take time. Says what users would see."""

import json
from pathlib import Path
from typing import Annotated

import typer


def sim(
    model: Annotated[str, typer.Argument(help="A config.json, a GGUF file, a directory with one of them, `demo` or a known name.")],
    device: Annotated[str | None, typer.Option(help="Device of the planner's table [h100-sxm].")] = None,
    replicas: Annotated[int | None, typer.Option(help="Servers [1].")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests a second [1].")] = None,
    users: Annotated[int | None, typer.Option(help="Users who wait for their answers, instead of a rate.")] = None,
    prompt: Annotated[str | None, typer.Option(help="Prompt tokens: 500, lognormal:500, uniform:500, exponential:500.")] = None,
    output: Annotated[str | None, typer.Option(help="Output tokens, the same way.")] = None,
    requests: Annotated[int | None, typer.Option(help="Requests to simulate [2000, or the whole trace].")] = None,
    sample: Annotated[float | None, typer.Option(help="Simulate this share of a diurnal day, in windows of all its hours.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Recorded traffic: jsonl (ours, Mooncake) or csv (BurstGPT).")] = None,
    slo: Annotated[str | None, typer.Option(help="Objective, for instance ttft=500ms,itl=50ms.")] = None,
    change: Annotated[list[str] | None, typer.Option("--set", help="Any other setting, name=value; a wrong name lists all.")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Runs with different chance; from two on intervals are given.")] = 1,
    find_replicas: Annotated[bool, typer.Option("--least-replicas", help="Also find the fewest replicas that meet the objective.")] = False,
    find_knee: Annotated[bool, typer.Option("--knee", help="Also find the rate from which latency grows faster than throughput.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object: seconds, tokens, dollars.")] = False,
    html: Annotated[Path | None, typer.Option(help="Also write a page with table and plots to this file; it needs no network.")] = None,
) -> None:
    """Simulate serving with the real scheduler: throughput, latency, queues, KV use and cost."""
    from ridgeline.cli.pages import check_page, write_page
    from ridgeline.cli.scenarios import at_rate, parse_changes, scenario_of
    from ridgeline.cli.sim_tables import Runs, show

    flags = {"device": device, "replicas": replicas, "rate": rate, "users": users, "prompt": prompt, "output": output}
    flags |= {"requests": requests, "slo": slo, "sample": sample}
    flags |= {"arrivals": "closed" if users is not None else "diurnal" if sample is not None else None}
    given = {name: str(value) for name, value in flags.items() if value is not None}
    settings = given | parse_changes(change or [])
    check_page(html)
    with Runs(seeds, quiet=as_json) as runs:
        scenario = scenario_of(model, settings, trace)
        runs.run("as set", scenario)
        runs.tell_sample()
        if find_replicas:
            runs.find_replicas(scenario)
        if find_knee:
            runs.find_knee(at_rate(model, settings, trace))
    if html is not None:
        from ridgeline.sim.fleet.page import runs_page

        write_page(html, runs_page(runs.as_dict(), runs.table(), runs.notes))
    if as_json:
        print(json.dumps(runs.as_dict(), ensure_ascii=False))
    else:
        show(runs)
