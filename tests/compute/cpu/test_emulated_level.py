"""The avx512vnni and the neon level give the bits of the other levels, their instructions emulated: for machines that lack them."""

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TESTS = (
    *(f"cpu/test_native_{name}" for name in ("ops", "recurrence", "floats", "scaled", "attention", "screen")),
    *(f"cpu/test_packed_{name}" for name in ("linear", "formats")),
    "decoding/test_native_sampler",
)

pytestmark = [
    pytest.mark.night,
    pytest.mark.timeout(7200),  # a build of the extension takes minutes
    pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="instructions are emulated on x86-64"),
    pytest.mark.skipif(not (shutil.which("cmake") and shutil.which("c++")), reason="cmake and a C++ compiler are not installed"),
    pytest.mark.skipif(importlib.util.find_spec("nanobind") is None, reason="nanobind is not installed"),
]


@pytest.mark.parametrize("level", ["avx512vnni", "neon"])
def test_bits_of_a_level(level: str, tmp_path: Path) -> None:
    files = [f"tests/compute/{name}.py" for name in TESTS]
    command = [str(ROOT / "tests/compute/cpu/emulated/run.sh"), level, str(tmp_path), "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, env=os.environ | {"PYTHON": sys.executable}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
