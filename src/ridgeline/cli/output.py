"""Output that several verbs share: files that `--html` and `--json` name, a bar, one JSON object, one table. Decides no contents."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ridgeline.errors import ConfigError

WIDTH: Final = 110


def check_page(path: Path | None, flag: str = "--html") -> None:
    """Opened before anything long begins: what cannot be written to is told at once. Raises ConfigError."""
    try:
        if path is not None:
            path.expanduser().open("a").close()
    except OSError as error:
        raise ConfigError(f"{flag} {str(path)!r:.200} cannot be written: {error.strerror}", fix={flag: f"page.{flag[2:]}"}) from error


def write_page(path: Path, document: str) -> None:
    """Writes the document and says so on stderr. Raises ConfigError where the file cannot be written."""
    check_page(path)
    path.expanduser().write_text(document, encoding="utf-8")
    print(f"{path} written, {len(document.encode()) / 1e3:.0f} kB", file=sys.stderr)


@contextmanager
def progress_bar(text: str) -> Iterator[Callable[[float], None]]:
    """A function to call with the fraction that is done; shows nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=1.0)
        yield lambda done: bar.update(task, completed=done)


def show_json(report: Mapping[str, object]) -> None:
    """One object on stdout."""
    print(json.dumps(report, ensure_ascii=False))


def show_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Words left, numbers right; the first column are words."""
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


def billions(value: float) -> str:
    """10⁹ with as many digits as mean something."""
    return f"{value / 1e9:,.1f}" if value < 1e11 else f"{value / 1e9:,.0f}"
