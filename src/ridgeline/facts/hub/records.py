"""Records of models that were fetched or used here: small JSON files, whose time of change is the time of the last use.

A model without a record was put into a shared cache by another program, and is never deleted by this one.
"""

import hashlib
import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.errors import ModelFormatError, ModelNotFoundError
from ridgeline.facts.files.json_file import read_object
from ridgeline.facts.hub.locks import writer_tag

if TYPE_CHECKING:
    from ridgeline.facts.hub.download import Selection


@dataclass(frozen=True, slots=True)
class Record:
    """Knowledge about a model beside its files.

    used     seconds since 1970 of the last use
    fetched  seconds since 1970 of the download; 0: another program fetched it
    digests  by path in the repository, as checked when it was fetched
    """

    used: float
    fetched: float = 0.0
    source: str = ""
    licence: str = ""
    digests: tuple[tuple[str, str], ...] = ()


def note_use(cache: Path, model: Path, selection: "Selection | None" = None) -> None:
    """Notes that the model at `model` is used now, and with `selection` that it was fetched now. A disk that cannot be written is no
    error."""
    path = _record_path(cache, model)
    with suppress(OSError):
        if selection is None and path.exists():
            os.utime(path)
            return
        values: dict[str, object] = {"model": str(model)}
        if selection is not None:
            repository = selection.repository
            digests = {file.path: file.digest for file in selection.files}
            values |= {"fetched": time.time(), "source": f"{repository.name.repository}@{repository.commit}", "licence": repository.licence}
            values["digests"] = digests
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{writer_tag()}")
        temporary.write_text(json.dumps(values))
        os.replace(temporary, path)


def read_record(cache: Path, model: Path) -> Record | None:
    """The record of the model at `model`; None without one."""
    path = _record_path(cache, model)
    try:
        values, used = read_object(path), path.stat().st_mtime
    except (OSError, ModelFormatError, ModelNotFoundError):
        return None
    digests = values.get("digests")
    fetched = values.get("fetched")
    return Record(
        used=used,
        fetched=float(fetched) if isinstance(fetched, (int, float)) else 0.0,
        source=str(values.get("source", ""))[:300],
        licence=str(values.get("licence", ""))[:60],
        digests=tuple(sorted((str(name), str(digest)) for name, digest in digests.items())) if isinstance(digests, dict) else (),
    )


def forget(cache: Path, model: Path) -> None:
    """Removes the record of the model at `model`."""
    with suppress(OSError):
        _record_path(cache, model).unlink()


def _record_path(cache: Path, model: Path) -> Path:
    return cache / "library" / f"{hashlib.sha256(str(model).encode()).hexdigest()[:32]}.json"
