"""A few tests of kernels under NVIDIA's compute-sanitizer, where it is installed: addresses, races in shared memory, numbers never set."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from machine import TINY
from say import say

PROGRAM = "compute-sanitizer"
TOOLS = {"memcheck": 70.0, "racecheck": 40.0}
"""Seconds of each."""
TESTS = Path(__file__).parents[1] / "compute/cuda"
CASES = "test_strided_rows or test_fp8_of_floats or test_whole_tables or test_rows_and_splits or (test_types_of_cache and bf16)"
FOUND = 86
"""Status of the program where it has found something."""


def check(program: str, tool: str, seconds: float) -> dict[str, Any]:
    """What a tool says; an error where it found something."""
    words = [program, "--tool", tool, "--error-exitcode", str(FOUND), "--kernel-regex", "kns=_kernel"]
    pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-W", "default", "-p", "no:cacheprovider", "-k", CASES, str(TESTS)]
    done = subprocess.run([*words, *pytest], capture_output=True, text=True, timeout=seconds, check=False)
    said = (done.stdout + done.stderr)[-1500:]
    if done.returncode:
        raise RuntimeError(f"{'it found errors' if done.returncode == FOUND else f'status {done.returncode}'}: {said}")
    return {"says": said.strip().splitlines()[-1]}


def main() -> None:
    program = None if TINY else shutil.which(PROGRAM) or shutil.which(f"/usr/local/cuda/bin/{PROGRAM}")
    if program is None:
        say({"sanitizer": "none"}, lambda: {"says": f"there is no {PROGRAM}"})
        return
    for tool, seconds in TOOLS.items():
        say({"sanitizer": tool}, lambda tool=tool, seconds=seconds: check(program, tool, seconds))


if __name__ == "__main__":
    main()
