"""From what a user calls a model to its shape: a known name, a config.json, a GGUF file, a directory with either. Nothing is fetched.

Beside a config.json, headers of safetensors files say how many bytes are stored.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ridgeline.errors import ModelNotFoundError
from ridgeline.facts.files.safetensors import read_tensors
from ridgeline.facts.headers.config_json import read_config
from ridgeline.facts.headers.gguf_shape import read_gguf_shape
from ridgeline.facts.headers.shape import CLASSES, ModelShape
from ridgeline.facts.hub.download import Progress
from ridgeline.facts.hub.source import PACKAGED, resolve_model
from ridgeline.facts.model import TensorFacts

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
        return _as_stored(read_config(path / "config.json"), read_tensors(path))
    if path.is_file() and path.suffix == ".json":
        return read_config(path)
    if path.exists() or name in PACKAGED:
        return read_gguf_shape(resolve_model(name, cache, progress))
    raise ModelNotFoundError(
        f"there is no model {name!r}; give the path of a config.json, of a GGUF file or of a directory with one, "
        f"or one of: {', '.join((*PACKAGED, *known_names()))}"
    )


def _as_stored(shape: ModelShape, tensors: Mapping[str, TensorFacts]) -> ModelShape:
    """The shape with the bytes that files hold, by class; unchanged without files."""
    if not tensors:
        return shape
    stored = dict.fromkeys(CLASSES, 0)
    for name, tensor in tensors.items():
        kind = _class(name)
        if kind is not None and not (kind == "head" and shape.parameters["head"] == 0):
            stored[kind] += tensor.bytes
    return replace(shape, stored_bytes=stored)


def _class(name: str) -> str | None:
    """The class of a checkpoint's tensor by the names of the transformers library; None for what is no part of the text model."""
    if any(part in name for part in ("vision_tower.", "multi_modal_projector.", "visual.")):
        return None
    if any(part in name for part in ("embed_tokens.", "wte.", "wpe.")):
        return "embedding"
    if name.startswith("lm_head.") or ".lm_head." in name:
        return "head"
    if "norm" in name.rsplit(".", 2)[-2]:
        return "norms"
    if ".experts." in name and ".shared_experts." not in name:
        return "experts"
    return "attention" if "attn." in name else "ffn" if any(part in name for part in (".mlp.", ".block_sparse_moe.")) else "norms"
