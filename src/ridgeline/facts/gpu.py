"""Whether a GPU can be used here, without loading what would use it. Standard library only."""

import importlib.util
from pathlib import Path
from typing import Final

PACKAGES: Final = ("torch", "triton")
"""What the extra `gpu` installs."""


def gpu_missing(root: Path = Path("/")) -> str | None:
    """Why no step can be computed on a GPU; None where a driver shows one and the packages for it are installed."""
    if not any((root / "dev").glob("nvidia[0-9]*")):
        return "there is no NVIDIA device (/dev/nvidia0 is absent)"
    absent = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if absent:
        return f'{" and ".join(absent)} cannot be imported; pip install "ridgeline[gpu]"'
    return None
