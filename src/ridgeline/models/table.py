"""Every architecture by name: the modules of this folder that hold an `ARCHITECTURE`, found by themselves."""

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
    if found.name not in ("declare", "table")
}

ARCHITECTURES: Final[dict[str, Architecture]] = {name: module.ARCHITECTURE for name, module in _MODULES.items()}
"""By the name of the module."""
COMPUTED: Final[dict[str, Architecture]] = {name: ARCHITECTURES[name] for name, module in _MODULES.items() if hasattr(module, "step")}
"""Those of which a runner can compute a step; files of the others are planned."""
MODEL_TYPES: Final = {kind: name for name, architecture in ARCHITECTURES.items() for kind in architecture.model_types}
"""`model_type` of a config.json → name of the architecture."""

KNOWN: Final = FOLDER / "known"
"""One config.json per known model, under the name that the model goes by. Numbers only."""
MEASURED: Final = "llama-3-8b"
"""The known model in whose shape GPUs are measured: published figures of other engines are of it."""


def known_names() -> tuple[str, ...]:
    """Names of the models whose configuration comes along."""
    return tuple(sorted(path.stem for path in KNOWN.glob("*.json")))
