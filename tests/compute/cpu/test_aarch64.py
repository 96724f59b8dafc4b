"""The neon level gives the bits of the scalar one: both compiled for aarch64, and run here by an emulator of that processor."""

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).parent / "aarch64"
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
FLAGS = {"scalar": "-march=armv8-a", "neon": "-march=armv8.2-a+dotprod"}
COMMON = ("-std=c++17", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", f"-I{ROOT / 'csrc'}", f"-I{PROGRAM}")

pytestmark = pytest.mark.skipif(
    not (shutil.which(COMPILER) and shutil.which(EMULATOR)), reason="needs the packages g++-aarch64-linux-gnu and qemu-user"
)


def run(*command: str | Path) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, " ".join(map(str, command)) + "\n" + done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def compared(what: str, folder: Path, *more: Path) -> str:
    """What the program says that compares the answers of both levels to aarch64/`what`.cpp; `more` objects are linked to it."""
    objects = []
    for level, flags in FLAGS.items():
        objects.append(folder / f"{what}-{level}.o")
        run(COMPILER, *COMMON, "-O1", flags, f"-DRIDGELINE_LEVEL={level}", "-c", PROGRAM / f"{what}.cpp", "-o", objects[-1])
    program = folder / what
    run(COMPILER, *COMMON, "-O1", f"-DCOMPARED={what}", PROGRAM / "main.cpp", *objects, *more, "-static", "-o", program)
    return run(EMULATOR, program)


def test_every_operation_of_the_vocabulary(tmp_path: Path) -> None:
    """Also that scalar and neon have the same ones."""
    said = compared("vocabulary", tmp_path)
    assert said.endswith(", 0 differ\n") and int(said.split()[0]) >= 50, said


@pytest.mark.night
@pytest.mark.timeout(3600)  # all kernels twice, and the runtime
@pytest.mark.skipif(importlib.util.find_spec("nanobind") is None, reason="nanobind is not installed")
def test_the_whole_extension_and_every_product(tmp_path: Path) -> None:
    """The extension is built as `pip install` does on such a machine, with Python's headers of this one; then products of every format."""
    system = ("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64")
    compiler = (f"-DCMAKE_CXX_COMPILER={COMPILER}", "-DCMAKE_CXX_FLAGS=-Werror")
    python = (f"-DPython_EXECUTABLE={sys.executable}", f"-DPython_INCLUDE_DIR={sysconfig.get_paths()['include']}")
    build = tmp_path / "build"
    run("cmake", "-S", ROOT, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DSKBUILD_PROJECT_NAME=ridgeline", *system, *compiler, *python)
    run("cmake", "--build", build, "--parallel", "2")
    (extension,) = build.glob("_C*.so")
    assert "AArch64" in run("readelf", "-h", extension)
    built = (build / "CMakeFiles").rglob("csrc/**/*.o")
    objects = [path for path in built if path.name != "bindings.cpp.o"]
    said = compared("products", tmp_path, *objects)
    assert said.endswith(", 0 differ\n") and int(said.split()[0]) >= 60, said
