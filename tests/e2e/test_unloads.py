"""What unloads of a real model leave: the script of the measurement, held to its figures."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "speed" / "models.py"


@pytest.mark.night
@pytest.mark.parametrize("rounds", [50])
def test_fifty_unloads_under_load_leave_nothing(rounds: int) -> None:
    """Two models under load, one of which comes and goes: nobody fails, and the front end and all processes together have what they had."""
    command = [sys.executable, str(SCRIPT), "unload", "--rounds", str(rounds)]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=7_200).stdout
    print(told)
    figures = re.search(r"unloads: (\d+) failed; front end ([0-9.]+) of before, .* all ([0-9.]+)$", told.strip())
    assert figures is not None, told
    failed, front, everything = int(figures[1]), float(figures[2]), float(figures[3])
    assert not failed and front <= 1.02 and everything <= 1.02, told
