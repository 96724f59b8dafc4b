"""Runs of the simulator: progress on stderr, then tables: a column per scenario, a row per lever. Owns rounding and units."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ridgeline.cli.output import print_notes, print_table
from ridgeline.planning.objectives import Objective
from ridgeline.sim.fleet.experiment import (
    Interval,
    LeverResult,
    compute_intervals,
    find_bottleneck,
    find_min_replicas,
    lever_gain,
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
    "output_tokens_per_second": ("throughput, output tokens", RATE), "requests_per_second": ("throughput, requests", RATE),
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
OF_OBJECTIVES = ("goodput_requests", "met")
OF_BACKGROUND = ("background.p50", "background.p99")
"""Metrics that only a scenario with an objective, or with background requests, has."""
LONGEST_HEAD = 24
"""Characters of the name of a run above its column."""
LEAST_GAIN = 1.02
"""Gain from which a lever is worth a word."""


@dataclass(frozen=True, slots=True)
class Run:
    """One scenario with a report per seed."""

    name: str
    scenario: Scenario
    reports: list[SimulationReport]

    @property
    def has_objective(self) -> bool:
        """True if the scenario has an objective."""
        return self.scenario.objective != Objective()

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
        self.levers: dict[str, float] = {}
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        console = Console(stderr=True)
        self._bar = Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)
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

    def note_speculation(self) -> None:
        """Adds a note on whether the drafts of the second run, of which the first has fewer, others or none, shorten its requests."""
        today, then = self.done[:2]
        knobs = then.scenario.knobs
        gain = sum(each.e2e.mean for each in today.reports) / max(1e-9, sum(each.e2e.mean for each in then.reports))
        self.results["speculation_gain"] = gain
        verdict = "helps" if gain > LEAST_GAIN else "does not help" if gain * LEAST_GAIN > 1 else "hurts"
        drafts = f"With up to {knobs.num_speculative_tokens} drafts per step, {knobs.acceptance:.0%} of them right"
        self.notes.append(f"{drafts}, mean E2E latency today over that of the changed settings is {gain:.2f}: speculation {verdict}.")

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
        best = rank_levers(today.reports[0], tried, today.has_objective)
        order = {lever.name: number for number, lever in enumerate(best)}
        self.done.sort(key=lambda run: order.get(run.name, -1))
        self.levers = {lever.name: lever_gain(today.reports[0], lever, today.has_objective) for lever in best}
        self.results |= {"bottleneck": find_bottleneck(today.reports[0]), "levers": [lever.name for lever in best]}
        name, gain = next(iter(self.levers.items()))
        helps = f"What helps most, per device: {name}, {gain:.2f} × ({self.gain_text})."
        none = f"No lever gains {LEAST_GAIN - 1:.0%} per device ({self.gain_text})."
        self.notes.append(f"Bottleneck today: {self.results['bottleneck']}. {helps if gain >= LEAST_GAIN else none}")

    @property
    def gain_text(self) -> str:
        """The gain of a lever, in words."""
        of_objective = ", times requests within the objective over today's" if self.done[0].has_objective else ""
        return f"mean E2E latency today over the lever's{of_objective}"

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
                {
                    "name": run.name,
                    **{name: asdict(each) for name, each in run.intervals.items()},
                    "curves": mean_curves([each.curves for each in run.reports]),
                    "over_time": mean_curves([each.over_time for each in run.reports]),
                }
                for run in self.done
            ],
            **self.results,
        }

    def table(self, runs: Sequence[Run] | None = None) -> list[list[str]]:
        """One row per metric that the scenarios have: its label, then the value of each run (all runs, if not given) as text."""
        shown = self.done if runs is None else runs
        found = [run.intervals for run in shown]
        hidden = set(() if any(run.has_objective for run in shown) else OF_OBJECTIVES)
        hidden |= set(() if any(each["background.p99"].mean for each in found) else OF_BACKGROUND)
        return [
            [label, *[_format_interval(each[name], unit) if name in each else "–" for each in found]]
            for name, (label, unit) in ROWS.items()
            if name not in hidden and any(name in each for each in found)
        ]

    def lever_table(self) -> list[list[str]]:
        """One row per lever, the best first: its gain and the metrics of `LEVER_HEADS`."""
        rows = []
        for run in self.done:
            if run.name in self.levers:
                found, units = run.intervals, {name: unit for name, (_, unit) in ROWS.items()}
                cells = [_format_value(found[name].mean, units[name]) if name in found else "–" for name in LEVER_HEADS.values()]
                rows.append([run.name, f"{self.levers[run.name]:.2f} ×", *cells])
        return rows


LEVER_HEADS = {"tokens/s": "output_tokens_per_second", "TTFT p99": "ttft.p99", "ITL p99": "itl.p99", "E2E p50": "e2e.p50",
               "in objective": "met", "$/M tokens": "cost"}  # fmt: skip
"""Head of the table of levers → metric."""


def _num_devices(scenario: Scenario) -> int:
    return (scenario.replicas + scenario.decode_replicas) * scenario.deployment.layout.ranks


def print_runs(runs: SimulationRuns, scenario: Sequence[str]) -> None:
    """Prints what is simulated (lines of `describe_scenario`), a table of the runs, one of the levers, then the notes."""
    count = len(runs.seeds)
    seeds = f"{count} runs with seeds 1 … {count}, ± 95 % intervals" if count > 1 else "1 run, seed 1"
    print_notes("Simulated with the real scheduler:", *scenario, seeds, "")
    shown = [run for run in runs.done if run.name not in runs.levers]
    heads = [run.name if len(run.name) <= LONGEST_HEAD else "changed" for run in shown]
    print_notes(*(f"changed: {run.name}" for run in shown if len(run.name) > LONGEST_HEAD))
    print_table("Results", ["metric", *heads], runs.table(shown))
    if runs.levers:
        print_notes("")
        title = f"Levers on the same requests, each alone; gain, per device: {runs.gain_text}"
        print_table(title, ["lever", "gain", *LEVER_HEADS], runs.lever_table(), optional=_dispensable(runs))
    print_notes("", *runs.notes)


def _dispensable(runs: SimulationRuns) -> list[str]:
    """Heads of the table of levers that may be left out, where it is narrow."""
    return [*([] if runs.done[0].has_objective else ["in objective"]), "ITL p99", "$/M tokens"]


def _format_interval(value: Interval, unit: str) -> str:
    """A value with its interval."""
    text = _format_value(value.mean, unit)
    return text if not value.half else f"{text} ± {_format_value(value.half, unit)}"


def _format_value(value: float, unit: str) -> str:
    if unit == SECONDS:
        return f"{value * 1e3:,.1f} ms" if value < 1 else f"{value:,.2f} s"
    if unit == SHARE:
        return f"{value:.1%}"
    if unit == COUNT and value == int(value):
        return f"{value:,.0f}"
    return f"${value:,.3f}" if unit == MONEY else f"{value:,.1f}{unit}"
