"""Small JSON files in the cache directory: read whole or not at all, written whole or not at all."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

MAX_FILE_BYTES: Final = 1 << 18


def read_kept(file: Path) -> dict[str, Any]:
    """The object in the file; empty where there is none, or it is damaged or too large."""
    try:
        with file.open("rb") as stream:
            text = stream.read(MAX_FILE_BYTES + 1)
        found = json.loads(text) if len(text) <= MAX_FILE_BYTES else None
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write_kept(file: Path, value: dict[str, Any]) -> None:
    """Writes the file, whole or not at all; nothing where it cannot be written."""
    text, part = json.dumps(value), file.with_name(f"{file.name}.{os.getpid()}")
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)
