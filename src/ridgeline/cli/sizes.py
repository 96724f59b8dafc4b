"""Flags that take tokens or bytes: 4096, 4_096, 4k, 4K, 4GiB, within bounds. For verbs whose flags are not settings of a server."""

from collections.abc import Callable
from typing import Any, Final

import typer

from ridgeline.config.values import MAX_SIZE, parse_size
from ridgeline.errors import ConfigError

GIGA: Final = 1e9


def size_option(flag: str, help: str, unit: str = "tokens", low: int = 0, high: int = MAX_SIZE) -> Any:
    """The option `flag`, whose value is a whole number of `unit` ("tokens" or "bytes") from `low` to `high`."""

    def parse(text: str | int) -> int:
        value = _number(text) if isinstance(text, int) or text.strip().startswith("-") else parse_size(text, flag, unit=unit)
        if value is None or not low <= value <= high:
            nearer = low if value is None or value < low else high
            raise ConfigError(f"{flag} is {text!s:.40}, outside {low} … {high}", fix={flag: str(nearer)})
        return value

    return _option(flag, help, unit.upper(), parse)


def gigabytes_option(flag: str, help: str) -> Any:
    """The option `flag`, whose value is a number of GB, or a size with a unit (24GiB), as GB."""

    def parse(text: str | float) -> float:
        if isinstance(text, str) and text.strip()[-1:].isalpha():
            return parse_size(text, flag) / GIGA
        try:
            return float(text)
        except ValueError:
            raise ConfigError(f"{flag} is {text!r:.40}; a number of GB, or a size as 24GiB, was expected", fix={flag: None}) from None

    return _option(flag, help, "GB", parse)


def _option(flag: str, help: str, metavar: str, parse: Callable[..., Any]) -> Any:
    return typer.Option(flag, help=help, metavar=metavar, parser=parse)


def _number(text: str | int) -> int | None:
    """The integer; None where it is none."""
    try:
        return int(text)
    except ValueError:
        return None
