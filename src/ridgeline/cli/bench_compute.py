"""What the verbs that measure this machine and its kernels share: lists on a command line, a progress bar, tables. Computes nothing."""

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from ridgeline.errors import ConfigError

WIDTH: Final = 110
_SHAPE: Final = re.compile(r"(\d{1,8})x(\d{1,8})")


def numbers(flag: str, text: str) -> tuple[int, ...]:
    """`1,4,16` as integers. Raises ConfigError."""
    words = [word.strip() for word in text.split(",")]
    wrong = next((word for word in words if not (word.isascii() and word.isdigit() and len(word) < 10)), None)
    if wrong is not None:
        raise ConfigError(f"{flag} has {wrong!r:.40}; write whole numbers with commas between them: 1,4,16", fix={flag: "1,4,16"})
    return tuple(int(word) for word in words)


def shapes(flag: str, text: str) -> tuple[tuple[int, int], ...]:
    """`8192x2048,2048x8192` as pairs. Raises ConfigError."""
    found = [(word, _SHAPE.fullmatch(word.strip())) for word in text.split(",")]
    wrong = next((word for word, match in found if match is None), None)
    if wrong is not None:
        raise ConfigError(f"{flag} has {wrong!r:.40}; write outputs x inputs: 8192x2048", fix={flag: "8192x2048"})
    return tuple((int(match[1]), int(match[2])) for _, match in found if match is not None)


def computing(module: str) -> Any:
    """A module of the computing wing, by name: it brings arrays."""
    return importlib.import_module(f"ridgeline.compute.bench.{module}")


@contextmanager
def progress_bar(text: str) -> Iterator[Callable[[float], None]]:
    """What is called with the fraction that is done; shows nothing where stderr is no terminal."""
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
