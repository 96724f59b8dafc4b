"""Runs of the simulator: progress on stderr, then a table with one column per scenario. Owns rounding and units."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ridgeline.sim.fleet.experiment import (
    Interval,
    LeverResult,
    compute_intervals,
    find_bottleneck,
    find_min_replicas,
    mean_curves,
    rank_levers,
    search_knee,
)
from ridgeline.sim.fleet.measures import CURVE_SHARES, SimulationReport
from ridgeline.sim.fleet.scenario import Scenario

TIMED_REQUESTS = 50
"""Requests of the runs that measure how much longer a simulation with drafts takes."""
FLOOD_RATE = 1e5
"""Requests per second beyond the capacity of any fleet."""

SECONDS, RATE, SHARE, COUNT, MONEY = "s", "/s", "%", "", "$"
ROWS: dict[str, tuple[str, str]] = {
    "requests": ("requests answered", COUNT), "rejected": ("requests rejected", COUNT),
    "aborted": ("requests aborted", COUNT), "seconds": ("simulated time", SECONDS),
    "output_tokens_per_second": ("output tokens", RATE), "requests_per_second": ("requests", RATE),
    "goodput_tokens": ("goodput, useful tokens", RATE), "goodput_requests": ("goodput, requests within the objective", RATE),
    "met": ("requests within the objective", SHARE),
    "ttft.p50": ("TTFT p50", SECONDS), "ttft.p90": ("TTFT p90", SECONDS), "ttft.p99": ("TTFT p99", SECONDS),
    "itl.p50": ("ITL p50", SECONDS), "itl.p99": ("ITL p99", SECONDS), "tpot.p50": ("TPOT p50", SECONDS), "tpot.p99": ("TPOT p99", SECONDS),
    "e2e.p50": ("E2E p50", SECONDS), "e2e.p99": ("E2E p99", SECONDS),
    "queue.mean": ("queue, mean", SECONDS), "queue.p99": ("queue p99", SECONDS),
    "background.p50": ("background E2E p50", SECONDS), "background.p99": ("background E2E p99", SECONDS),
    "running": ("running sequences, mean", COUNT), "waiting": ("waiting sequences, mean", COUNT), "kv_use": ("KV cache usage, mean", SHARE),
    "cached_share": ("prompt tokens from the prefix cache", SHARE), "preemptions": ("preemptions", COUNT),
    "utilisation": ("time computing", SHARE), "replica_seconds": ("replica seconds", SECONDS),
    "cost": ("cost per million output tokens", MONEY),
}  # fmt: skip
"""Metric → label and unit."""


@dataclass(frozen=True, slots=True)
class Run:
    """One scenario with a report per seed."""

    name: str
    scenario: Scenario
    reports: list[SimulationReport]

    @property
    def intervals(self) -> dict[str, Interval]:
        """Interval of every metric over the seeds."""
        return compute_intervals(self.reports)


class SimulationRuns(AbstractContextManager["SimulationRuns"]):
    """Runs of scenarios, notes and search results, with a progress bar on stderr."""

    def __init__(self, seeds: int, quiet: bool) -> None:
        self.seeds = range(1, seeds + 1)
        self.done: list[Run] = []
        self.notes: list[str] = []
        self.results: dict[str, Any] = {}
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True, disable=quiet)
        self._bar.start()

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def run(self, name: str, scenario: Scenario) -> Run:
        """Simulates the scenario with every seed."""
        reports = []
        for seed in self.seeds:
            task = self._bar.add_task(f"{name}, run {seed} of {len(self.seeds)}", total=scenario.requests)

            def advance(answered: int, task: Any = task) -> None:
                self._bar.update(task, completed=answered)

            reports.append(scenario.run(seed, advance))
            self._bar.remove_task(task)
        self.done.append(Run(name, scenario, reports))
        return self.done[-1]

    def note_drafts(self) -> None:
        """Adds a note on how much longer a simulation with drafts takes, measured on short runs."""
        scenario = self.done[0].scenario
        if not scenario.knobs.num_speculative_tokens:
            return
        short, seconds = replace(scenario, requests=min(scenario.requests, TIMED_REQUESTS), sample=None), []
        for knobs in (scenario.knobs, replace(scenario.knobs, num_speculative_tokens=0)):
            began = perf_counter()
            replace(short, knobs=knobs).run(1)
            seconds.append(perf_counter() - began)
        self.notes.append(f"With drafts no step is skipped: the simulation takes {seconds[0] / seconds[1]:.1f} times as long.")

    def note_sample(self) -> None:
        """Adds a note on a sample's size and error."""
        first = self.done[0]
        if first.scenario.sample is None:
            return
        sample, counted = first.scenario.sample, sum(report.requests for report in first.reports)
        of = round(first.scenario.requests / sample.share)
        error = "95 % intervals over the seeds are its error" if len(first.reports) > 1 else "its error needs --seeds 2 or more"
        self.notes.append(f"A sample: {counted:,} requests counted, of days of {of:,}, in {sample.parts} windows per day; {error}.")

    def try_levers(self, changed: Callable[[dict[str, str]], Scenario], levers: dict[str, dict[str, str]]) -> None:
        """Runs every lever on the first run's requests, sorts them by gain and notes the bottleneck."""
        today = self.done[0]
        tried = []
        for name, settings in levers.items():
            run = self.run(name, changed(settings))
            tried.append(LeverResult(name, run.reports[0], _num_devices(run.scenario) / _num_devices(today.scenario)))
        best = rank_levers(today.reports[0], tried, today.scenario.objective.ttft is not None or today.scenario.objective.itl is not None)
        order = {lever.name: number for number, lever in enumerate(best)}
        self.done.sort(key=lambda run: order.get(run.name, -1))
        self.results |= {"binding": find_bottleneck(today.scenario, today.reports[0]), "levers": [lever.name for lever in best]}
        self.notes.append(f"Bottleneck today: {self.results['binding']}. The lever with the largest gain per device: {best[0].name}.")

    def find_replicas(self, scenario: Scenario) -> None:
        """Finds the fewest replicas with which 99 % of requests meet the objective."""
        found = self.results["least_replicas"] = find_min_replicas(scenario, self.seeds)
        text = f"{found} replicas are the fewest" if found else "no number of replicas up to 1,024 is enough"
        self.notes.append(f"{text} with which 99 % of requests meet the objective.")

    def find_knee(self, scenario_at: Callable[[float], Scenario]) -> None:
        """Finds the rate of the knee, from an eighth of the capacity of a flooded fleet up, and beyond where the best rate is at an end."""
        capacity = scenario_at(FLOOD_RATE).run(self.seeds[0]).requests_per_second
        knee = search_knee(scenario_at, capacity, self.seeds[0])
        self.results |= {"knee_rate": knee.rate, "knee_inside": knee.is_inside}
        self.results["knee_curve"] = [
            {"rate": rate, "tokens_per_second": report.output_tokens_per_second, "e2e": report.e2e.mean} for rate, report in knee.curve
        ]
        if knee.is_inside:
            self.notes.append(f"The knee is at {knee.rate:.3g} requests/s; flooded, the fleet answers {capacity:.3g}.")
        else:
            tried, count = f"{knee.curve[0][0]:.3g} … {knee.curve[-1][0]:.3g}", knee.curve[0][1].requests
            self.notes.append(
                f"No knee at {tried} requests/s: throughput over latency is best at {knee.rate:.3g}, the end of what was tried. "
                f"{count} requests do not fill the fleet; take more (--requests, or a longer trace)."
            )

    def as_dict(self) -> dict[str, Any]:
        """A dict for JSON."""
        return {
            "shares": CURVE_SHARES,
            "runs": [
                {"name": run.name, **{name: asdict(each) for name, each in run.intervals.items()}, "curves": mean_curves(run.reports)}
                for run in self.done
            ],
            **self.results,
        }

    def table(self) -> list[list[str]]:
        """One row per metric: its label, then each run's value as text."""
        found = [run.intervals for run in self.done]
        return [
            [label, *[_format_interval(each[name], unit) if name in each else "–" for each in found]]
            for name, (label, unit) in ROWS.items()
            if any(name in each for each in found)
        ]


def _num_devices(scenario: Scenario) -> int:
    return (scenario.replicas + scenario.decode_replicas) * scenario.deployment.layout.ranks


def print_runs(runs: SimulationRuns) -> None:
    """Prints a table of the runs, then the notes."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=60 + 24 * len(runs.done))
    table = Table(title="simulated with the real scheduler", title_justify="left")
    table.add_column("")
    for run in runs.done:
        table.add_column(run.name, justify="right")
    for row in runs.table():
        table.add_row(*row)
    console.print(table)
    for note in runs.notes:
        console.print(note)


def _format_interval(value: Interval, unit: str) -> str:
    """A value with its interval."""
    text = _format_value(value.mean, unit)
    return text if not value.half else f"{text} ± {_format_value(value.half, unit)}"


def _format_value(value: float, unit: str) -> str:
    if unit == SECONDS:
        return f"{value * 1e3:,.1f} ms" if value < 1 else f"{value:,.2f} s"
    if unit == SHARE:
        return f"{value:.1%}"
    return f"${value:,.3f}" if unit == MONEY else f"{value:,.1f}{unit}"
