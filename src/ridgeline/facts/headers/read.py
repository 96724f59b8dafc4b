"""Entry points to `ModelFacts`: `read_model_facts` for runners, from a model's files; `describe_model` for the planner, from any name.

Owns `random:NAME`, models of a known shape with random weights: benchmarks whose speed does not depend on the weights need no files.
Their tokens are bytes, since there is no vocabulary.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ridgeline.errors import ModelNotFoundError, nearest
from ridgeline.facts.files.gguf import read_header
from ridgeline.facts.headers.checkpoint import describe_checkpoint, read_checkpoint, read_config_facts
from ridgeline.facts.headers.config_json import read_config
from ridgeline.facts.headers.gguf import describe_gguf, model_facts
from ridgeline.facts.hub.packaged import PACKAGED, Progress
from ridgeline.facts.hub.source import find_here, find_hub_name, find_remote
from ridgeline.facts.model import ModelFacts
from ridgeline.models.table import KNOWN, known_names

if TYPE_CHECKING:
    from ridgeline.config.env import ModelStores

RANDOM_PREFIX: Final = "random:"
"""A model named `random:llama-3-8b`, or `random:` and the path of a config.json, has random weights made on the GPU at start."""

BYTE_TOKENS: Final = 258
"""Ids of `text.tokenizer.ByteTokenizer`, which such a model uses."""


def read_model_facts(path: Path) -> ModelFacts:
    """Facts for runners of the model at `path`: a GGUF file (the first of a split) or a directory with config.json and safetensors files.

    Raises ModelFormatError, ModelNotFoundError.
    """
    return read_checkpoint(path) if path.is_dir() else model_facts(read_header(path))


def describe_model(name: str, stores: "ModelStores", progress: Progress = lambda stage, fraction: None) -> ModelFacts:
    """Facts for the planner of the model `name`: a known name, a config.json, a GGUF file, a directory with either, or a name of the hub.

    Of a model of the hub that is not on this machine only config.json or the headers are fetched. With a config.json, headers of
    safetensors files next to it say how many bytes are stored. Raises ModelNotFoundError with the names that would work,
    ModelFormatError where the file is at fault.
    """
    if name.lower() in known_names():
        return read_config(KNOWN / f"{name.lower()}.json", name.lower()).facts
    path = Path(name).expanduser()
    if path.is_dir() and (path / "config.json").is_file():
        return describe_checkpoint(path)
    if path.is_file() and path.suffix == ".json":
        return read_config(path).facts
    if find_hub_name(name) is None and find_here(name, stores, progress) is None:
        raise ModelNotFoundError(
            f"there is no model {name!r:.200}; give the path of a config.json, of a GGUF file or of a directory with one, "
            f"a name of the hub (org/name), or one of: {', '.join((*PACKAGED, *known_names()))}",
            fix={"MODEL": nearest(name, known_names(), 0.75) or next(iter(PACKAGED))},
        )
    with model_headers(name, stores, progress) as path:
        return describe_files(path)


@contextmanager
def model_headers(name: str, stores: "ModelStores", progress: Progress = lambda stage, fraction: None) -> Iterator[Path]:
    """Path of the model `name`, from which headers can be read within the context: of one that only a hub has, these alone are fetched.

    Raises ModelNotFoundError, ModelFormatError.
    """
    found = find_here(name, stores, progress)
    if found is not None:
        yield found
        return
    from ridgeline.facts.hub.remote import remote_headers

    progress(f"reading the header of {name}", 0.0)
    with remote_headers(*find_remote(name, stores)) as headers:
        yield headers


def describe_files(path: Path) -> ModelFacts:
    """Facts for the planner of the GGUF file or the checkpoint's directory at `path`. Raises ModelFormatError, ModelNotFoundError."""
    return describe_checkpoint(path) if path.is_dir() else describe_gguf(read_header(path))


def find_config(model: str) -> Path:
    """The config.json of a known model, or at a path. Raises ModelNotFoundError."""
    if model.lower() in known_names():
        return KNOWN / f"{model.lower()}.json"
    path = Path(model).expanduser()
    path = path / "config.json" if path.is_dir() else path
    if path.suffix != ".json" or not path.is_file():
        raise ModelNotFoundError(f"{model!r:.200} is not a config.json; give the path of one, or one of: {', '.join(known_names())}")
    return path.resolve()


def read_random_facts(model: str) -> ModelFacts:
    """Facts of the model `random:NAME`; `tokens` is at most `BYTE_TOKENS`. Raises ModelNotFoundError, ModelFormatError."""
    facts = read_config_facts(find_config(model.removeprefix(RANDOM_PREFIX)))
    return replace(facts, tokens=min(facts.tokens, BYTE_TOKENS))
