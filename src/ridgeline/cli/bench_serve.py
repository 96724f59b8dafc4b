"""Runs of `ridgeline bench serve`: from flags to loads, a bar on stderr while one runs, then a column for each, as a table, JSON or a page.

Owns how lengths, arrivals, traces, and lists of streams or rates that are measured one after the other, become loads.
"""

import asyncio
import json
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ridgeline.bench.client import Api, Outcome
from ridgeline.bench.report import Figures, as_dict, figures, notes, rows
from ridgeline.bench.session import Load, Manner, Measured, Session
from ridgeline.cli.output import check_page
from ridgeline.errors import ConfigError
from ridgeline.facts.hardware.noise import Noise, NoiseMonitor
from ridgeline.planning.objectives import Objective
from ridgeline.sim.fleet.traffic import Arrival, ClosedLoop, Traffic, parse_arrival_process, parse_length, read_trace

MOST_TOKENS: Final = 1 << 20
MOST_STREAMS: Final = 4096
MOST_REQUESTS: Final = 100_000
REQUESTS: Final = 100
BURST: Final = "burst"


@dataclass(frozen=True, slots=True)
class Asked:
    """The flags of `bench serve` that say what is sent and when; None where not given."""

    requests: int | None
    seconds: float | None
    streams: str | None
    rate: str | None
    arrivals: str
    input_len: str
    output_len: str
    shared_prefix: int
    prefixes: int
    trace: Path | None
    speed: float
    seed: int


def loads_of(asked: Asked) -> list[Load]:
    """One load for each number of streams or each rate. Raises ConfigError."""
    streams = _listed("--streams", asked.streams)
    rates = _listed("--rate", asked.rate)
    if any(each != int(each) or not 1 <= each <= MOST_STREAMS for each in streams):
        raise ConfigError(
            f"--streams {asked.streams} is not understood; write whole numbers of 1 … {MOST_STREAMS}", fix={"--streams": "16"}
        )
    opened = bool(rates) or asked.trace is not None or asked.arrivals == BURST
    if opened and len(streams) > 1:
        raise ConfigError(
            f"--streams {asked.streams} is a list; where requests come by themselves it is one limit", fix={"--streams": None}
        )
    most = int(streams[0]) if streams else None
    if asked.trace is not None:
        return [_trace(asked, most)]
    if asked.arrivals == BURST:
        return [Load(f"burst of {asked.requests or REQUESTS}", _burst(asked), most, opened=True)]
    if rates:
        return [Load(f"{rate:g}/s", _open(asked, rate), most, opened=True) for rate in rates]
    counts = [int(each) for each in streams or [1]]
    return [Load(f"{count} stream{'s' * (count > 1)}", _closed(asked), count, seconds=asked.seconds) for count in counts]


def _listed(flag: str, text: str | None) -> list[float]:
    try:
        return [] if text is None else [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{flag} {text!r:.40} is not understood; write a number, or several with commas", fix={flag: None}) from None


def _users(asked: Asked) -> ClosedLoop:
    prompt, output = parse_length("--input-len", asked.input_len), parse_length("--output-len", asked.output_len)
    return ClosedLoop(1, 0.0, prompt, output, MOST_TOKENS, asked.prefixes if asked.shared_prefix else 0, asked.shared_prefix)


def _closed(asked: Asked) -> Iterable[Arrival]:
    """Without end where seconds end it."""
    requests = asked.requests if asked.requests is not None else None if asked.seconds is not None else REQUESTS
    return _Again(_users(asked), asked.seed, requests)


@dataclass(frozen=True, slots=True)
class _Again:
    """Arrivals of a closed loop that begin anew whenever they are asked for."""

    users: ClosedLoop
    seed: int
    count: int | None

    def __iter__(self) -> "islice[Arrival]":
        return islice(self.users.requests(self.seed, 0), self.count)


def _open(asked: Asked, rate: float) -> list[Arrival]:
    users = _users(asked)
    traffic = Traffic(parse_arrival_process(asked.arrivals, rate), users.prompt, users.output, MOST_TOKENS, users.prefixes, users.shared)
    count = asked.requests or (MOST_REQUESTS if asked.seconds is not None else REQUESTS)
    found = list(takewhile(lambda each: asked.seconds is None or each.time < asked.seconds, traffic.arrivals(asked.seed, count)))
    if not found:
        raise ConfigError(f"no request comes within --seconds {asked.seconds:g} at --rate {rate:g}; give more of one of them")
    return found


def _burst(asked: Asked) -> list[Arrival]:
    return list(islice(_users(asked).requests(asked.seed, 0), asked.requests or REQUESTS))


def _trace(asked: Asked, most: int | None) -> Load:
    assert asked.trace is not None
    found = read_trace(asked.trace, asked.speed)[: asked.requests]
    longest = max(each.prompt + each.output for each in found)
    if len(found) > MOST_REQUESTS or longest > MOST_TOKENS:
        raise ConfigError(
            f"{asked.trace.name} has {len(found)} requests, the longest of {longest} tokens; "
            f"at most {MOST_REQUESTS} of {MOST_TOKENS} are sent",
            fix={"--requests": str(MOST_REQUESTS)},
        )
    seconds = asked.seconds
    return Load(asked.trace.name, [each for each in found if seconds is None or each.time < seconds], most, opened=True)


PROMPTS_OF_A_RUN = 1 << 20
"""Numbers of prompts that are set aside for each run, so that no two runs have one in common."""


class Runs:
    """One server, measured under one load after the other."""

    def __init__(self, url: str, manner: Manner, seed: int, objective: Objective) -> None:
        self._url, self._manner, self._seed, self._objective = url, manner, seed, objective
        self._done: list[tuple[Load, Measured, Figures, Noise]] = []
        self._notes: list[str] = []
        self._model = self._source = ""

    @property
    def answered(self) -> bool:
        """True if any request was."""
        return any(found.requests for _, _, found, _ in self._done)

    def run(self, loads: list[Load], warm_up: int) -> None:
        """Measures all of them. Raises ConfigError where the server cannot be measured."""
        asyncio.run(self._run(loads, warm_up))

    async def _run(self, loads: list[Load], warm_up: int) -> None:
        session = await Session.open(self._url, self._manner, self._seed)
        self._model, self._source = session.model, session.costs_source
        with _bar() as bar:
            for number, load in enumerate(loads):
                task = bar.add_task(load.name, total=_length(load))
                failed = await session.warm_up(load, warm_up, load.streams or 1)
                self._notes += [f"{load.name}: a request to warm up failed, {message}" for message in failed[:1]]
                watch = NoiseMonitor()
                measured = await session.measure(load, number * PROMPTS_OF_A_RUN, lambda outcome, task=task: bar.advance(task))  # type: ignore[misc]
                found = figures(measured, self._objective)
                self._done.append((load, measured, found, watch.stop()))
                self._notes += [f"{load.name}: {note}" for note in notes(found)]
        session.close()

    def table(self) -> list[tuple[str, ...]]:
        """Rows of text, a label first."""
        return rows([found for _, _, found, _ in self._done], self._objective != Objective())

    def notes(self) -> list[str]:
        """Notes on how it was measured, then what else must be known."""
        how = f"{self._model} at {self._url}; prompts of seed {self._seed}, their tokens known by {self._source}"
        return [how, "percentiles by the nearest rank; latency counts from when a request should have been sent", *self._notes]

    def as_dict(self) -> dict[str, Any]:
        """A dict for JSON: seconds and tokens."""
        return {
            "url": self._url, "model": self._model, "api": self._manner.api, "seed": self._seed, "prompts": self._source,
            "ended": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "notes": self.notes(),
            "runs": [
                {"name": load.name, **as_dict(found), "noise": noise.as_dict(), "each": columns(measured)}
                for load, measured, found, noise in self._done
            ],
        }  # fmt: skip

    def page(self) -> str:
        """One HTML document."""
        from importlib.resources import files

        from ridgeline.planning.page import FOLDER, document  # brings the planner along
        from ridgeline.sim.fleet.experiment import PAGE_FOLDER
        from ridgeline.sim.fleet.measures import CURVE_SHARES

        done = [{"name": load.name, "curves": found.curves} for load, _, found, _ in self._done]
        index = files("ridgeline.bench") / "page" / "bench.html"
        data = {"runs": done, "shares": CURVE_SHARES, "table": self.table(), "notes": self.notes()}
        return document(index, [FOLDER / "plot.js", PAGE_FOLDER / "runs.js"], data)

    def show(self) -> None:
        """The table and the notes on stdout."""
        console = Console(highlight=False)
        table = Table(box=None, pad_edge=False)
        table.add_column("")
        for load, *_ in self._done:
            table.add_column(load.name, justify="right")
        for row in self.table():
            table.add_row(*row)
        console.print(table)
        for note in self.notes():
            console.print(note, soft_wrap=True, markup=False)


def columns(measured: Measured) -> dict[str, list[Any]]:
    """Every request, in the order in which they should have been sent; seconds since the first of these moments."""
    ordered = sorted(measured.outcomes, key=lambda outcome: outcome.intended)
    begun = ordered[0].intended if ordered else 0.0

    def moment(value: float) -> float | None:
        return round(value - begun, 6) if value else None

    def row(each: Outcome) -> tuple[Any, ...]:
        moments = [moment(value) for value in (each.intended, each.sent, each.first, each.ended)]
        return (*moments, each.prompt, each.output, each.cached, each.events, each.error)

    names = ("intended", "sent", "first", "ended", "prompt", "output", "cached", "events", "error")
    return {name: list(values) for name, values in zip(names, zip(*map(row, ordered), strict=True), strict=False)}


def _bar() -> Progress:
    console = Console(stderr=True)
    shown = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*shown, console=console, transient=True, disable=not console.is_terminal, refresh_per_second=2)


def _length(load: Load) -> int | None:
    return None if load.seconds is not None else sum(1 for _ in load.arrivals)


def drawn_seed() -> int:
    """One that no earlier run had, as far as chance goes."""
    return secrets.randbits(31)


def parse_api(text: str) -> Api:
    """Raises ConfigError."""
    if text not in ("completions", "chat"):
        raise ConfigError(f"--api is {text!r:.40}; completions and chat are possible", fix={"--api": "completions"})
    return text  # type: ignore[return-value]


def parse_body(text: str | None) -> dict[str, Any]:
    """Raises ConfigError."""
    try:
        found = json.loads(text) if text is not None else {}
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"--extra-body {text!r:.60} is no JSON object", fix={"--extra-body": '{"temperature": 1}'})
    return found


def check_json(path: Path | None) -> None:
    """Before anything long begins. Raises ConfigError where the file cannot be written."""
    check_page(path if str(path) != "-" else None, "--json")


def write_json(path: Path | None, found: dict[str, Any]) -> None:
    """Writes to the file, which at any moment is a whole one, or for - to stdout."""
    if path is None:
        return
    text = json.dumps(found, ensure_ascii=False)
    if str(path) == "-":
        print(text)
        return
    file = path.expanduser().resolve()
    part = file.with_name(file.name + ".part") if file.is_file() else file
    part.write_text(text + "\n", encoding="utf-8")
    part.replace(file)
