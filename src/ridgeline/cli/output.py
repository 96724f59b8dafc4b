"""Output shared by verbs: files of `--html` and `--json`, progress, JSON, tables, status lines."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ridgeline.config.env import width_is_set
from ridgeline.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

WIDTH: Final = 100
"""Most columns of what is printed."""
LEAST_TEXT: Final = 26
"""Columns of a text that is wrapped in a table."""
GAP: Final = 2
"""Spaces between columns."""


def check_writable(path: Path | None, flag: str = "--html") -> None:
    """Checks before a long run that the file can be written. Raises ConfigError."""
    try:
        if path is not None:
            file = path.expanduser()
            is_new = not file.exists()
            file.open("a").close()
            if is_new:
                file.unlink()  # the check of a suggestion leaves nothing behind
    except OSError as error:
        raise ConfigError(f"{flag} {str(path)!r:.200} cannot be written: {error.strerror}", fix={flag: f"page.{flag[2:]}"}) from error


def check_json(path: Path | None) -> None:
    """Checks before a long run that `--json` can be written; - is stdout. Raises ConfigError."""
    check_writable(path if str(path) != "-" else None, "--json")


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


def make_console() -> "Console":
    """The console of stdout: as wide as the terminal, at most `WIDTH`; without a terminal `WIDTH`, or $COLUMNS where that is less."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=False)
    if console.width > WIDTH or (not console.is_terminal and not width_is_set()):
        console = Console(highlight=False, width=WIDTH)
    return console


def print_table(
    title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], *, optional: Sequence[str] = (), wrapped: str | None = None
) -> None:
    """Prints a table: the first column is text, left aligned; others are numbers, right aligned.

    optional  heads of columns that are left out, in this order, while the table is wider than the console
    wrapped   head of a column of text that may take several lines
    """
    from rich.table import Table
    from rich.text import Text

    console = make_console()
    widths = _column_widths(heads, rows)
    if wrapped is not None:
        widths[wrapped] = min(widths[wrapped], LEAST_TEXT)
    hidden = []
    for head in optional:
        if _table_width(widths) <= console.width:
            break
        del widths[head]
        hidden.append(head)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for number, head in enumerate(heads):
        if head in widths:
            is_text = number == 0 or head == wrapped
            table.add_column(Text(head), justify="left" if is_text else "right", no_wrap=head != wrapped, overflow="fold")
    for row in rows:
        table.add_row(*(Text(text) for head, text in zip(heads, row, strict=True) if head in widths))
    console.print(Text(title, style="bold"))
    console.print(table)
    if hidden:
        console.print(f"(not in {console.width} columns: {', '.join(hidden)})", style="dim")


def is_narrow_enough(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """True if a table fits the console."""
    return _table_width(_column_widths(heads, rows)) <= make_console().width


def _column_widths(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, int]:
    from rich.cells import cell_len

    return {head: max(cell_len(text) for text in (head, *(row[number] for row in rows))) for number, head in enumerate(heads)}


def _table_width(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)


def print_notes(*notes: str) -> None:
    """Prints lines of text to stdout, wrapped at the console's width."""
    console = make_console()
    for note in notes:
        console.print(note, markup=False)


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
        self._is_loading = True
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
        """Removes the line: the model is loaded. Safe to call twice."""
        if self._status is not None:
            self._status.stop()
        self._is_loading = False

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Says of an interrupt what it interrupted."""
        was_loading = self._is_loading
        self.close()
        if kind is KeyboardInterrupt and was_loading:
            raise KeyboardInterrupt(f"interrupted while loading ({self._stage or 'starting'})") from None
