"""Models on this machine in the cache of Hugging Face hubs: which are there whole, and where.

Reads names, links and small JSON files; opens no weights. Links that lead out of a repository's folder are not followed.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ridgeline.errors import ModelFormatError, ModelNotFoundError
from ridgeline.facts.files.json_file import read_object
from ridgeline.facts.files.shards import INDEX, MAX_INDEX_BYTES, SINGLE
from ridgeline.facts.hub.names import HubName, parse_hub_name
from ridgeline.facts.hub.select import Select, gguf_models, is_safe_path, select_adapter_files, select_files

MAX_FILES: Final = 10_000
"""Files of a snapshot, repositories of a cache, manifests of a store: more are not looked at."""
PARTIAL: Final = ".incomplete"
"""End of the name of a file that is being fetched."""
MAX_CONFIG_BYTES: Final = 1 << 20
TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on this machine.

    name          what `serve` and `run` take
    path          of its GGUF file (of a split one the first) or its directory
    files         all of its files that hold weights or belong to them
    bytes         size of the files
    quantisation  as users write it, "" where nothing but the header states it
    origin        `hub`, `ollama`, `llama.cpp` or `package`
    commit        of the hub's repository, "" where none is known
    """

    name: str
    path: Path
    files: tuple[Path, ...]
    bytes: int
    quantisation: str
    origin: str
    commit: str = ""


def folder_of(hub: Path, repository: str) -> Path:
    """Folder of a repository in the cache `hub`."""
    return hub / f"models--{repository.replace('/', '--')}"


def find_in_hub(hub: Path, name: HubName) -> Path | None:
    """Path of the model `name` in the cache `hub`; None where it is not there, or not whole."""
    found = _find(hub, name, select_files)
    if found is None or found.suffix == ".gguf":
        return found
    return found if _is_whole(found, _snapshot_files(folder_of(hub, name.repository), found)) else None


def find_adapter_in_hub(hub: Path, name: HubName) -> Path | None:
    """Path of the LoRA adapter `name` in the cache `hub`, of its GGUF file or of the folder of PEFT's files; None where it is not there."""
    return _find(hub, name, select_adapter_files)


def _find(hub: Path, name: HubName, select: Select) -> Path | None:
    """The snapshot that has the selected files, or the first of them where they are GGUF files."""
    folder = folder_of(hub, name.repository)
    commit = _commit(folder, name.revision)
    if commit is None:
        return None
    snapshot = folder / "snapshots" / commit
    present = _snapshot_files(folder, snapshot)
    try:
        selected = select(name, present)
    except (ModelFormatError, ModelNotFoundError):
        return None
    pinned = dict(name.sha256)
    if any(pinned.get(file, present[file].name) != present[file].name for file in selected):
        return None
    return snapshot / selected[0] if selected[0].endswith(".gguf") else snapshot


def hub_models(hub: Path) -> Iterator[LocalModel]:
    """All whole models in the cache `hub`, by repository."""
    for folder in sorted(hub.glob("models--*"))[:MAX_FILES]:
        repository = folder.name.removeprefix("models--").replace("--", "/", 1)
        if parse_hub_name(repository) is None:
            continue
        references = {reference.name: _reference(reference) for reference in sorted((folder / "refs").glob("[!.]*"))}
        for snapshot in sorted((folder / "snapshots").glob("*")):
            if _COMMIT.fullmatch(snapshot.name):
                known = [name for name, commit in references.items() if commit == snapshot.name]
                revision = "" if "main" in known else f"@{known[0] if known and parse_hub_name(f'a/b@{known[0]}') else snapshot.name}"
                yield from _snapshot_models(f"{repository}{revision}", folder, snapshot)


def checkpoint_format(directory: Path) -> str:
    """Format of a checkpoint's weights by its config.json, as users write it (`BF16`, `GPTQ 4-bit`); "" where it states none."""
    try:
        config = read_object(directory / "config.json", MAX_CONFIG_BYTES)
    except (ModelFormatError, ModelNotFoundError):
        return ""
    nested = config.get("text_config")
    quantised = config.get("quantization_config")
    if isinstance(quantised, dict):
        method, bits = quantised.get("quant_method"), quantised.get("bits")
        return f"{method.upper()[:30]}{f' {bits}-bit' if type(bits) is int else ''}" if isinstance(method, str) else ""
    for values in (config, nested if isinstance(nested, dict) else {}):
        kind = values.get("torch_dtype") or values.get("dtype")
        if isinstance(kind, str):
            return {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}.get(kind, "")
    return ""


def _snapshot_models(name: str, folder: Path, snapshot: Path) -> Iterator[LocalModel]:
    present = _snapshot_files(folder, snapshot)
    if _is_whole(snapshot, present):
        files = tuple(snapshot / file for file in select_files(HubName(name), present))
        yield _model(name, snapshot, files, checkpoint_format(snapshot), snapshot.name)
    models = gguf_models(present)
    tags = [model.quantisation for model in models]
    for model in models:
        tag = f":{model.quantisation}" if model.quantisation and tags.count(model.quantisation) == 1 else f"/{model.files[0]}"
        files = tuple(snapshot / file for file in model.files)
        yield _model(f"{name}{tag}", files[0], files, model.quantisation, snapshot.name)


def _model(name: str, path: Path, files: tuple[Path, ...], quantisation: str, commit: str) -> LocalModel:
    return LocalModel(name, path, files, sum(file.stat().st_size for file in files), quantisation, "hub", commit)


def _commit(folder: Path, revision: str | None) -> str | None:
    """The commit that a revision means here; None where it is not known."""
    if revision is not None and _COMMIT.fullmatch(revision):
        return revision
    return _reference(folder / "refs" / (revision or "main"))


def _reference(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            commit = file.read(64).decode("ascii", "replace").strip()
    except OSError:
        return None
    return commit if _COMMIT.fullmatch(commit) else None


def _snapshot_files(folder: Path, snapshot: Path) -> dict[str, Path]:
    """Relative path → where its content lies, of every file of a snapshot whose content is there and within the repository's folder."""
    home = folder.resolve()
    found: dict[str, Path] = {}
    for path in sorted(snapshot.rglob("*"))[:MAX_FILES]:
        content, name = path.resolve(), path.relative_to(snapshot).as_posix()
        if content.is_file() and content.is_relative_to(home) and is_safe_path(name):
            found[name] = content
    return found


def _is_whole(snapshot: Path, present: dict[str, Path]) -> bool:
    """True where a checkpoint has its configuration, a tokenizer, and all the weights that its index names."""
    if "config.json" not in present or not any(name in present for name in TOKENIZERS):
        return False
    if SINGLE in present:
        return True
    if INDEX not in present:
        return any("/" not in name and name.endswith(".safetensors") for name in present)
    try:
        shards = read_object(snapshot / INDEX, MAX_INDEX_BYTES).get("weight_map")
    except (ModelFormatError, ModelNotFoundError):
        return False
    return isinstance(shards, dict) and bool(shards) and all(isinstance(name, str) and name in present for name in shards.values())
