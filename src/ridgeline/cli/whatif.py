"""`ridgeline whatif`: one stream of requests through today's settings and through changed ones, side by side."""

import json
from pathlib import Path
from typing import Annotated

import typer


def whatif(
    trace: Annotated[Path, typer.Argument(help="Recorded traffic: jsonl (ours, Mooncake) or csv (BurstGPT).")],
    model: Annotated[str, typer.Option(help="A config.json, a GGUF file, a directory, `demo` or a known name.")] = "demo",
    today: Annotated[list[str] | None, typer.Option("--today", help="A setting as it is now, name=value.")] = None,
    change: Annotated[list[str] | None, typer.Option("--set", help="A setting to try, name=value; a wrong name lists all.")] = None,
    replicas: Annotated[int | None, typer.Option(help="Servers to try.")] = None,
    slo: Annotated[str | None, typer.Option(help="Objective, for instance ttft=500ms,itl=50ms.")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Runs with different chance, for intervals.")] = 3,
    levers: Annotated[bool, typer.Option(help="Say which resource binds and try the levers that follow, best first.")] = True,
    find_replicas: Annotated[bool, typer.Option("--least-replicas", help="Also find the fewest replicas that meet the objective.")] = False,
    find_knee: Annotated[bool, typer.Option("--knee", help="Also find the rate from which latency grows faster than throughput.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object: seconds, tokens, dollars.")] = False,
    html: Annotated[Path | None, typer.Option(help="Also write a page with table and plots to this file; it needs no network.")] = None,
) -> None:
    """Try other settings on recorded traffic, with the real scheduler, beside today's."""
    from ridgeline.cli.pages import check_page, write_page
    from ridgeline.cli.scenarios import at_rate, parse_changes, scenario_of
    from ridgeline.cli.sim_tables import Runs, show
    from ridgeline.sim.fleet.levers import candidates

    objective = {} if slo is None else {"slo": slo}
    base = objective | parse_changes(today or [])
    changed = parse_changes(change or []) | ({} if replicas is None else {"replicas": str(replicas)})
    check_page(html)
    with Runs(seeds, quiet=as_json) as runs:
        now = scenario_of(model, base, trace)
        runs.run("today", now)
        if changed:
            runs.run(" ".join(f"{name}={value}" for name, value in changed.items()), scenario_of(model, base | changed, trace))
        if levers:
            runs.try_levers(lambda settings: scenario_of(model, base | settings, trace), candidates(now))
        if find_knee:
            runs.find_knee(at_rate(model, base | changed, trace))
        if find_replicas:
            runs.find_replicas(scenario_of(model, base | changed, trace))
    if html is not None:
        from ridgeline.sim.fleet.page import runs_page

        write_page(html, runs_page(runs.as_dict(), runs.table(), runs.notes))
    if as_json:
        print(json.dumps(runs.as_dict(), ensure_ascii=False))
    else:
        show(runs)
