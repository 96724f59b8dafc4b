"""A comparison of `ridgeline bench compare`: from flags to servers and what the machine allows them, progress while it runs, then medians
with their spread, ratios with their intervals, and ceilings.
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
from rich.table import Table

from ridgeline.bench.compare import (
    CONFIDENCE,
    SCENARIOS,
    START,
    Comparison,
    Course,
    Found,
    Ratio,
    Scenario,
    Turns,
    agreement,
    ceilings,
    ratio,
    read_roofline,
    values,
)
from ridgeline.bench.report import RATE, ROWS, SECONDS, as_dict
from ridgeline.bench.servers import RECIPES, Size, Spec, parse_spec
from ridgeline.bench.session import Manner
from ridgeline.config.env import cache_directory
from ridgeline.errors import ConfigError
from ridgeline.facts.hardware.machine import machine_facts
from ridgeline.facts.hardware.noise import Noise, NoiseMonitor
from ridgeline.facts.headers.read import describe_model

SPARE_TOKENS: Final = 64
"""Of a sequence's context beyond the longest request: a server's own special tokens."""

Limits = Mapping[str, Mapping[str, float]]
"""Scenario → figure → the most that the machine allows."""


def specs_of(texts: Sequence[str], scenarios: Sequence[Scenario], threads: int | None, programs: Sequence[str]) -> list[Spec]:
    """Servers with names of their own, large enough for the scenarios. Raises ConfigError."""
    if len(texts) < 2:
        raise ConfigError("one server is not compared with anything; give two or more, or use `ridgeline bench serve`")
    every = list(scenarios) or list(SCENARIOS.values())
    streams, context = max(each.streams for each in every), max(each.context for each in every) + SPARE_TOKENS
    size = Size(threads or machine_facts().cpu_cores, streams, context)
    paths = dict(_program(text) for text in programs)
    specs = [parse_spec(text, size, paths) for text in texts]
    for before, each in pairwise(sorted(spec.name for spec in specs)):
        if before == each:
            raise ConfigError(f"two servers are called {each[:60]!r}; name them: first={texts[0][:60]}")
    return specs


def _program(text: str) -> tuple[str, str]:
    kind, equals, path = text.partition("=")
    if not equals or kind not in RECIPES:
        raise ConfigError(f"--program {text[:60]!r} is not understood; write KIND=PATH, a kind of {', '.join(RECIPES)}")
    return kind, path


def ceilings_of(scenarios: Sequence[Scenario], roofline: Path | None, shape: str | None, first: str, threads: int | None) -> Limits:
    """Limits that the machine of a roofline sets for a model; nothing without a roofline. Raises ConfigError."""
    if roofline is None:
        return {}
    kind, _, detail = first.rpartition("=")[2].partition(":")
    name = shape or (shlex.split(detail)[0] if kind in RECIPES else None)
    if name is None:
        raise ConfigError("--roofline needs the model's size, and the first server is not started here; name a file of it with --shape")
    model = describe_model(name, cache_directory())
    device = read_roofline(roofline, threads or machine_facts().cpu_cores, model)
    return {each.name: ceilings(each, model, device) for each in scenarios}


class Comparing:
    """One comparison: what is asked, and what was found."""

    def __init__(self, specs: list[Spec], scenarios: list[Scenario], course: Course, seed: int, limits: Limits) -> None:
        self.specs, self.scenarios, self.limits = specs, scenarios, limits
        self._course, self._seed = course, seed
        self.found = Found()
        self._noise: Noise | None = None

    @property
    def answered(self) -> bool:
        """True if every server ran, and any of them answered anything."""
        every = [turns for of in self.found.turns.values() for turns in of.values()]
        return not self.found.lost and (not every or any(report.requests for turns in every for report in turns.reports))

    def run(self, manner: Manner, on_round: Callable[[], None] = lambda: None) -> bool:
        """Measures; says on stderr what, and behind the first round how long all may take. `on_round`: behind each round of a scenario.

        False where it was broken off: what was found until then stays. Raises ConfigError.
        """
        console, watch, whole, course, began = Console(stderr=True, highlight=False), NoiseMonitor(), True, self._course, perf_counter()
        left = len(self.scenarios)
        with console.status("starting") as status:

            def turn(scenario: str, server: str, number: int) -> None:
                text = f"{scenario}, round {number + 1} of {course.starts if scenario == START else course.rounds}: {server}"
                if console.is_terminal:
                    status.update(text)
                else:
                    console.print(f"{perf_counter() - began:7.1f} s  {text}", markup=False)

            def rounded() -> None:
                nonlocal left
                left -= 1
                if left == 0 and course.rounds > 1:
                    seconds = perf_counter() - began
                    most = course.rounds * seconds
                    console.print(f"starts and the first round took {seconds:.0f} s: {course.rounds} rounds take {most:.0f} s at most")
                on_round()

            comparison = Comparison(self.specs, manner, self._seed, course)
            self.found = comparison.found
            try:
                asyncio.run(_ended_by_signals(comparison.run(self.scenarios, turn, rounded)))
            except KeyboardInterrupt:
                whole = False
        self._noise = watch.stop()
        return whole

    def said(self) -> list[str]:
        """Notes on how it was measured, whether the answers agree, and what must be known."""
        at_rest = "all servers resident, at rest while another is measured"
        how = "servers started and stopped for every turn" if self._course.restart else at_rest
        said = [
            f"{self._course.rounds} rounds, in each every server in turn on the same prompts (seed {self._seed}); {how}",
            f"medians [least–most]; ratios of medians [{CONFIDENCE:.0%} interval, bootstrap over rounds]",
        ]
        for spec in self.specs:
            said.append(
                f"{spec.name}: {shlex.join(spec.command) if spec.command else spec.url}; model {self.found.models.get(spec.name, '–')}"
            )
        lost = [f"{name} is left out: {why}" for name, why in self.found.lost.items()]
        return [*said, *lost, *self._agreements(), *self._companies(), *self.found.notes]

    def turns(self, scenario: str) -> dict[str, Turns]:
        """Turns of every server, also of those without any."""
        known = self.found.turns[scenario]
        return {spec.name: known.get(spec.name, Turns()) for spec in self.specs}

    def _agreements(self) -> list[str]:
        said = []
        for scenario in self.found.turns:
            turns = self.turns(scenario)
            ours = turns[self.specs[0].name].texts
            for spec in self.specs[1:]:
                found = [agreement(*pair) for pair in zip(ours, turns[spec.name].texts, strict=False)]
                if not found:
                    continue
                same = sum(begun == whole for begun, whole in found)
                text = f"{scenario}: {self.specs[0].name} and {spec.name} answer the first prompt alike in {same} of {len(found)} rounds"
                least = min((pair for pair in found if pair[0] < pair[1]), default=None)
                said.append(text if least is None else f"{text}, in the others for at least {least[0]} of {least[1]} characters")
        return said

    def _companies(self) -> list[str]:
        said = []
        for scenario in self.found.turns:
            for name, each in self.turns(scenario).items():
                if each.alone is not None and each.texts:
                    begun, whole = agreement(each.texts[0], each.alone)
                    text = "as in company" if begun == whole else f"otherwise than in company behind {begun} of {whole} characters"
                    said.append(f"{scenario}: {name} answers the first prompt by itself {text}")
        return said

    def as_dict(self) -> dict[str, Any]:
        """A dict for JSON: seconds, bytes, tokens; each round."""
        return {
            "seed": self._seed, **asdict(self._course), "lost": self.found.lost, "notes": self.said(),
            "noise": None if self._noise is None else self._noise.as_dict(),
            "servers": [{**asdict(spec), "model": self.found.models.get(spec.name)} for spec in self.specs],
            "starts": {name: asdict(each) for name, each in self.found.starts.items()},
            "scenarios": [
                {
                    "name": each.name, "text": each.text, "ceilings": self.limits.get(each.name),
                    "compared": [line.as_dict() for line in lines(self, each)],
                    "rounds": {
                        name: {
                            "reports": [as_dict(report) for report in turns.reports],
                            "resident_bytes": turns.resident_bytes, "texts": turns.texts, "alone": turns.alone,
                        }
                        for name, turns in self.turns(each.name).items()
                    },
                }
                for each in self.scenarios
                if each.name in self.found.turns
            ],
        }  # fmt: skip


async def _ended_by_signals(work: Coroutine[Any, Any, None]) -> None:
    """SIGTERM ends the work as Ctrl-C does: no server is left behind."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


class Line:
    """One figure of all servers: the rounds of each, the ratio of the first to each other, and among several to the best of them."""

    def __init__(self, figure: str, label: str, unit: str, rounds: Mapping[str, Sequence[float]], ceiling: float | None = None) -> None:
        self._figure, self._label, self._unit, self._rounds, self._ceiling = figure, label, unit, rounds, ceiling
        first, *others = rounds
        self._ratios: dict[str, Ratio | None] = {name: ratio(rounds[first], rounds[name]) for name in others}
        known = [name for name in others if self._ratios[name] is not None]
        if len(others) > 1:
            # More is better of rates, less of seconds and bytes: the best rival is the one beside whom the ratio is worst.
            worst = min if unit == RATE else max
            best = worst(known, key=lambda name: median(rounds[first]) / median(rounds[name])) if known else None
            self._ratios[BEST] = None if best is None else self._ratios[best]

    def cells(self) -> list[str]:
        """The line of a table: the label, each server's median and spread, each ratio, and the ceiling with the first server's share."""
        ours = next(iter(self._rounds.values()))
        cells = [self._label, *[_spread(found, self._unit) for found in self._rounds.values()]]
        cells += ["–" if each is None else f"{each.value:.2f} [{each.low:.2f}–{each.high:.2f}]" for each in self._ratios.values()]
        if self._ceiling is not None:
            cells.append(f"{_spread([self._ceiling], self._unit)} ({median(ours) / self._ceiling:.0%})" if ours else "–")
        return cells

    def as_dict(self) -> dict[str, Any]:
        """A dict for JSON; None for a server that did not answer in every round."""
        ratios = {name: None if each is None else asdict(each) for name, each in self._ratios.items()}
        medians = {name: median(found) if found else None for name, found in self._rounds.items()}
        return {"figure": self._figure, "medians": medians, "ratios": ratios, "ceiling": self._ceiling}


BEST: Final = "best other"
BYTES: Final = "B"
FILE_WIDTH: Final = 200
"""Columns of a table that goes to a file."""
SCALES: Final = {SECONDS: ((1.0, " s"), (1e-3, " ms"), (1e-6, " µs")), RATE: ((1.0, "/s"),), BYTES: ((2.0**20, " MiB"),)}


def lines(comparing: Comparing, scenario: Scenario) -> list[Line]:
    """The figures that a scenario is about, and the memory after it where all servers were started here."""
    turns, limits = comparing.turns(scenario.name), comparing.limits.get(scenario.name, {})
    found = [
        Line(figure, *ROWS[figure], {name: values(each, figure) for name, each in turns.items()}, limits.get(figure))
        for figure in scenario.figures
    ]
    memory = {name: [float(size) for size in each.resident_bytes if size] for name, each in turns.items()}
    if any(memory.values()):
        found.append(Line("resident_bytes", "resident memory", BYTES, memory))
    return found


def _spread(found: Sequence[float], unit: str) -> str:
    """`1.98 s [1.7–2.31]`: the median, and what the rounds lie between, in the same unit."""
    if not found:
        return "–"
    middle = median(found)
    size, name = next(((size, name) for size, name in SCALES[unit] if middle >= size), SCALES[unit][-1])
    texts = [f"{value / size:,.0f}" if value >= 1000 * size else f"{value / size:.3g}" for value in (middle, min(found), max(found))]
    return f"{texts[0]}{name}" if len(found) == 1 else f"{texts[0]}{name} [{texts[1]}–{texts[2]}]"


def blocks(comparing: Comparing) -> list[tuple[str, list[Line]]]:
    """The whole table: a title and its lines, for the starts and for each scenario."""
    found: list[tuple[str, list[Line]]] = []
    starts = comparing.found.starts
    if any(each.seconds for each in starts.values()):
        seconds = Line("seconds", "to the first token", SECONDS, {name: each.seconds for name, each in starts.items()})
        memory = {name: [float(size) for size in each.resident_bytes if size] for name, each in starts.items()}
        found.append((START, [seconds, Line("resident_bytes", "resident then", BYTES, memory)]))
    return found + [
        (f"{each.name}: {each.text}", lines(comparing, each)) for each in comparing.scenarios if each.name in comparing.found.turns
    ]


def show(comparing: Comparing) -> None:
    """The table and what is to be said, on stdout."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=FILE_WIDTH)
    first, *others = [spec.name for spec in comparing.specs]
    rivals = [*others, *([BEST] if len(others) > 1 else [])]
    heads = ["", first, *others, *[f"{first} / {name}" for name in rivals], *(["ceiling (share)"] if comparing.limits else [])]
    for title, block in blocks(comparing):
        table = Table(box=None, pad_edge=False, title=title, title_justify="left", title_style="bold")
        for at, head in enumerate(heads):
            table.add_column(head, justify="right" if at else "left", no_wrap=not at)
        for line in block:
            table.add_row(*line.cells())
        console.print(table, "")
    for note in comparing.said():
        console.print(note, soft_wrap=True, markup=False)
