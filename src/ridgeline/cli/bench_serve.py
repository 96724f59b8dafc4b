"""Runs of `ridgeline bench serve`: from flags to loads, progress on stderr, then a column per run, as a table, JSON or a page.

Owns how lengths, arrivals, traces, and lists of streams or rates become loads.
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

from ridgeline.bench.client import Api, RequestOutcome
from ridgeline.bench.report import LoadReport, as_dict, make_report, report_notes, table_rows
from ridgeline.bench.session import Load, Measurement, RequestOptions, Session
from ridgeline.cli.output import print_notes, print_table
from ridgeline.errors import ConfigError
from ridgeline.facts.hardware.noise import Noise, NoiseMonitor
from ridgeline.planning.objectives import Objective
from ridgeline.sim.fleet.traffic import Arrival, ClosedLoop, Traffic, parse_arrival_process, parse_length, read_trace

MAX_TOKENS: Final = 1 << 20
MAX_STREAMS: Final = 4096
MAX_REQUESTS: Final = 100_000
REQUESTS: Final = 100
BURST: Final = "burst"


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Flags of `bench serve` that define the load; None where not given."""

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


def make_loads(options: LoadOptions) -> list[Load]:
    """One load per number of streams or per rate. Raises ConfigError."""
    streams = _parse_numbers("--streams", options.streams)
    rates = _parse_numbers("--rate", options.rate)
    if any(each != int(each) or not 1 <= each <= MAX_STREAMS for each in streams):
        raise ConfigError(
            f"--streams {options.streams} is not understood; write whole numbers of 1 … {MAX_STREAMS}", fix={"--streams": "16"}
        )
    is_open_loop = bool(rates) or options.trace is not None or options.arrivals == BURST
    if is_open_loop and len(streams) > 1:
        raise ConfigError(f"--streams {options.streams} is a list; in an open loop it is one limit", fix={"--streams": None})
    max_streams = int(streams[0]) if streams else None
    if options.trace is not None:
        return [_trace_load(options, max_streams)]
    if options.arrivals == BURST:
        return [Load(f"burst of {options.requests or REQUESTS}", _burst_arrivals(options), max_streams, is_open_loop=True)]
    if rates:
        return [Load(f"{rate:g}/s", _open_arrivals(options, rate), max_streams, is_open_loop=True) for rate in rates]
    counts = [int(each) for each in streams or [1]]
    return [Load(f"{count} stream{'s' * (count > 1)}", _closed_arrivals(options), count, seconds=options.seconds) for count in counts]


def _parse_numbers(flag: str, text: str | None) -> list[float]:
    try:
        return [] if text is None else [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{flag} {text!r:.40} is not understood; write a number, or several with commas", fix={flag: None}) from None


def _make_users(options: LoadOptions) -> ClosedLoop:
    prompt, output = parse_length("--input-len", options.input_len), parse_length("--output-len", options.output_len)
    return ClosedLoop(1, 0.0, prompt, output, MAX_TOKENS, options.prefixes if options.shared_prefix else 0, options.shared_prefix)


def _closed_arrivals(options: LoadOptions) -> Iterable[Arrival]:
    """Arrivals of a closed loop, endless where --seconds ends it."""
    requests = options.requests if options.requests is not None else None if options.seconds is not None else REQUESTS
    return _RepeatableArrivals(_make_users(options), options.seed, requests)


@dataclass(frozen=True, slots=True)
class _RepeatableArrivals:
    """Arrivals of a closed loop that can be iterated repeatedly."""

    users: ClosedLoop
    seed: int
    count: int | None

    def __iter__(self) -> "islice[Arrival]":
        return islice(self.users.requests(self.seed, 0), self.count)


def _open_arrivals(options: LoadOptions, rate: float) -> list[Arrival]:
    users = _make_users(options)
    traffic = Traffic(parse_arrival_process(options.arrivals, rate), users.prompt, users.output, MAX_TOKENS, users.prefixes, users.shared)
    count = options.requests or (MAX_REQUESTS if options.seconds is not None else REQUESTS)
    found = list(takewhile(lambda each: options.seconds is None or each.time < options.seconds, traffic.arrivals(options.seed, count)))
    if not found:
        raise ConfigError(f"no request comes within --seconds {options.seconds:g} at --rate {rate:g}; raise one of them")
    return found


def _burst_arrivals(options: LoadOptions) -> list[Arrival]:
    return list(islice(_make_users(options).requests(options.seed, 0), options.requests or REQUESTS))


def _trace_load(options: LoadOptions, max_streams: int | None) -> Load:
    assert options.trace is not None
    found = read_trace(options.trace, options.speed)[: options.requests]
    longest = max(each.prompt + each.output for each in found)
    if len(found) > MAX_REQUESTS or longest > MAX_TOKENS:
        raise ConfigError(
            f"{options.trace.name} has {len(found)} requests, the longest of {longest} tokens; "
            f"at most {MAX_REQUESTS} of {MAX_TOKENS} tokens can be sent",
            fix={"--requests": str(MAX_REQUESTS)},
        )
    seconds = options.seconds
    return Load(options.trace.name, [each for each in found if seconds is None or each.time < seconds], max_streams, is_open_loop=True)


RUNS_PER_TABLE = 4
"""Columns of runs that fit beside the labels in 80 columns."""
PROMPTS_PER_RUN = 1 << 20
"""Prompt numbers reserved for each run, so that no two runs share a prompt."""


class ServeRuns:
    """Runs of one server under several loads."""

    def __init__(self, url: str, request_options: RequestOptions, seed: int, objective: Objective) -> None:
        self._url, self._request_options, self._seed, self._objective = url, request_options, seed, objective
        self._done: list[tuple[Load, Measurement, LoadReport, Noise]] = []
        self._notes: list[str] = []
        self._model = self._source = ""

    @property
    def has_answers(self) -> bool:
        """True if any request was answered."""
        return any(found.requests for _, _, found, _ in self._done)

    def run(self, loads: list[Load], warm_up: int) -> None:
        """Measures all loads. Raises ConfigError where the server cannot be measured."""
        asyncio.run(self._run(loads, warm_up))

    async def _run(self, loads: list[Load], warm_up: int) -> None:
        session = await Session.open(self._url, self._request_options, self._seed)
        self._model, self._source = session.model, session.costs_source
        with _make_progress() as bar:
            for number, load in enumerate(loads):
                task = bar.add_task(load.name, total=_num_requests(load))
                failed = await session.warm_up(load, warm_up, load.streams or 1)
                self._notes += [f"{load.name}: a request to warm up failed, {message}" for message in failed[:1]]
                watch = NoiseMonitor()
                measured = await session.measure(load, number * PROMPTS_PER_RUN, lambda outcome, task=task: bar.advance(task))  # type: ignore[misc]
                found = make_report(measured, self._objective)
                self._done.append((load, measured, found, watch.stop()))
                self._notes += [f"{load.name}: {note}" for note in report_notes(found)]
        session.close()

    def table(self) -> list[tuple[str, ...]]:
        """Table rows of text, a label first."""
        return table_rows([found for _, _, found, _ in self._done], self._objective != Objective())

    def notes(self) -> list[str]:
        """Notes on the method, then on each run."""
        how = f"prompts of seed {self._seed}, tokens counted by {self._source}"
        return [how, "percentiles by the nearest rank; latency counts from when a request should have been sent", *self._notes]

    def as_dict(self) -> dict[str, Any]:
        """A dict for JSON: seconds and tokens."""
        return {
            "url": self._url, "model": self._model, "api": self._request_options.api, "seed": self._seed, "prompts": self._source,
            "ended": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "notes": self.notes(),
            "runs": [
                {"name": load.name, **as_dict(found), "noise": noise.as_dict(), "each": request_columns(measured)}
                for load, measured, found, noise in self._done
            ],
        }  # fmt: skip

    def page(self) -> str:
        """One HTML document."""
        from importlib.resources import files

        from ridgeline.planning.page import FOLDER, document  # imports the planner
        from ridgeline.sim.fleet.experiment import PAGE_FOLDER
        from ridgeline.sim.fleet.measures import CURVE_SHARES

        done = [{"name": load.name, "curves": found.curves} for load, _, found, _ in self._done]
        index = files("ridgeline.bench") / "page" / "bench.html"
        data = {"runs": done, "shares": CURVE_SHARES, "table": self.table(), "notes": self.notes()}
        return document(index, [FOLDER / "plot.js", PAGE_FOLDER / "runs.js"], data)

    def show(self) -> None:
        """Prints the table and the notes to stdout."""
        rows = self.table()
        for first in range(0, len(self._done), RUNS_PER_TABLE):
            names = [load.name for load, *_ in self._done[first : first + RUNS_PER_TABLE]]
            title = f"{self._model} at {self._url}"
            print_table(title, ["metric", *names], [[row[0], *row[first + 1 : first + 1 + len(names)]] for row in rows])
            print_notes("")
        print_notes(*self.notes())


def request_columns(measured: Measurement) -> dict[str, list[Any]]:
    """Columns of all requests, ordered by intended time; seconds since the first of these."""
    ordered = sorted(measured.outcomes, key=lambda outcome: outcome.intended)
    begun = ordered[0].intended if ordered else 0.0

    def moment(value: float) -> float | None:
        return round(value - begun, 6) if value else None

    def row(each: RequestOutcome) -> tuple[Any, ...]:
        moments = [moment(value) for value in (each.intended, each.sent, each.first, each.ended)]
        return (*moments, each.prompt, each.output, each.cached, each.events, each.error)

    names = ("intended", "sent", "first", "ended", "prompt", "output", "cached", "events", "error")
    return {name: list(values) for name, values in zip(names, zip(*map(row, ordered), strict=True), strict=False)}


def _make_progress() -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal, refresh_per_second=2)


def _num_requests(load: Load) -> int | None:
    return None if load.seconds is not None else sum(1 for _ in load.arrivals)


def random_seed() -> int:
    """A random seed, so that prompts are in no cache."""
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
        raise ConfigError(f"--extra-body {text!r:.60} is not a JSON object", fix={"--extra-body": '{"temperature": 1}'})
    return found


def write_json(path: Path | None, found: dict[str, Any]) -> None:
    """Writes to the file, replacing it atomically, or for - to stdout."""
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
