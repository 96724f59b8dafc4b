"""Builds the engine of processors on this machine, where none fits its Python, into build/gpu-cpu: a row says what came of it."""

import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from say import say

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "build/gpu-cpu"
PIP = ("nice", sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--no-build-isolation", "--target", str(TARGET))


def build() -> dict[str, Any]:
    """Compiles csrc with all cores; scikit-build-core, nanobind, cmake and a compiler are needed."""
    if find_spec("ridgeline.compute.cpu._C") is not None:
        return {"built": "it was there"}
    began = time.monotonic()
    done = subprocess.run([*PIP, str(ROOT)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-1500:] or done.stdout[-1500:])
    return {"built": str(TARGET.relative_to(ROOT)), "seconds": time.monotonic() - began}


if __name__ == "__main__":
    say({"extension": sys.version.split()[0]}, build)
