"""`ridgeline bench compare`: from flags to servers and ceilings, progress, then medians with their range, ratios with their intervals,
and ceilings.
"""

import asyncio
import shlex
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final

from rich.console import Console

from ridgeline.bench.compare import (
    CONFIDENCE,
    SCENARIOS,
    START,
    Comparison,
    ComparisonOptions,
    ComparisonResults,
    LoadScenario,
    Ratio,
    ServerRounds,
    ceilings,
    common_prefix,
    ratio,
    read_roofline,
    round_values,
)
from ridgeline.bench.report import METRIC_LABELS, RATE, SECONDS, as_dict
from ridgeline.bench.servers import SERVER_KINDS, NotInstalledError, ServerSize, ServerSpec, parse_spec
from ridgeline.bench.session import RequestOptions
from ridgeline.cli.output import is_narrow_enough, print_table
from ridgeline.config.env import model_stores
from ridgeline.errors import ConfigError
from ridgeline.facts.hardware.machine import machine_facts
from ridgeline.facts.hardware.noise import Noise, NoiseMonitor
from ridgeline.facts.headers.read import describe_model

SPARE_TOKENS: Final = 64
"""Context beyond the longest request: a server's own special tokens."""

Ceilings = Mapping[str, Mapping[str, float]]
"""Scenario → metric → upper bound of this machine."""


def parse_servers(
    texts: Sequence[str], scenarios: Sequence[LoadScenario], threads: int | None, programs: Sequence[str]
) -> tuple[list[ServerSpec], list[str]]:
    """Servers with unique names, sized for the scenarios; and why others cannot be run here. ConfigError where fewer than two can."""
    if len(texts) < 2:
        raise ConfigError("a comparison needs two or more servers; for one use `ridgeline bench serve`")
    every = list(scenarios) or list(SCENARIOS.values())
    streams, context = max(each.streams for each in every), max(each.context for each in every) + SPARE_TOKENS
    size = ServerSize(threads or machine_facts().cpu_cores, streams, context)
    paths = dict(_parse_program(text) for text in programs)
    specs, not_run = list[ServerSpec](), list[str]()
    for text in texts:
        try:
            specs.append(parse_spec(text, size, paths))
        except NotInstalledError as error:
            not_run.append(str(error))
            if len(texts) - len(not_run) < 2:
                raise
    for before, each in pairwise(sorted(spec.name for spec in specs)):
        if before == each:
            raise ConfigError(f"two servers have the name {each[:60]!r}; name them: first={texts[0][:60]}")
    return specs, not_run


def _parse_program(text: str) -> tuple[str, str]:
    kind, equals, path = text.partition("=")
    if not equals or kind not in SERVER_KINDS:
        raise ConfigError(f"--program {text[:60]!r} is not understood; write KIND=PATH, a kind of {', '.join(SERVER_KINDS)}")
    return kind, path


def read_ceilings(scenarios: Sequence[LoadScenario], roofline: Path | None, shape: str | None, first: str, threads: int | None) -> Ceilings:
    """Ceilings of a model on the machine of a roofline; empty without a roofline. Raises ConfigError."""
    if roofline is None:
        return {}
    kind, _, detail = first.rpartition("=")[2].partition(":")
    name = shape or (shlex.split(detail)[0] if kind in SERVER_KINDS else None)
    if name is None:
        raise ConfigError("--roofline needs the model's size, and the first server is not started here; give the model with --shape")
    model = describe_model(name, model_stores())
    device = read_roofline(roofline, threads or machine_facts().cpu_cores, model)
    return {each.name: ceilings(each, model, device) for each in scenarios}


class ComparisonRun:
    """One comparison: servers, scenarios, results."""

    def __init__(
        self,
        specs: list[ServerSpec],
        scenarios: list[LoadScenario],
        settings: ComparisonOptions,
        seed: int,
        limits: Ceilings,
        not_run: Sequence[str] = (),
    ) -> None:
        self.specs, self.scenarios, self.limits = specs, scenarios, limits
        self._settings, self._seed, self._not_run = settings, seed, not_run
        self.results = ComparisonResults()
        self._noise: Noise | None = None

    @property
    def has_answers(self) -> bool:
        """True if every server ran and any request was answered."""
        every = [turns for of in self.results.rounds_by_scenario.values() for turns in of.values()]
        return not self.results.failed_servers and (not every or any(report.requests for turns in every for report in turns.reports))

    def run(self, request_options: RequestOptions, on_round: Callable[[], None] = lambda: None) -> bool:
        """Measures, with progress on stderr. on_round: called after each round of a scenario.

        Returns False where it was interrupted; results until then are kept. Raises ConfigError.
        """
        console, watch, whole, settings, began = Console(stderr=True, highlight=False), NoiseMonitor(), True, self._settings, perf_counter()
        left = len(self.scenarios)
        with console.status("starting") as status:

            def on_turn(scenario: str, server: str, number: int) -> None:
                text = f"{scenario}, round {number + 1} of {settings.starts if scenario == START else settings.rounds}: {server}"
                if console.is_terminal:
                    status.update(text)
                else:
                    console.print(f"{perf_counter() - began:7.1f} s  {text}", markup=False)

            def on_round_end() -> None:
                nonlocal left
                left -= 1
                if left == 0 and settings.rounds > 1:
                    seconds = perf_counter() - began
                    most = settings.rounds * seconds
                    console.print(f"starts and the first round took {seconds:.0f} s: {settings.rounds} rounds take {most:.0f} s at most")
                on_round()

            comparison = Comparison(self.specs, request_options, self._seed, settings)
            self.results = comparison.results
            try:
                asyncio.run(_run_until_signal(comparison.run(self.scenarios, on_turn, on_round_end)))
            except KeyboardInterrupt:
                whole = False
        self._noise = watch.stop()
        return whole

    def notes(self) -> list[str]:
        """Notes on the method, on whether the answers agree, and on failures."""
        at_rest = "all servers resident, idle while another is measured"
        how = "servers started and stopped for every turn" if self._settings.restart else at_rest
        notes = [
            f"{self._settings.rounds} rounds, in each every server in turn on the same prompts (seed {self._seed}); {how}",
            f"medians [min–max]; ratios of medians [{CONFIDENCE:.0%} interval, bootstrap over rounds]",
        ]
        for spec in self.specs:
            notes.append(
                f"{spec.name}: {shlex.join(spec.command) if spec.command else spec.url}; model {self.results.models.get(spec.name, '–')}"
            )
        lost = [f"not run: {why}" for why in self._not_run]
        lost += [f"{name} is left out: {why}" for name, why in self.results.failed_servers.items()]
        return [*notes, *lost, *self._agreement_notes(), *self._batch_notes(), *self.results.notes]

    def turns(self, scenario: str) -> dict[str, ServerRounds]:
        """Rounds of every server, empty for failed ones."""
        known = self.results.rounds_by_scenario[scenario]
        return {spec.name: known.get(spec.name, ServerRounds()) for spec in self.specs}

    def _agreement_notes(self) -> list[str]:
        notes = []
        for scenario in self.results.rounds_by_scenario:
            turns = self.turns(scenario)
            ours = turns[self.specs[0].name].texts
            for spec in self.specs[1:]:
                found = [common_prefix(*pair) for pair in zip(ours, turns[spec.name].texts, strict=False)]
                if not found:
                    continue
                same = sum(begun == whole for begun, whole in found)
                servers = f"{self.specs[0].name} and {spec.name}"
                text = f"{scenario}: {servers} give the same answer to the first prompt in {same} of {len(found)} rounds"
                least = min((pair for pair in found if pair[0] < pair[1]), default=None)
                notes.append(text if least is None else f"{text}, in the others the same first {least[0]} of {least[1]} characters or more")
        return notes

    def _batch_notes(self) -> list[str]:
        notes = []
        for scenario in self.results.rounds_by_scenario:
            for name, each in self.turns(scenario).items():
                if each.alone_text is not None and each.texts:
                    begun, whole = common_prefix(each.texts[0], each.alone_text)
                    text = "as in a batch" if begun == whole else f"differently than in a batch, after {begun} of {whole} characters"
                    notes.append(f"{scenario}: {name} answers the first prompt alone {text}")
        return notes

    def as_dict(self) -> dict[str, Any]:
        """A dict for JSON: seconds, bytes, tokens; each round."""
        return {
            "seed": self._seed, **asdict(self._settings), "lost": self.results.failed_servers, "not_run": self._not_run,
            "notes": self.notes(),
            "noise": None if self._noise is None else self._noise.as_dict(),
            "servers": [{**asdict(spec), "model": self.results.models.get(spec.name)} for spec in self.specs],
            "starts": {name: asdict(each) for name, each in self.results.starts.items()},
            "scenarios": [
                {
                    "name": each.name, "text": each.text, "ceilings": self.limits.get(each.name),
                    "compared": [line.as_dict() for line in metric_rows(self, each)],
                    "rounds": {
                        name: {
                            "reports": [as_dict(report) for report in turns.reports],
                            "resident_bytes": turns.resident_bytes, "texts": turns.texts, "alone": turns.alone_text,
                        }
                        for name, turns in self.turns(each.name).items()
                    },
                }
                for each in self.scenarios
                if each.name in self.results.rounds_by_scenario
            ],
        }  # fmt: skip


async def _run_until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Runs `work`; SIGTERM ends it as Ctrl-C does, so that no server is left behind."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


class MetricRow:
    """One metric of all servers: rounds of each, ratios of the first to each other server and, among several, to the best of them."""

    def __init__(self, figure: str, label: str, unit: str, rounds: Mapping[str, Sequence[float]], ceiling: float | None = None) -> None:
        self._figure, self._label, self._unit, self._rounds, self._ceiling = figure, label, unit, rounds, ceiling
        first, *others = rounds
        self._ratios: dict[str, Ratio | None] = {name: ratio(rounds[first], rounds[name]) for name in others}
        known = [name for name in others if self._ratios[name] is not None]
        if len(others) > 1:
            # Rates: higher is better; seconds and bytes: lower. The best other server is the one with the worst ratio.
            worst = min if unit == RATE else max
            best = worst(known, key=lambda name: median(rounds[first]) / median(rounds[name])) if known else None
            self._ratios[BEST] = None if best is None else self._ratios[best]

    def cells(self) -> list[str]:
        """Table cells: label, each server's median and range, each ratio, the ceiling with the first server's share of it."""
        ours = next(iter(self._rounds.values()))
        cells = [self._label, *[_format_spread(found, self._unit) for found in self._rounds.values()]]
        cells += ["–" if each is None else f"{each.value:.2f} [{each.low:.2f}–{each.high:.2f}]" for each in self._ratios.values()]
        if self._ceiling is not None:
            cells.append(f"{_format_spread([self._ceiling], self._unit)} ({median(ours) / self._ceiling:.0%})" if ours else "–")
        return cells

    def tall_cells(self) -> list[list[str]]:
        """A row per server: label, server, median and range, ratio, ceiling; a last one for the ratio to the best of several."""
        _, *cells = self.cells()
        values, ratios = cells[: len(self._rounds)], cells[len(self._rounds) :]
        ceiling = ratios[len(self._ratios)] if len(ratios) > len(self._ratios) else ""
        rows = [["", name, value, "", ""] for name, value in zip(self._rounds, values, strict=True)]
        rows += [["", BEST, "", "", ""]] if BEST in self._ratios else []
        for row, text in zip(rows[1:], ratios, strict=False):
            row[3] = text
        rows[0] = [self._label, *rows[0][1:4], ceiling]
        return rows

    def as_dict(self) -> dict[str, Any]:
        """A dict for JSON; None for a server that did not answer in every round."""
        ratios = {name: None if each is None else asdict(each) for name, each in self._ratios.items()}
        medians = {name: median(found) if found else None for name, found in self._rounds.items()}
        return {"figure": self._figure, "medians": medians, "ratios": ratios, "ceiling": self._ceiling}


BEST: Final = "best other"
BYTES: Final = "B"
SCALES: Final = {SECONDS: ((1.0, " s"), (1e-3, " ms"), (1e-6, " µs")), RATE: ((1.0, "/s"),), BYTES: ((2.0**20, " MiB"),)}


def metric_rows(comparing: ComparisonRun, scenario: LoadScenario) -> list[MetricRow]:
    """The metrics of a scenario, and resident memory after it where servers were started here."""
    turns, limits = comparing.turns(scenario.name), comparing.limits.get(scenario.name, {})
    found = [
        MetricRow(figure, *METRIC_LABELS[figure], {name: round_values(each, figure) for name, each in turns.items()}, limits.get(figure))
        for figure in scenario.figures
    ]
    memory = {name: [float(size) for size in each.resident_bytes if size] for name, each in turns.items()}
    if any(memory.values()):
        found.append(MetricRow("resident_bytes", "resident memory", BYTES, memory))
    return found


def _format_spread(found: Sequence[float], unit: str) -> str:
    """`1.98 s [1.7–2.31]`: median, minimum and maximum of the rounds, in the same unit."""
    if not found:
        return "–"
    middle = median(found)
    size, name = next(((size, name) for size, name in SCALES[unit] if middle >= size), SCALES[unit][-1])
    texts = [f"{value / size:,.0f}" if value >= 1000 * size else f"{value / size:.3g}" for value in (middle, min(found), max(found))]
    return f"{texts[0]}{name}" if len(found) == 1 else f"{texts[0]}{name} [{texts[1]}–{texts[2]}]"


def sections(comparing: ComparisonRun) -> list[tuple[str, list[MetricRow]]]:
    """Title and rows of each table: start-up, then the scenarios."""
    found: list[tuple[str, list[MetricRow]]] = []
    starts = comparing.results.starts
    if any(each.seconds for each in starts.values()):
        seconds = MetricRow("seconds", "to the first token", SECONDS, {name: each.seconds for name, each in starts.items()})
        memory = {name: [float(size) for size in each.resident_bytes if size] for name, each in starts.items()}
        found.append((START, [seconds, MetricRow("resident_bytes", "resident then", BYTES, memory)]))
    return found + [
        (f"{each.name}: {each.text}", metric_rows(comparing, each))
        for each in comparing.scenarios
        if each.name in comparing.results.rounds_by_scenario
    ]


def print_comparison(comparing: ComparisonRun) -> None:
    """Prints tables and notes to stdout: a row per metric where that fits the console, else a row per metric and server."""
    first, *others = [spec.name for spec in comparing.specs]
    denominators = [*others, *([BEST] if len(others) > 1 else [])]
    ceiling = ["ceiling (share)"] if comparing.limits else []
    heads = ["metric", first, *others, *[f"{first} / {name}" for name in denominators], *ceiling]
    for title, block in sections(comparing):
        rows = [_padded(line.cells(), len(heads)) for line in block]
        if is_narrow_enough(heads, rows):
            print_table(title, heads, rows)
        else:
            tall_heads = ["metric", "server", "median [range]", f"{first} / it", *ceiling]
            print_table(title, tall_heads, [row[: len(tall_heads)] for line in block for row in line.tall_cells()])
        print()
    print(*comparing.notes(), sep="\n")  # not wrapped: they hold commands


def _padded(cells: list[str], count: int) -> list[str]:
    """The cells, and empty ones for columns that the metric lacks."""
    return [*cells, *[""] * (count - len(cells))]
