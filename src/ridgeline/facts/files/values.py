"""Checks of what files say: numbers are bounded where they are read, and messages quote values at a bounded length."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ridgeline.errors import ModelFormatError, ModelNotFoundError


def quoted(value: object) -> str:
    """A value from a file as a message shows it: escaped, and never longer than 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def bounded_integer(value: object, name: str, low: int, high: int, default: int | None = None) -> int:
    """`value` as an integer within [low, high], or `default` where it is None.

    name  of the value in messages, with its file: "config.json: hidden_size"
    Raises ModelFormatError; also for None without a default.
    """
    value = _present(value, name, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelFormatError(f"{name} is {_shown(value)}, an integer was expected")
    _check_bounds(value, name, low, high)
    return value


def bounded_number(value: object, name: str, low: float, high: float, default: float | None = None) -> float:
    """`value` as a finite number within [low, high]; otherwise as `bounded_integer`."""
    value = _present(value, name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ModelFormatError(f"{name} is {_shown(value)}, a number was expected")
    _check_bounds(value, name, low, high)
    return float(value)


def _present(value: object, name: str, default: object) -> object:
    value = default if value is None else value
    if value is None:
        raise ModelFormatError(f"{name} is missing; give the whole file of the model")
    return value


def _shown(value: object) -> str:
    """Arrays of a header may be large and are named by their type alone."""
    return f"{value!r:.40}" if isinstance(value, (bool, int, float, str)) else f"of type {type(value).__name__}"


def _check_bounds(value: float, name: str, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ModelFormatError(f"{name} is {value!s:.40}, outside {low} … {high}; the file is damaged or of an unknown kind")


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """The file at `path`, open for reading. Raises ModelNotFoundError where it cannot be read."""
    if path.exists() and not path.is_file():
        raise ModelNotFoundError(f"{path} is not a file; check the path")
    try:
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise ModelNotFoundError(f"there is no file {path}; check the path") from None
    except OSError as error:
        raise ModelNotFoundError(f"{path} cannot be read ({error.strerror}); check the path and its permissions") from None
