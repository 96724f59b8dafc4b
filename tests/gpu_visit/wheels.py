"""Packages that a machine without a network may lack, as wheels for CPython 3.12 on Linux: `make gpu-wheels` fetches them.

python tests/gpu_visit/wheels.py [FOLDER]
"""

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("wheels.txt")
VERSION = (3, 12)
PLATFORMS = (*(f"manylinux_2_{minor}_x86_64" for minor in range(34, 16, -1)), "manylinux2014_x86_64", "manylinux1_x86_64")
MOST_BYTES = 64 << 20
"""Of all wheels together: what may be carried to a machine."""


def fetch(folder: Path) -> int:
    """Fetches the wheels of the list and no others; returns the bytes of all. Raises SystemExit where they are too many."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    where = ["--python-version", ".".join(map(str, VERSION)), "--implementation", "cp", *platforms, "--dest", str(folder)]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", *where, "-r", str(LIST)], check=True
    )
    size = sum(wheel.stat().st_size for wheel in folder.glob("*.whl"))
    if size > MOST_BYTES:
        raise SystemExit(f"the wheels take {size:,} bytes, {MOST_BYTES:,} may be carried: shorten {LIST.name}")
    return size


def name_of(wheel: Path) -> str:
    """Of the package in a wheel."""
    return re.sub(r"[-_.]+", "-", wheel.name.split("-")[0]).lower()


def use_wheels(folder: Path, site: Path) -> list[str]:
    """Unpacks what is not installed, once; returns the folder to import from, or none where nothing was needed."""
    lacking = [wheel for wheel in sorted(folder.glob("*.whl")) if not _installed(name_of(wheel))]
    if lacking and sys.version_info[:2] == VERSION:
        target = ["--no-index", "--no-deps", "--no-compile", "--upgrade", "--target", str(site)]
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *target, *map(str, lacking)], check=True)
    return [str(site)] if site.exists() else []


def _installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


if __name__ == "__main__":
    target_folder = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "build/gpu-wheels"
    print(f"{fetch(target_folder):,} bytes in {target_folder}")
