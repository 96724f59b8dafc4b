"""The wheel is whole: with the extension by default, pure with `RIDGELINE_NO_EXT=1`."""

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("scikit_build_core") is None or importlib.util.find_spec("nanobind") is None,
    reason="needs scikit-build-core and nanobind (extra `test`)",
)


def build_wheel(folder: Path, **variables: str) -> tuple[str, set[str]]:
    """File name of the wheel built from this tree, and what it holds."""
    build = ["wheel", str(ROOT), "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **variables}
    command = [sys.executable, "-m", "pip", *build]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return wheel.name, set(archive.namelist())


def sources() -> set[str]:
    files = {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src").rglob("*") if p.is_file()}
    return {name for name in files if "__pycache__" not in name and not name.endswith(".so")}


def test_pure_wheel(tmp_path: Path) -> None:
    name, content = build_wheel(tmp_path, RIDGELINE_NO_EXT="1")
    assert name == "ridgeline-0.1.0-py3-none-any.whl"
    assert {file for file in content if file.startswith("ridgeline/")} == sources()


@pytest.mark.night
def test_wheel_with_the_extension(tmp_path: Path) -> None:
    name, content = build_wheel(tmp_path, RIDGELINE_NO_EXT="")
    assert "none-any" not in name
    (extension,) = {file for file in content if file.startswith("ridgeline/")} - sources()
    assert extension.startswith("ridgeline/compute/cpu/_C.")
