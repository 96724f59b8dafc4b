"""Environment variables; read nowhere else. None changes a result, except the ISA override for tests."""

import os
from pathlib import Path


def isa_override() -> str | None:
    """`RIDGELINE_ISA`: run the native kernels at this ISA level instead of the fastest. For tests."""
    return os.environ.get("RIDGELINE_ISA") or None


def cache_directory() -> Path:
    """Folder of assembled models: `$XDG_CACHE_HOME/ridgeline`, else `~/.cache/ridgeline`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base) / "ridgeline" if base else Path.home() / ".cache" / "ridgeline"


def width_is_set() -> bool:
    """True where `$COLUMNS` says how wide the output shall be."""
    return os.environ.get("COLUMNS", "").isdecimal()
