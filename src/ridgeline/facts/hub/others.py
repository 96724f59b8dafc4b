"""Models that other programs have fetched, used where they lie: Ollama's store and llama.cpp's cache of single files. Never writes there.

Ollama: `manifests/<host>/<namespace>/<model>/<tag>` are JSON files that name layers by digest, `blobs/sha256-<digest>` hold them.
llama.cpp: `<org>_<repository>_<file>.gguf`, with `/` in paths written as `_`.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

from ridgeline.errors import ModelFormatError, ModelNotFoundError
from ridgeline.facts.files.json_file import read_object
from ridgeline.facts.hub.local import MAX_CONFIG_BYTES, MAX_FILES, LocalModel
from ridgeline.facts.hub.names import HubName
from ridgeline.facts.hub.select import gguf_models, select_files

OLLAMA: Final = "ollama"
LLAMA: Final = "llama.cpp"
_REGISTRY: Final = "registry.ollama.ai/"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_MODEL_LAYER = "application/vnd.ollama.image.model"
_ADAPTER_LAYER = "application/vnd.ollama.image.adapter"
_SPLIT = re.compile(r"(?P<org>[^_]+)_(?P<name>.+?-GGUF)_(?P<file>.+)", re.IGNORECASE)


def ollama_models(store: Path) -> Iterator[LocalModel]:
    """All models of Ollama's store that are GGUF files, by name. A model with an adapter is left out: it is more than its file."""
    for manifest in sorted(islice(store.glob("manifests/*/*/*/*"), MAX_FILES)):
        model = _read_manifest(store, manifest)
        if model is not None:
            yield model


def find_in_ollama(store: Path, name: str) -> LocalModel | None:
    """The model that Ollama calls `name`, whatever the case; `:latest` may be left out. None where it has none."""
    wanted = _ollama_name(name if ":" in name.rpartition("/")[2] else f"{name}:latest")
    for manifest in islice(store.glob("manifests/*/*/*/*"), MAX_FILES):
        if _ollama_name(_name_of(store, manifest)) == wanted:
            return _read_manifest(store, manifest)
    return None


def llama_models(folder: Path) -> Iterator[LocalModel]:
    """All complete GGUF models of llama.cpp's cache. Their name is the hub's where the file's name tells it, else the path."""
    for model in gguf_models(path.name for path in islice(folder.glob("*.gguf"), MAX_FILES) if path.is_file()):
        files = tuple(folder / file for file in model.files)
        parts = _SPLIT.fullmatch(model.files[0])
        tag = f":{model.quantisation}" if model.quantisation else ""
        name = f"{parts['org']}/{parts['name']}{tag}" if parts and tag else str(files[0])
        yield LocalModel(name, files[0], files, sum(file.stat().st_size for file in files), model.quantisation, LLAMA)


def find_in_llama(folder: Path, name: HubName) -> Path | None:
    """Path of the first file of the model `name` in llama.cpp's cache; None where it is not there."""
    prefix = f"{name.repository.replace('/', '_')}_"
    files = {path.name.removeprefix(prefix): path for path in islice(folder.glob("*.gguf"), MAX_FILES) if path.name.startswith(prefix)}
    if name.revision is not None or name.sha256 or not files:  # its names tell no revision and no digest
        return None
    try:
        return files[select_files(replace(name, file=name.file and name.file.replace("/", "_")), files)[0]]
    except (ModelFormatError, ModelNotFoundError):
        return None


def _name_of(store: Path, manifest: Path) -> str:
    folder, _, tag = manifest.relative_to(store / "manifests").as_posix().rpartition("/")
    return f"{folder}:{tag}"


def _ollama_name(name: str) -> str:
    """A name without the parts that Ollama lets its users leave out, in lower case."""
    return name.lower().replace("huggingface.co/", "hf.co/").removeprefix(_REGISTRY).removeprefix("library/")


def _read_manifest(store: Path, manifest: Path) -> LocalModel | None:
    """The model of a manifest; None where it has no GGUF file, more than one part, or its file is not whole."""
    try:
        values = read_object(manifest, MAX_CONFIG_BYTES)
        layers = [layer for layer in values.get("layers") or () if isinstance(layer, dict)]
        weights = [layer for layer in layers if layer.get("mediaType") == _MODEL_LAYER]
        if len(weights) != 1 or any(layer.get("mediaType") == _ADAPTER_LAYER for layer in layers):
            return None
        path, config = _blob(store, weights[0]), _blob(store, values.get("config"))
        if path is None or path.stat().st_size != weights[0].get("size"):
            return None
        details = read_object(config, MAX_CONFIG_BYTES) if config is not None else {}
    except (OSError, TypeError, ModelFormatError, ModelNotFoundError):
        return None
    if details.get("model_format", "gguf") != "gguf":
        return None
    kind = details.get("file_type")
    name = _name_of(store, manifest).removeprefix(_REGISTRY).removeprefix("library/")
    return LocalModel(
        name=name if name.isprintable() else str(path),
        path=path,
        files=(path,),
        bytes=path.stat().st_size,
        quantisation=kind[:20] if isinstance(kind, str) and kind.isprintable() else "",
        origin=OLLAMA,
    )


def _blob(store: Path, layer: Any) -> Path | None:
    """Path of a layer's blob, which lies in the store's own folder; None for any other digest than a SHA-256, and where it is missing."""
    digest = _DIGEST.fullmatch(str(layer.get("digest"))) if isinstance(layer, dict) else None
    path = store / "blobs" / f"sha256-{digest[1]}" if digest else None
    return path if path is not None and path.is_file() and not path.is_symlink() else None
