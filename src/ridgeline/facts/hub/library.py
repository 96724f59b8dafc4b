"""The library: all models on this machine whatever program fetched them, with their last use, and the removal of those fetched here."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ridgeline.errors import ModelNotFoundError
from ridgeline.facts.hub.local import PARTIAL, LocalModel, hub_models
from ridgeline.facts.hub.locks import file_lock
from ridgeline.facts.hub.names import parse_hub_name
from ridgeline.facts.hub.others import LLAMA, OLLAMA, llama_models, ollama_models
from ridgeline.facts.hub.packaged import PACKAGED, assembled_model
from ridgeline.facts.hub.records import Record, forget, read_record
from ridgeline.facts.hub.select import quantisation_of
from ridgeline.facts.hub.source import find_hub_name, find_local, find_path

if TYPE_CHECKING:
    from ridgeline.config.env import ModelStores

PACKAGE: Final = "package"
UNFINISHED: Final = "unfinished"


@dataclass(frozen=True, slots=True)
class Entry:
    """A model of the library. `record` is None where it was neither fetched nor used by Ridgeline."""

    model: LocalModel
    record: Record | None

    @property
    def is_own(self) -> bool:
        """True where Ridgeline put it where it lies, and may remove it."""
        return self.model.origin in (PACKAGE, UNFINISHED) or (self.record is not None and self.record.fetched > 0)


def list_models(stores: "ModelStores") -> list[Entry]:
    """All models on this machine, those used last first. Reads no weights and asks no hub."""
    entries = [Entry(model, read_record(stores.cache, model.path)) for model in _all_models(stores)]
    return sorted(entries, key=lambda entry: (-(entry.record.used if entry.record else 0.0), entry.model.name))


def find_entry(name: str, stores: "ModelStores") -> Entry | None:
    """The entry of the model that `name` means; None for one that is not on this machine, and for a path outside all stores."""
    entries = list_models(stores)
    for entry in entries:
        if entry.model.name == name:
            return entry
    path = find_path(name)
    if path is None and name not in PACKAGED:
        path = find_local(name, stores)
    places = {entry.model.path: entry for entry in entries} | {entry.model.path.resolve(): entry for entry in entries}
    hub_name = find_hub_name(name)
    unfinished = (entry for entry in entries if entry.model.origin == UNFINISHED and hub_name and entry.model.name == hub_name.repository)
    return places.get(path) if path is not None else next(unfinished, None)


def owner_hint(entry: Entry) -> str:
    """The command that removes a model that Ridgeline did not fetch."""
    model = entry.model
    if model.origin == OLLAMA:
        return f"it is Ollama's: ollama rm {model.name}"
    if model.origin == LLAMA:
        return f"it is in llama.cpp's cache: delete {model.path}"
    return "another program fetched it into the cache that Hugging Face's programs share: hf cache rm, or pull it here first"


def remove_model(entry: Entry, stores: "ModelStores") -> int:
    """Removes a model that Ridgeline fetched; returns the bytes that are free now. Files that other models share stay.

    Raises ModelNotFoundError for one that is being downloaded, OSError.
    """
    model = entry.model
    assert entry.is_own, f"{model.name} is another program's"
    if model.origin == PACKAGE:
        model.path.unlink()
        freed = model.bytes
    elif model.origin == UNFINISHED:
        freed = sum(_remove_blob(_locks(file.parent.parent), file) for file in model.files)
        _prune(model.path)
    else:
        freed = _remove_snapshot_files(model, entry.record)
    forget(stores.cache, model.path)
    return freed


def _all_models(stores: "ModelStores") -> Iterator[LocalModel]:
    for name in PACKAGED:
        path = assembled_model(name, stores.cache)
        if path is not None:
            yield LocalModel(name, path, (path,), path.stat().st_size, quantisation_of(path.name), PACKAGE)
    if stores.hub is not None:
        yield from hub_models(stores.hub)
        yield from _unfinished(stores.hub)
    for store in stores.ollama:
        with suppress(OSError):
            yield from ollama_models(store)
    if stores.llama is not None:
        with suppress(OSError):
            yield from llama_models(stores.llama)


def _unfinished(hub: Path) -> Iterator[LocalModel]:
    """Repositories of which a download was begun and not ended."""
    for folder in sorted(hub.glob("models--*")):
        name = folder.name.removeprefix("models--").replace("--", "/", 1)
        files = tuple(sorted((folder / "blobs").glob(f"*{PARTIAL}")))
        if files and parse_hub_name(name) is not None:
            yield LocalModel(name, folder, files, sum(file.stat().st_size for file in files), "", UNFINISHED)


def _remove_snapshot_files(model: LocalModel, record: Record | None) -> int:
    """Removes the links of a model, then the blobs to which no link leads, then folders that are empty and references to them."""
    snapshot = next(path for path in (model.path, *model.path.parents) if path.parent.name == "snapshots" and path.name == model.commit)
    folder = snapshot.parent.parent
    fetched = [snapshot / name for name, _ in record.digests] if record is not None else []
    blobs = []
    for link in {*model.files, *(path for path in fetched if path.is_relative_to(snapshot) and ".." not in path.parts)}:
        if link.is_symlink() and link.resolve().parent == (folder / "blobs").resolve():
            blobs.append(link.resolve())
            link.unlink()
    used = {path.resolve() for path in (folder / "snapshots").rglob("*") if path.is_symlink()}
    freed = sum(_remove_blob(_locks(folder), blob) for blob in blobs if blob not in used)
    _prune(folder)
    return freed


def _locks(folder: Path) -> Path:
    return folder.parent / ".locks" / folder.name


def _remove_blob(locks: Path, blob: Path) -> int:
    """Removes a blob, or what is there of it, under the lock of its download; returns its bytes."""
    with file_lock(locks / f"{blob.name.removesuffix(PARTIAL)}.lock", _never_wait):
        try:
            size = blob.stat().st_size
            blob.unlink()
        except FileNotFoundError:
            return 0
        return size


def _never_wait() -> None:
    raise ModelNotFoundError("it is being downloaded now; end that first, then remove it")


def _prune(folder: Path) -> None:
    """Removes folders of a repository that are empty, and references to snapshots that are gone."""
    snapshots = folder / "snapshots"
    for parent, _, _ in os.walk(snapshots, topdown=False):
        with suppress(OSError):
            os.rmdir(parent)
    for reference in (folder / "refs").glob("*"):
        with suppress(OSError):
            if not (snapshots / reference.read_text().strip()).is_dir():
                reference.unlink()
    for name in ("refs", "blobs", "snapshots", "."):
        with suppress(OSError):
            (folder / name).rmdir() if name != "." else folder.rmdir()
    locks = _locks(folder)
    if not folder.exists():
        for lock in locks.glob("*.lock"):
            lock.unlink(missing_ok=True)
        with suppress(OSError):
            locks.rmdir()
