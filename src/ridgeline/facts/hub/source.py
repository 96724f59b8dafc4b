"""The one door from a model's name to its files: packages, paths, stores of this machine, then the hub."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.errors import ModelNotFoundError, nearest
from ridgeline.facts.hub.local import find_adapter_in_hub, find_in_hub
from ridgeline.facts.hub.names import HubName, is_short_name, parse_hub_name, short_name, short_names
from ridgeline.facts.hub.others import find_in_llama, find_in_ollama
from ridgeline.facts.hub.packaged import PACKAGED, Progress, assemble_model
from ridgeline.facts.hub.records import note_use
from ridgeline.facts.hub.select import select_adapter_files

if TYPE_CHECKING:
    from ridgeline.config.env import ModelStores
    from ridgeline.facts.hub.client import HubClient
    from ridgeline.facts.hub.download import OnBytes, Selection


def resolve_model(name: str, stores: "ModelStores", progress: Progress = lambda stage, fraction: None) -> Path:
    """Path of the GGUF file, or of the directory with config.json and safetensors files, that `name` means.

    name  a packaged model; a path of such a file or directory, or of a directory with one GGUF model; a short name of the table
          (`llama3.2:1b`); a name of the hub: org/name, org/name@revision, org/name:Q4_K_M, org/name/file.gguf, with or without hf.co/
          before it; a name of Ollama's store
    A model that lies here already is used without asking the hub. Raises ModelNotFoundError with the fix, ModelFormatError when a package
    is damaged or a repository holds nothing that is accepted, ConfigError where the disk is too small.
    """
    path = find_path(name)
    if path is None:
        path = find_here(name, stores, progress) or _pull(name, stores, progress)
        note_use(stores.cache, path)
    return path


def resolve_adapter(name: str, stores: "ModelStores", progress: Progress = lambda stage, fraction: None) -> Path:
    """Path of the LoRA adapter that `name` means: a folder of PEFT's or a GGUF file; where nothing lies at that path, a name of the hub as
    `resolve_model` has them. One that lies here already is used without asking the hub. Raises as `resolve_model`."""
    path, hub_name = Path(name).expanduser(), parse_hub_name(name)
    if hub_name is None or path.exists():
        return path
    found = None if stores.hub is None else find_adapter_in_hub(stores.hub, hub_name)
    if found is None:
        from ridgeline.facts.hub.client import HubClient
        from ridgeline.facts.hub.download import select_remote

        client = HubClient(stores.endpoint, stores.token, stores.offline)
        found = _download(client, select_remote(client, hub_name, select_adapter_files), stores, progress)
    return found


def find_here(name: str, stores: "ModelStores", progress: Progress = lambda stage, fraction: None) -> Path | None:
    """Path of the model `name` where it is on this machine, without counting as its use; None for one that only a hub can have."""
    if name in PACKAGED:
        return assemble_model(name, stores.cache, progress)
    return find_path(name) or find_local(name, stores)


def find_path(name: str) -> Path | None:
    """The model at the path `name`; None where nothing is there, or where a packaged model has that name. Raises ModelNotFoundError."""
    if name in PACKAGED:
        return None
    try:
        path = Path(name).expanduser()
        if path.is_dir():
            return _find_model(path)
        if not path.is_file():
            return None
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, no home
        return None
    if path.suffix == ".safetensors":
        raise ModelNotFoundError(f"{path} holds weights alone; give the directory {path.parent}, with its config.json and tokenizer")
    return path.absolute()  # not resolved: a link in a hub's cache has the name of the file, by which other parts of it are found


def find_local(name: str, stores: "ModelStores") -> Path | None:
    """Path of the model that `name` means in one of the stores of this machine; None where none has it whole. Asks no hub."""
    hub_name = find_hub_name(name)
    if hub_name is not None:
        path = find_in_hub(stores.hub, hub_name) if stores.hub is not None else None
        if path is None and stores.llama is not None:
            path = find_in_llama(stores.llama, hub_name)
        if path is not None:
            return path
    if hub_name is None or hub_name.revision is None:
        for store in stores.ollama:
            for alias in _ollama_aliases(name):
                model = find_in_ollama(store, alias)
                if model is not None:
                    return model.path
    return None


def _pull(name: str, stores: "ModelStores", progress: Progress) -> Path:
    return _download(*find_remote(name, stores), stores, progress)


def _download(client: "HubClient", selection: "Selection", stores: "ModelStores", progress: Progress) -> Path:
    stage = f"downloading {selection.repository.name} ({selection.bytes / 1e9:.2f} GB)"
    return download_remote(client, selection, stores, lambda done, total: progress(stage, done / total if total else 1.0))


def is_remote(name: str, stores: "ModelStores") -> bool:
    """True for a model that only a hub has. Asks no hub. Raises ModelNotFoundError for a path at which no model is."""
    return name not in PACKAGED and find_hub_name(name) is not None and find_path(name) is None and find_local(name, stores) is None


def find_hub_name(name: str) -> HubName | None:
    """Finds the meaning of `name` at the hub: a short name of the table, or the name of a repository; None for others."""
    entry = short_name(name)
    return entry.hub if entry is not None else parse_hub_name(name)


def download_remote(client: "HubClient", selection: "Selection", stores: "ModelStores", on_bytes: "OnBytes") -> Path:
    """Fetches what this machine lacks of a selection; returns the path as `resolve_model`."""
    from ridgeline.facts.hub.download import download_selection

    assert stores.hub is not None, "a model was fetched without a place for it"
    path = download_selection(client, stores.hub, selection, on_bytes)
    note_use(stores.cache, path, selection)
    return path


def find_remote(name: str, stores: "ModelStores") -> "tuple[HubClient, Selection]":
    """The hub's client, and the files that `name` means there. Raises ModelNotFoundError for what is no name of the hub."""
    from ridgeline.facts.hub.client import HubClient  # with TLS and all, which takes longer than most verbs do
    from ridgeline.facts.hub.download import select_remote

    hub_name = find_hub_name(name)
    if hub_name is None:
        raise _unknown(name)
    client = HubClient(stores.endpoint, stores.token, stores.offline)
    return client, select_remote(client, hub_name)


def _unknown(name: str) -> ModelNotFoundError:
    known = [*PACKAGED, *(entry for entry in short_names() if ":" in entry)]
    family = [each for each in known if each.partition(":")[0] == name.lower().partition(":")[0]]
    what = "no short name" if is_short_name(name) else "no model file"
    listed = f"{', '.join((family or known)[:8])}{'' if family else ' …'} (`ridgeline list --all`)"
    return ModelNotFoundError(
        f"there is {what} {name!r:.200}; give the path of a .gguf file, of a directory with config.json and safetensors files, a name "
        f"of the hub (org/name, org/name:Q4_K_M), or one of: {listed}",
        fix={"MODEL": next(iter(family), None) or nearest(name, known) or known[0]},
    )


def _ollama_aliases(name: str) -> Iterator[str]:
    """Names under which Ollama may have what the user calls `name`, what it fetched from the hub first."""
    if "/" in name and not name.lower().startswith(("hf.co/", "huggingface.co/")):
        yield f"hf.co/{name}"
    yield name


def _find_model(directory: Path) -> Path:
    """The directory itself where it holds a checkpoint, else its only GGUF model; vision projectors (mmproj) do not count."""
    files = [path for path in sorted(directory.glob("*.gguf")) if "mmproj" not in path.name.lower()]
    if (directory / "config.json").is_file() and (not files or any(directory.glob("*.safetensors"))):
        return directory.resolve()
    first_parts = [path for path in files if not re.search(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", path.name)]
    if len(first_parts) != 1:
        raise ModelNotFoundError(
            f"{directory} holds no checkpoint and {len(first_parts)} GGUF models, exactly one was expected; give the path of the file"
        )
    return first_parts[0].absolute()
