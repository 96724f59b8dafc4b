"""Tables of all architectures and known models; the modules of this folder are discovered, not listed."""

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Final

from ridgeline.models.declare import Architecture

FOLDER: Final = Path(__file__).parent
_MODULES: Final[dict[str, ModuleType]] = {
    found.name: import_module(f"ridgeline.models.{found.name}")
    for found in iter_modules([str(FOLDER)])
    if found.name not in ("declare", "decoder", "heads", "table")
}

ARCHITECTURES: Final[dict[str, Architecture]] = {name: module.ARCHITECTURE for name, module in _MODULES.items()}
"""Architectures by module name."""


def module_name(architecture: str) -> str:
    """Name of the module of an architecture that a GGUF file names: "gpt-oss" is `gpt_oss.py`."""
    return architecture.replace("-", "_")


RUNNABLE: Final[dict[str, Architecture]] = {name: ARCHITECTURES[name] for name, module in _MODULES.items() if hasattr(module, "step")}
"""Architectures with a `step`: runners support them. The others can be planned only."""
MODEL_TYPES: Final = {kind: name for name, architecture in ARCHITECTURES.items() for kind in architecture.model_types}
"""`model_type` of a config.json → name of the architecture."""

KNOWN: Final = FOLDER / "known"
"""Folder with a config.json per known model, named after the model. Numbers only."""
MEASURED: Final = "llama-3-8b"
"""Known model whose shape GPU benchmarks use, because published figures of other engines are of it."""
SPARSE: Final = "qwen3-30b-a3b"
"""Known model with experts whose shape GPU benchmarks use."""


def known_names() -> tuple[str, ...]:
    """Names of the models whose config.json is part of the package."""
    return tuple(sorted(path.stem for path in KNOWN.glob("*.json")))
