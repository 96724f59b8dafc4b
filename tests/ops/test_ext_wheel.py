"""`RIDGELINE_NO_EXT=1` builds a pure wheel, whole and without the extension."""

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("scikit_build_core") is None or importlib.util.find_spec("nanobind") is None,
    reason="needs scikit-build-core and nanobind (extra `test`)",
)


def test_pure_wheel(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    environment = {**os.environ, "RIDGELINE_NO_EXT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == "ridgeline-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read("ridgeline-0.1.0.dist-info/METADATA").decode()
    sources = {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src").rglob("*") if p.is_file()}
    shipped = {s for s in sources if "__pycache__" not in s and not s.endswith(".so")}
    assert {n for n in names if n.startswith("ridgeline/")} == shipped
    assert "License-Expression: Apache-2.0" in metadata
