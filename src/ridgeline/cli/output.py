"""Output shared by verbs: files of `--html` and `--json`, progress, JSON, tables, status lines."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

from ridgeline.errors import ConfigError

WIDTH: Final = 110


def check_writable(path: Path | None, flag: str = "--html") -> None:
    """Checks before a long run that the file can be written. Raises ConfigError."""
    try:
        if path is not None:
            path.expanduser().open("a").close()
    except OSError as error:
        raise ConfigError(f"{flag} {str(path)!r:.200} cannot be written: {error.strerror}", fix={flag: f"page.{flag[2:]}"}) from error


def write_page(path: Path, document: str) -> None:
    """Writes the document and reports it on stderr. Raises ConfigError where the file cannot be written."""
    check_writable(path)
    path.expanduser().write_text(document, encoding="utf-8")
    print(f"{path} written, {len(document.encode()) / 1e3:.0f} kB", file=sys.stderr)


@contextmanager
def progress_bar(text: str) -> Iterator[Callable[[float], None]]:
    """Progress bar on stderr, nothing where it is not a terminal. Yields a function to call with the fraction that is done."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=1.0)
        yield lambda done: bar.update(task, completed=done)


def print_json(report: Mapping[str, object]) -> None:
    """Prints one JSON object to stdout."""
    print(json.dumps(report, ensure_ascii=False))


def print_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table: the first column is text, left aligned; others are numbers, right aligned."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal or console.width > WIDTH:
        console = Console(highlight=False, width=WIDTH)
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def format_giga(value: float) -> str:
    """A value in units of 10⁹."""
    return f"{value / 1e9:,.1f}" if value < 1e11 else f"{value / 1e9:,.0f}"


def print_status(line: str) -> None:
    """Prints one line to stderr."""
    print(line, file=sys.stderr, flush=True)


class LoadingProgress(AbstractContextManager["LoadingProgress"]):
    """Progress while a model loads: a line that changes on a terminal, elsewhere, and where `report` is given, one line per stage."""

    def __init__(self, report: Callable[[str], None] | None = None) -> None:
        self._status: Any = None
        self._stage = ""
        self._report = report or print_status
        if report is None and sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True, highlight=False).status("starting")
            self._status.start()

    def show(self, stage: str, fraction: float) -> None:
        """Shows the stage and the fraction of it that is done."""
        if self._status is not None:
            self._status.update(f"{stage} {fraction:.0%}")
        elif stage != self._stage:
            self._report(stage)
        self._stage = stage

    def close(self) -> None:
        """Removes the line. Safe to call twice."""
        if self._status is not None:
            self._status.stop()

    def __exit__(self, *_: object) -> None:
        self.close()
