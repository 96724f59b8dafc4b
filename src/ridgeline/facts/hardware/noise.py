"""CPU use of other processes during a measurement, so that disturbed figures are flagged.

Owns the reading of /proc/stat. Standard library only.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DISTURBED_CORES: Final = 0.3
"""CPU cores used by other processes, or stolen by the hypervisor, from which figures are flagged."""
_BUSY, _STEAL = (0, 1, 2, 5, 6), 7
"""Columns of /proc/stat: user, nice, system, irq and softirq; steal."""


@dataclass(frozen=True, slots=True)
class Noise:
    """load_average: of the last minute; others, steal: mean CPU cores used by other processes, stolen by the hypervisor."""

    load_average: float
    others: float
    steal: float

    @property
    def disturbed(self) -> bool:
        """True where other work disturbed the figures."""
        return max(self.others, self.steal) > DISTURBED_CORES

    def as_dict(self) -> dict[str, float | bool]:
        """Plain values for JSON."""
        return {"load_average": self.load_average, "others": self.others, "steal": self.steal, "disturbed": self.disturbed}

    def summary(self) -> str:
        """One line of text."""
        text = f"load average {self.load_average:.2f}, CPU cores used by others {self.others:.2f}, stolen {self.steal:.2f}"
        return f"{text}: DISTURBED, measure again in a quiet moment" if self.disturbed else text


class NoiseMonitor:
    """Measures from its construction to `stop`. Without /proc/stat, others and steal are 0."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._began, self._own = time.monotonic(), _process_seconds()
        self._busy, self._steal = _busy_seconds(root)

    def stop(self) -> Noise:
        """Noise until now."""
        busy, steal = _busy_seconds(self._root)
        seconds = max(time.monotonic() - self._began, 1e-3)
        others = busy - self._busy - (_process_seconds() - self._own)
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
        return Noise(load, max(0.0, others / seconds), max(0.0, (steal - self._steal) / seconds))


def _process_seconds() -> float:
    """CPU seconds of this process and its ended children."""
    return sum(os.times()[:4])


def _busy_seconds(root: Path) -> tuple[float, float]:
    try:
        fields = (root / "proc/stat").read_text().splitlines()[0].split()[1:]
        ticks = [int(field) for field in fields]
        hertz = os.sysconf("SC_CLK_TCK")
        return sum(ticks[column] for column in _BUSY) / hertz, ticks[_STEAL] / hertz
    except (OSError, ValueError, IndexError):
        return 0.0, 0.0
