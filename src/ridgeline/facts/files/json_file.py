"""Reader of JSON files of a model directory: bounded in size; duplicate keys, NaN and infinities are errors."""

import json
from pathlib import Path
from typing import Any, NoReturn

from ridgeline.errors import ModelFormatError
from ridgeline.facts.files.values import open_file

MAX_BYTES = 1 << 20


def read_object(path: Path, most_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Parses the JSON object in the file. Raises ModelFormatError, ModelNotFoundError."""
    return parse_object(read_text(path, most_bytes), path.name)


def read_text(path: Path, most_bytes: int = MAX_BYTES) -> str:
    """Text of the file. Raises ModelFormatError where it is too long or not UTF-8, ModelNotFoundError where it cannot be read."""
    try:
        with open_file(path) as file:
            size = file.seek(0, 2)
            if size > most_bytes:
                raise ModelFormatError(f"{path} has {size} bytes, a {path.name} at most {most_bytes}; is it another file?")
            file.seek(0)
            return file.read(most_bytes).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelFormatError(f"{path} is not UTF-8 (byte {error.start}); is it another file?") from None


def parse_object(text: str, name: str) -> dict[str, Any]:
    """Parses the JSON object in `text`; `name` is the file's in messages. Raises ModelFormatError."""
    values = _parse(text, name)
    if not isinstance(values, dict):
        raise ModelFormatError(f"{name} holds a {type(values).__name__}, an object was expected")
    return values


def parse_array(text: str, name: str) -> list[Any]:
    """Parses the JSON array in `text`, as `parse_object` does an object."""
    values = _parse(text, name)
    if not isinstance(values, list):
        raise ModelFormatError(f"{name} holds a {type(values).__name__}, an array was expected")
    return values


def _parse(text: str, name: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, value in pairs:
            if key in values:
                raise ModelFormatError(f"{name}: the key {key[:60]!r} appears twice; remove one of them")
            values[key] = value
        return values

    def no_constant(word: str) -> NoReturn:
        raise ModelFormatError(f"{name} holds {word}, which is not a JSON number")

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=no_constant)
    except json.JSONDecodeError as error:
        raise ModelFormatError(f"{name} is not JSON: {error.msg} in line {error.lineno}, column {error.colno}") from None
    except (RecursionError, ValueError):
        raise ModelFormatError(f"{name} nests too deeply or holds a number without bounds; is it another file?") from None
