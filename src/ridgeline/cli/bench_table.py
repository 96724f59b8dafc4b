"""A comparison for people: progress while it runs, then medians with their spread, ratios with their intervals, and ceilings."""

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from ridgeline.bench.ceiling import ceilings, read_roofline
from ridgeline.bench.compare import CONFIDENCE, Comparison, Found, Ratio, agreement, ratio, values
from ridgeline.bench.report import ROWS, SECONDS, as_dict, shown
from ridgeline.bench.scenarios import SCENARIOS, START, Scenario
from ridgeline.bench.servers import RECIPES, Size, Spec, parse_spec
from ridgeline.bench.session import Manner
from ridgeline.config.env import cache_directory
from ridgeline.errors import ConfigError
from ridgeline.facts.describe import describe_model
from ridgeline.facts.machine import machine_facts
from ridgeline.facts.noise import Watch

SPARE_TOKENS = 64
"""Of a sequence's context beyond the longest request: a server's own special tokens."""

Limits = Mapping[str, Mapping[str, float]]
"""Scenario → figure → the most that the machine allows."""


def specs_of(texts: Sequence[str], scenarios: Sequence[Scenario], threads: int | None, programs: Sequence[str]) -> list[Spec]:
    """Servers with names of their own, large enough for the scenarios. Raises ConfigError."""
    if len(texts) < 2:
        raise ConfigError("one server is not compared with anything; give two or more, or use `ridgeline bench serve`")
    every = list(scenarios) or list(SCENARIOS.values())
    streams, context = max(each.streams for each in every), max(each.context for each in every) + SPARE_TOKENS
    size = Size(threads or machine_facts().processors, streams, context)
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
    """What the machine of a roofline allows for a model; nothing without a roofline. Raises ConfigError."""
    if roofline is None:
        return {}
    device = read_roofline(roofline, threads or machine_facts().processors)
    kind, _, detail = first.rpartition("=")[2].partition(":")
    name = shape or (shlex.split(detail)[0] if kind in RECIPES else None)
    if name is None:
        raise ConfigError("--roofline needs the model's size, and the first server is not started here; name a file of it with --shape")
    model = describe_model(name, cache_directory())
    return {each.name: ceilings(each, model, device) for each in scenarios}


class Comparing:
    """One comparison: what is asked, and what was found."""

    def __init__(self, specs: list[Spec], scenarios: list[Scenario], rounds: int, starts: int, seed: int, limits: Limits) -> None:
        self.specs, self.scenarios, self.limits = specs, scenarios, limits
        self._rounds, self._starts, self._seed, self._restart = rounds, starts, seed, False
        self.found = Found({}, {}, {}, [])
        self._noise: dict[str, Any] = {}

    @property
    def answered(self) -> bool:
        """Whether any server answered anything."""
        every = [turns for of in self.found.turns.values() for turns in of.values()]
        return not every or any(report.requests for turns in every for report in turns.reports)

    def run(self, manner: Manner, restart: bool) -> None:
        """Measures; a line on a terminal says what. Raises ConfigError."""
        self._restart = restart
        console = Console(stderr=True)
        watch = Watch()
        with console.status("starting") as status:

            def turn(scenario: str, server: str, number: int) -> None:
                status.update(f"{scenario}, round {number + 1} of {self._starts if scenario == START else self._rounds}: {server}")

            comparison = Comparison(self.specs, manner, self._seed, restart, turn)
            self.found = asyncio.run(comparison.run(self.scenarios, self._rounds, self._starts))
        self._noise = watch.stop().as_dict()

    def said(self) -> list[str]:
        """How it was measured, whether the answers agree, and what must be known."""
        how = "servers started and stopped for every turn" if self._restart else "all servers resident, at rest while another is measured"
        said = [
            f"{self._rounds} rounds, in each every server in turn on the same prompts (seed {self._seed}); {how}",
            f"medians [least–most]; ratios of medians [{CONFIDENCE:.0%} interval, bootstrap over rounds]",
        ]
        for spec in self.specs:
            said.append(
                f"{spec.name}: {shlex.join(spec.command) if spec.command else spec.url}; model {self.found.models.get(spec.name, '–')}"
            )
        return [*said, *self._agreements(), *self.found.notes]

    def _agreements(self) -> list[str]:
        said = []
        for scenario, turns in self.found.turns.items():
            ours = turns[self.specs[0].name].texts
            for spec in self.specs[1:]:
                found = [agreement(*pair) for pair in zip(ours, turns[spec.name].texts, strict=True)]
                same = sum(begun == whole for begun, whole in found)
                text = f"{scenario}: {self.specs[0].name} and {spec.name} answer the first prompt alike in {same} of {len(found)} rounds"
                least = min((pair for pair in found if pair[0] < pair[1]), default=None)
                said.append(text if least is None else f"{text}, in the others for at least {least[0]} of {least[1]} characters")
        return said

    def as_dict(self) -> dict[str, Any]:
        """For JSON: seconds, bytes, tokens; each round."""
        return {
            "seed": self._seed, "rounds": self._rounds, "restart": self._restart, "noise": self._noise, "notes": self.said(),
            "servers": [{**asdict(spec), "model": self.found.models.get(spec.name)} for spec in self.specs],
            "starts": {name: asdict(each) for name, each in self.found.starts.items()},
            "scenarios": [
                {
                    "name": each.name, "text": each.text, "ceilings": self.limits.get(each.name),
                    "compared": [line.as_dict() for line in lines(self, each)],
                    "rounds": {
                        name: {
                            "reports": [as_dict(report) for report in turns.reports],
                            "resident_bytes": turns.resident_bytes, "texts": turns.texts,
                        }
                        for name, turns in self.found.turns[each.name].items()
                    },
                }
                for each in self.scenarios
            ],
        }  # fmt: skip


class Line:
    """One figure of all servers: the rounds of each, and the ratio of the first to each other."""

    def __init__(self, figure: str, label: str, unit: str, rounds: Mapping[str, Sequence[float]], ceiling: float | None = None) -> None:
        self.figure, self.label, self.unit, self.rounds, self.ceiling = figure, label, unit, rounds, ceiling
        first, *others = rounds
        self.ratios: dict[str, Ratio | None] = {name: ratio(rounds[first], rounds[name]) for name in others}

    def cells(self) -> list[str]:
        """The line of a table: the label, each server's median and spread, each ratio, and the ceiling with the first server's share."""
        cells = [self.label]
        for found in self.rounds.values():
            whole = bool(found) and min(found) > 0
            cells.append(
                f"{_text(median(found), self.unit)} [{_text(min(found), self.unit)}–{_text(max(found), self.unit)}]" if whole else "–"
            )
        for each in self.ratios.values():
            cells.append("–" if each is None else f"{each.value:.2f} [{each.low:.2f}–{each.high:.2f}]")
        ours = next(iter(self.rounds.values()))
        if self.ceiling is not None and ours:
            cells.append(f"{_text(self.ceiling, self.unit)} ({median(ours) / self.ceiling:.0%})")
        return cells

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        ratios = {name: None if each is None else asdict(each) for name, each in self.ratios.items()}
        medians = {name: median(found) if found else None for name, found in self.rounds.items()}
        return {"figure": self.figure, "medians": medians, "ratios": ratios, "ceiling": self.ceiling}


def lines(comparing: Comparing, scenario: Scenario) -> list[Line]:
    """The figures that a scenario is about, and the memory after it where all servers were started here."""
    turns, limits = comparing.found.turns[scenario.name], comparing.limits.get(scenario.name, {})
    found = [
        Line(figure, *ROWS[figure], {name: values(each, figure) for name, each in turns.items()}, limits.get(figure))
        for figure in scenario.figures
    ]
    memory = {name: [float(size) for size in each.resident_bytes] for name, each in turns.items()}
    if any(size for sizes in memory.values() for size in sizes):
        found.append(Line("resident_bytes", "resident memory", BYTES, memory))
    return found


BYTES = "B"


def _text(value: float, unit: str) -> str:
    return f"{value / 2**20:,.0f} MiB" if unit == BYTES else shown(value, unit)


def table(comparing: Comparing) -> list[list[str]]:
    """The whole table's rows; a row of one cell begins a scenario."""
    found: list[list[str]] = []
    starts = {spec.name: comparing.found.starts[spec.name] for spec in comparing.specs}
    if any(each.seconds for each in starts.values()):
        found += [
            ["start"],
            Line("seconds", "to the first token", SECONDS, {name: each.seconds for name, each in starts.items()}).cells(),
            Line("bytes", "resident then", BYTES, {name: list(map(float, each.resident_bytes)) for name, each in starts.items()}).cells(),
        ]
    for scenario in comparing.scenarios:
        found += [[f"{scenario.name}: {scenario.text}"], *[line.cells() for line in lines(comparing, scenario)]]
    return found


def show(rows: Sequence[Sequence[str]], specs: Sequence[Spec], notes: Sequence[str]) -> None:
    """The table and what is to be said, on stdout."""
    console = Console(highlight=False)
    first, *others = [spec.name for spec in specs]
    heads = ["", first, *others, *[f"{first} / {name}" for name in others], "ceiling (share)"]
    wide = max(len(row) for row in rows)
    for title, block in _blocks(rows):
        shown_table = Table(box=None, pad_edge=False, title=title, title_justify="left", title_style="bold")
        for at, head in enumerate(heads[: max(wide, 2)]):
            shown_table.add_column(head, justify="left" if at == 0 else "right", no_wrap=at == 0)
        for row in block:
            shown_table.add_row(*row)
        console.print(shown_table)
        console.print()
    for note in notes:
        console.print(note, soft_wrap=True, markup=False)


def _blocks(rows: Sequence[Sequence[str]]) -> list[tuple[str, list[Sequence[str]]]]:
    found: list[tuple[str, list[Sequence[str]]]] = []
    for row in rows:
        if len(row) == 1:
            found.append((row[0], []))
        else:
            found[-1][1].append(row)
    return found
