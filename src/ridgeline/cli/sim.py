"""`ridgeline sim`, `whatif`, `replay` and `laws`: the real scheduler under a virtual clock, on simulated devices or a recording.

Owns the flags; `cli.scenarios` turns them into scenarios, `cli.sim_runs` runs these and prints the results.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from ridgeline.cli.sim_runs import SimulationRuns
    from ridgeline.sim.fleet.scenario import Scenario
    from ridgeline.sim.laws.swarm import Tally


TRACE_HELP = (
    "Recorded traffic: jsonl (Ridgeline's, Mooncake's) or csv (BurstGPT). Record it: `ridgeline serve MODEL --record FILE`, "
    "then `ridgeline replay FILE --trace trace.jsonl`."
)


def sim(
    model: Annotated[str, typer.Argument(help="A config.json, a GGUF file, a directory with one of them, `demo` or a known name.")],
    device: Annotated[str | None, typer.Option(help="Device of the planner's table [h100-sxm].")] = None,
    replicas: Annotated[int | None, typer.Option(help="Servers [1].")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests per second [1].")] = None,
    users: Annotated[int | None, typer.Option(help="Users of a closed loop, instead of a rate.")] = None,
    prompt: Annotated[str | None, typer.Option(help="Prompt tokens: 500, lognormal:500, uniform:500, exponential:500.")] = None,
    output: Annotated[str | None, typer.Option(help="Output tokens, the same way.")] = None,
    requests: Annotated[int | None, typer.Option(help="Requests to simulate [2000, or the whole trace].")] = None,
    sample: Annotated[float | None, typer.Option(help="Simulate this share of a diurnal day, in windows of all its hours.")] = None,
    trace: Annotated[Path | None, typer.Option(help=TRACE_HELP)] = None,
    slo: Annotated[str | None, typer.Option(help="Objective, for instance ttft=500ms,itl=50ms.")] = None,
    change: Annotated[list[str] | None, typer.Option("--set", help="Any other setting, name=value; a wrong name lists all.")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Runs with different seeds; two or more give intervals.")] = 1,
    find_replicas: Annotated[bool, typer.Option("--least-replicas", help="Also find the fewest replicas that meet the objective.")] = False,
    find_knee: Annotated[bool, typer.Option("--knee", help="Also find the rate from which latency grows faster than throughput.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object: seconds, tokens, dollars.")] = False,
    html: Annotated[Path | None, typer.Option(help="Also write a page with table and plots to this file; it needs no network.")] = None,
) -> None:
    """Simulate serving with the real scheduler: throughput, latency, queues, KV use and cost."""
    from ridgeline.cli.scenarios import describe_scenario, scenario_at_rate
    from ridgeline.cli.sim_runs import SimulationRuns

    settings, scenario = prepare_sim(locals())
    with SimulationRuns(seeds, quiet=as_json) as runs:
        runs.run("as set", scenario)
        runs.note_sample()
        runs.note_drafts()
        if find_replicas:
            runs.find_replicas(scenario)
        if find_knee:
            runs.find_knee(scenario_at_rate(model, settings, trace))
    _report(runs, html, as_json, describe_scenario(scenario, settings, trace))


SIM_FLAGS = ("device", "replicas", "rate", "users", "prompt", "output", "requests", "slo", "sample")
"""Flags of `sim` that are settings of a scenario."""


def prepare_sim(given: Mapping[str, Any]) -> "tuple[dict[str, str], Scenario]":
    """(settings, scenario) of the flags of `sim`, by parameter. Raises what is wrong with one of them."""
    from ridgeline.cli.output import check_writable
    from ridgeline.cli.scenarios import make_scenario, parse_changes, scenario_at_rate

    settings = {name: str(given[name]) for name in SIM_FLAGS if given[name] is not None}
    if given["users"] is not None or given["sample"] is not None:
        settings["arrivals"] = "closed" if given["users"] is not None else "diurnal"
    settings |= parse_changes(given["change"] or [])
    check_writable(given["html"])
    scenario = make_scenario(given["model"], settings, given["trace"])
    scenario.check()
    if given["find_knee"]:
        scenario_at_rate(given["model"], settings, given["trace"])
    return settings, scenario


def _report(runs: "SimulationRuns", html: Path | None, as_json: bool, scenario: list[str]) -> None:
    """Writes the page, if asked for, and prints the table or its JSON."""
    from ridgeline.cli.output import write_page
    from ridgeline.cli.sim_runs import print_runs

    if html is not None:
        from ridgeline.sim.fleet.experiment import runs_page

        write_page(html, runs_page(runs.as_dict(), runs.table(), runs.notes))
    if as_json:
        print(json.dumps(runs.as_dict(), ensure_ascii=False))
    else:
        print_runs(runs, scenario)


def whatif(
    trace: Annotated[Path, typer.Argument(help=TRACE_HELP)],
    model: Annotated[
        str | None, typer.Option(help="A config.json, a GGUF file, a directory, `demo` or a known name [the incident's, or demo].")
    ] = None,
    today: Annotated[
        list[str] | None, typer.Option("--today", help="A setting as it is now, name=value [the incident's, or as `serve` has it here].")
    ] = None,
    change: Annotated[list[str] | None, typer.Option("--set", help="A setting to try, name=value; a wrong name lists all.")] = None,
    replicas: Annotated[int | None, typer.Option(help="Servers to try.")] = None,
    slo: Annotated[str | None, typer.Option(help="Objective, for instance ttft=500ms,itl=50ms.")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Runs with different seeds, for intervals.")] = 3,
    levers: Annotated[bool, typer.Option(help="Name the bottleneck and try the levers, best first.")] = True,
    find_replicas: Annotated[bool, typer.Option("--least-replicas", help="Also find the fewest replicas that meet the objective.")] = False,
    find_knee: Annotated[bool, typer.Option("--knee", help="Also find the rate from which latency grows faster than throughput.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object: seconds, tokens, dollars.")] = False,
    html: Annotated[Path | None, typer.Option(help="Also write a page with table and plots to this file; it needs no network.")] = None,
) -> None:
    """Try other settings on recorded traffic, with the real scheduler, and compare with today's."""
    from ridgeline.cli.scenarios import describe_scenario, make_scenario, scenario_at_rate
    from ridgeline.cli.sim_runs import SimulationRuns
    from ridgeline.sim.fleet.experiment import candidate_levers

    model, base, changed, now, then = prepare_whatif(locals())
    with SimulationRuns(seeds, quiet=as_json) as runs:
        runs.run("today", now)
        if changed:
            runs.run(" ".join(f"{name}={value}" for name, value in changed.items()), then)
            if then.knobs.num_speculative_tokens and changed.keys() & {"num_speculative_tokens", "acceptance", "draft_model"}:
                runs.note_speculation()
        if levers:
            runs.try_levers(lambda settings: make_scenario(model, base | settings, trace), candidate_levers(now))
        if find_knee:
            runs.find_knee(scenario_at_rate(model, base | changed, trace))
        if find_replicas:
            runs.find_replicas(then)
    _report(runs, html, as_json, describe_scenario(now, base, trace))


def prepare_whatif(given: Mapping[str, Any]) -> "tuple[str, dict[str, str], dict[str, str], Scenario, Scenario]":
    """(model, settings of today, those to change, scenario of today, with the changes) of the flags of `whatif`, by parameter.

    Raises what is wrong with one of them.
    """
    from ridgeline.cli.output import check_writable
    from ridgeline.cli.scenarios import incident_settings, make_scenario, parse_changes, scenario_at_rate
    from ridgeline.planning.arguments import THIS_MACHINE

    trace = Path(given["trace"])
    served, recorded = incident_settings(trace)
    model = given["model"] or served or "demo"
    base = recorded | {"device": THIS_MACHINE} | ({} if given["slo"] is None else {"slo": given["slo"]})
    base |= parse_changes(given["today"] or [], "--today")
    changed = parse_changes(given["change"] or []) | ({} if given["replicas"] is None else {"replicas": str(given["replicas"])})
    check_writable(given["html"])
    now = make_scenario(model, base, trace)
    then = make_scenario(model, base | changed, trace) if changed else now
    for scenario in (now, then):
        scenario.check()
    if given["find_knee"]:
        scenario_at_rate(model, base | changed, trace)
    return model, base, changed, now, then


def replay(
    recording: Annotated[Path, typer.Argument(help="A recording of `ridgeline serve MODEL --record FILE`, or a folder of an incident.")],
    trace: Annotated[Path | None, typer.Option(help="Write the requests here, for `sim --trace` and `whatif`: lengths, never ids.")] = None,
    step_log: Annotated[Path | None, typer.Option(help="Write the steps to this file, for `sim --set step_time=FILE`.")] = None,
) -> None:
    """Replay a recording with this version's scheduler and compare the decisions; of an incident, which has no ids, the times."""
    from ridgeline.cli.main import fail
    from ridgeline.sim.fleet import replay as recorded

    if recording.is_dir():
        if trace is not None or step_log is not None:
            raise ConfigError(f"an incident has trace and steps already: {recording}", fix={"--trace": None, "--step-log": None})
        replay_incident(recording)
        return
    compared, difference = recorded.replay(recording)
    if trace is not None:
        _write(trace, [{name: getattr(each, name) for name in ("time", "prompt", "output", "prefix", "shared")}
                       for each in recorded.read_arrivals(recording)])  # fmt: skip
    if step_log is not None:
        steps = recorded.read_step_log(recording)
        _write(step_log, [asdict(each) for each in steps])
    if difference is not None:
        fail(f"decision {difference.number} differs: recorded {difference.recorded!r:.200}, replayed {difference.replayed!r:.200}")
    print(f"{compared} decisions, all as recorded")


def replay_incident(folder: Path) -> None:
    """Simulates the requests of an incident with its settings and step times, and prints that beside what had been measured. Raises
    ConfigError."""
    from ridgeline.cli.investigate import read_incident
    from ridgeline.cli.scenarios import describe_scenario
    from ridgeline.cli.sim_runs import SimulationRuns

    told = read_incident(folder)
    unset = dict.fromkeys(("model", "slo", "today", "change", "replicas", "html", "find_knee"))
    _, settings, _, scenario, _ = prepare_whatif({"trace": folder, **unset})
    with SimulationRuns(1, quiet=False) as runs:
        runs.run("replayed", scenario)
    for name, title in (("ttft", "TTFT"), ("total", "E2E")):
        if part := told.get(name):
            p50, p95 = (part[share] / 1e3 for share in ("p50_ms", "p95_ms"))
            runs.notes.append(f"{title} as it was, of the {part['requests']} requests that had ended: p50 {p50:.3g} s, p95 {p95:.3g} s.")
    _report(runs, None, False, describe_scenario(scenario, settings, folder))


def _write(path: Path, entries: list[dict[str, float]]) -> None:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")


def laws(
    steps: Annotated[int, typer.Option(min=1, max=1_000_000_000, help="Engine steps to simulate, over all seeds.")] = 100_000,
    seed: Annotated[int, typer.Option(min=0, max=2**62, help="First seed; a violation names the seed that repeats it.")] = 0,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Processes.")] = 2,
) -> None:
    """Simulate the engine in many small random worlds and check every law after every step."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from ridgeline.sim.laws.swarm import run_swarm

    console = Console(highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("simulating", total=steps)
        total = run_swarm(seed, steps, workers, lambda done: progress.advance(bar, done))
    _print_tally(console, total)
    console.print(f"steps {total.steps} violations {len(total.violations)}")
    if total.violations:
        raise typer.Exit(1)


def _print_tally(console: "Console", total: "Tally") -> None:
    from rich.table import Table

    from ridgeline.sim.laws.coverage import SITUATIONS

    table = Table("situation", "times", box=None, pad_edge=False)
    table.columns[1].justify = "right"
    for situation in SITUATIONS:
        table.add_row(situation, f"{total.situation_counts[situation]:,}" if total.situation_counts[situation] else "never")
    console.print(table)
    console.print(
        f"{total.seeds:,} seeds, {total.rows / max(total.steps, 1):.1f} sequences per step, "
        f"{total.seeds_with_groups / max(total.seeds, 1):.0%} of seeds with several KV groups, "
        f"{total.seeds_with_preemption / max(total.seeds, 1):.0%} with preemption",
        soft_wrap=True,
    )
    for broken in total.violations[:20]:
        console.print(f"seed {broken.seed} step {broken.step}: {broken.message}", soft_wrap=True, markup=False)
        console.print(f"  repeat it: ridgeline laws --seed {broken.seed} --steps {broken.step + 1} --workers 1", soft_wrap=True)
