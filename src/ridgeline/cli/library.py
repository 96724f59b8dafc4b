"""`ridgeline pull` and `ridgeline rm`: models fetched into the library, with size and fit said before, and removed from it.

`pull_with_progress` is also what `run` uses for a model that is not here.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ridgeline.cli.output import print_json, print_status
from ridgeline.errors import ConfigError, ModelFormatError

if TYPE_CHECKING:
    from ridgeline.config.env import ModelStores
    from ridgeline.facts.hub.download import OnBytes, Selection
    from ridgeline.facts.hub.library import Entry
    from ridgeline.planning.report import Report

LINE_SECONDS: Final = 10.0
"""Between lines of progress where there is no terminal."""
MODEL_HELP: Final = "A short name (llama3.2:1b), org/name, org/name:Q4_K_M, org/name/file.gguf or hf.co/org/name."


def pull(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    expect_sha256: Annotated[str | None, typer.Option(help="SHA-256 that the weights must have, or a file as sha256sum writes it.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Also where the model does not fit this machine.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object: name, path, bytes, commit.")] = False,
) -> None:
    """Fetch a model, or what is new of it: says size and fit first, goes on where it stopped, checks every digest."""
    from ridgeline.config.env import model_stores
    from ridgeline.facts.hub.digests import check_digests, weight_files
    from ridgeline.facts.hub.packaged import PACKAGED
    from ridgeline.facts.hub.source import find_path, resolve_model

    stores = model_stores()
    path = find_path(model)
    if path is not None:
        print_status(f"{model} is here already: {path}")
    else:
        path = resolve_model(model, stores) if model in PACKAGED else pull_with_progress(model, stores, yes=yes)
    if expect_sha256 is not None:
        check_digests(path, expect_sha256, lambda stage, fraction: None)
    if as_json:
        size = sum(file.stat().st_size for file in weight_files(path))
        print_json({"name": model, "path": str(path), "bytes": size})
    else:
        print_status(f"{path}\nTalk with it: ridgeline run {model}    Serve it: ridgeline serve {model}")


def pull_with_progress(name: str, stores: "ModelStores", *, yes: bool = False) -> Path:
    """Fetches the model `name` from its hub and returns its path. Says what it is, how large, and whether it fits, before anything is
    fetched; where it does not fit this machine, asks unless `yes`, and without a terminal ends with 1.

    Raises ModelNotFoundError, ModelFormatError for a model that cannot run here, ConfigError where the disk is too small.
    """
    from ridgeline.facts.hub.source import download_remote, find_remote

    client, selection = find_remote(name, stores)
    report = read_fit(client, selection)
    missing = selection.bytes - report_present(selection, stores)
    print_status(describe_selection(name, selection, report))
    if not missing:
        print_status("all of it is here already")
    elif not report.fits and not yes:
        _ask(f"Fetch {format_bytes(missing)} all the same?")
    try:
        with transfer_progress(name, selection.bytes if missing else 0) as on_bytes:
            return download_remote(client, selection, stores, on_bytes)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped; the same command goes on at {format_bytes(report_present(selection, stores))}") from None


def fetch_missing(name: str) -> None:
    """Fetches the model `name` as `pull` does where only a hub has it; nothing else happens for any other name."""
    from ridgeline.config.env import model_stores
    from ridgeline.config.groups import FAKE_PREFIX
    from ridgeline.facts.headers.read import RANDOM_PREFIX
    from ridgeline.facts.hub.source import is_remote

    stores = model_stores()
    if not name.startswith((FAKE_PREFIX, RANDOM_PREFIX)) and is_remote(name, stores):
        pull_with_progress(name, stores)


def read_fit(client: Any, selection: "Selection") -> "Report":
    """The plan of a model of the hub for this machine, from its headers. Raises ModelFormatError where it cannot run."""
    from ridgeline.facts.headers.read import describe_files, read_model_facts
    from ridgeline.facts.hub.remote import remote_headers

    with remote_headers(client, selection) as headers:
        facts = describe_files(headers)
        try:
            read_model_facts(headers)
        except ModelFormatError as error:
            raise ModelFormatError(f"{selection.repository.name} cannot run here, and nothing was fetched: {error}") from None
    return plan_here(facts)


def plan_here(facts: Any) -> "Report":
    """The plan of a model for this machine: one sequence of at most 4,096 tokens."""
    from ridgeline.planning.arguments import THIS_MACHINE, PlanOptions, deployment_of
    from ridgeline.planning.objectives import Objective
    from ridgeline.planning.report import make_report

    return make_report(deployment_of(facts, PlanOptions(THIS_MACHINE)), Objective(), False, None)


def report_present(selection: "Selection", stores: "ModelStores") -> int:
    """Bytes of a selection that are in the cache."""
    from ridgeline.facts.hub.download import RepositoryCache

    assert stores.hub is not None, "a command without a place for models"
    cache = RepositoryCache(stores.hub, selection.repository.name.repository)
    return sum(cache.bytes_present(file) for file in selection.files)


def describe_selection(name: str, selection: "Selection", report: "Report") -> str:
    """Two lines: what would be fetched, and how it fits."""
    repository, count = selection.repository, len(selection.files)
    files = selection.files[0].path if count == 1 else f"{count} files"
    shown = str(repository.name) if name != str(repository.name) else name
    licence = f", licence {repository.licence}" if repository.licence else ""
    size = format_bytes(selection.bytes)
    return f"{shown} at {repository.commit[:12]}: {files}, {size}, {report.weights_format}{licence}\n{describe_fit(report)}"


def describe_fit(report: "Report") -> str:
    """One line: whether a model fits this machine, and how fast it can be."""
    if not report.fits:
        missing = format_bytes(report.shortfall_bytes)
        return f"It does not fit this machine: {missing} of memory are missing; take a smaller model or quantisation."
    speed = f"at most {1 / report.decode_floor_seconds:,.0f} tokens/s" if report.decode_floor_seconds else "speed unknown"
    return (
        f"It fits this machine: {format_bytes(report.weights_bytes)} of weights in {format_bytes(report.memory_bytes)} of memory, "
        f"{report.max_sequences:,} × {report.context:,} tokens, {speed} for one user."
    )


def format_bytes(value: float) -> str:
    """A size in units that have at most three digits before the point."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.2f} {unit}" if value < 10 * size else f"{value / size:.0f} {unit}"
    return f"{value:.0f} B"


@contextmanager
def transfer_progress(text: str, total: int) -> "Iterator[OnBytes]":
    """Progress of a download on stderr: a bar with rate and remaining time on a terminal, elsewhere a line every ten seconds.

    Yields a function to call with (bytes done, bytes in all). `total` 0: nothing is shown.
    """
    if not total:
        yield lambda done, total: None
    elif not sys.stderr.isatty():
        yield _line_progress(text)
    else:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(text, total=total)
            yield lambda done, total: bar.update(task, completed=done, total=total)


def _line_progress(text: str) -> "OnBytes":
    began, first, last = time.monotonic(), -1, time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal first, last
        first, now = done if first < 0 else first, time.monotonic()
        if now - last >= LINE_SECONDS:
            last, rate = now, (done - first) / (now - began)
            left = f", {(total - done) / rate:,.0f} s left" if rate else ""
            print_status(f"{text}: {done / total:.0%}, {format_bytes(rate)}/s{left}")

    return show


def rm(
    name: Annotated[str, typer.Argument(help="A name as `list` shows it, or as it was pulled.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object: name and freed bytes; needs --yes.")] = False,
) -> None:
    """Remove a model that Ridgeline fetched; models in other programs' stores are never touched."""
    from ridgeline.config.env import model_stores
    from ridgeline.facts.hub.library import remove_model

    stores = model_stores()
    entry = find_own(name, stores)
    if not yes:
        _ask(f"Remove {entry.model.name} ({format_bytes(entry.model.bytes)} at {entry.model.path})?")
    freed = remove_model(entry, stores)
    if as_json:
        print_json({"name": entry.model.name, "freed_bytes": freed})
    else:
        print_status(f"removed {entry.model.name}; {format_bytes(freed)} are free again")


def find_own(name: str, stores: "ModelStores") -> "Entry":
    """The entry of a model that Ridgeline may remove. Raises ConfigError for one that is not in the library, or is another's."""
    from ridgeline.facts.hub.library import find_entry, owner_hint

    entry = find_entry(name, stores)
    if entry is None:
        raise ConfigError(f"the library has no model {name!r:.200}; `ridgeline list` shows all")
    if not entry.is_own:
        raise ConfigError(f"{entry.model.name} was not fetched by Ridgeline and is not removed; {owner_hint(entry)}")
    return entry


def _ask(question: str) -> None:
    """Ends the command with 1 unless the user says yes; without a terminal nobody can."""
    if not sys.stdin.isatty():
        print_status(f"{question} Nothing was done: there is no terminal to ask; give --yes.")
        raise typer.Exit(1)
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)
