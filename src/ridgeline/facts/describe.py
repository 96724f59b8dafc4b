"""From what a user calls a model to its shape: a known name, a config.json, a GGUF file, a directory with either. Nothing is fetched."""

from pathlib import Path

from ridgeline.errors import ModelNotFoundError
from ridgeline.facts.config_json import read_config
from ridgeline.facts.gguf_shape import read_gguf_shape
from ridgeline.facts.shape import ModelShape
from ridgeline.facts.source import PACKAGED, Progress, resolve_model

KNOWN = Path(__file__).parent / "known"
"""One config.json a known model, under the name that the model goes by. Numbers only."""


def known_names() -> tuple[str, ...]:
    """Names of the models whose configuration comes along."""
    return tuple(sorted(path.stem for path in KNOWN.glob("*.json")))


def describe_model(name: str, cache: Path, progress: Progress = lambda stage, fraction: None) -> ModelShape:
    """The shape of the model that `name` stands for; `cache` is where packaged models are assembled.

    Raises ModelNotFoundError with the names that would work, ModelFormatError where the file is at fault.
    """
    if name.lower() in known_names():
        return read_config(KNOWN / f"{name.lower()}.json", name.lower())
    path = Path(name).expanduser()
    if path.is_dir() and (path / "config.json").is_file():
        return read_config(path / "config.json")
    if path.is_file() and path.suffix == ".json":
        return read_config(path)
    if path.exists() or name in PACKAGED:
        return read_gguf_shape(resolve_model(name, cache, progress))
    raise ModelNotFoundError(
        f"there is no model {name!r}; give the path of a config.json, of a GGUF file or of a directory with one, "
        f"or one of: {', '.join((*PACKAGED, *known_names()))}"
    )
