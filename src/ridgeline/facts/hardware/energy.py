"""Joules that this machine's processors have used: RAPL's counters in /sys/class/powercap, which wrap around, often for root alone."""

from pathlib import Path

from ridgeline.facts.hardware.machine import first_line


class EnergyMeter:
    """Adds up the counters of all packages. Ask within half an hour: a counter that wrapped around twice is one that wrapped once."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._joules = 0.0
        self._last: dict[Path, int] = {}
        self._ranges: dict[Path, int] = {}
        for zone in sorted((root / "sys/class/powercap").glob("intel-rapl:[0-9]")):
            now, most = _number(zone / "energy_uj"), _number(zone / "max_energy_range_uj")
            if now is not None and most:
                self._last[zone / "energy_uj"], self._ranges[zone / "energy_uj"] = now, most

    @property
    def is_available(self) -> bool:
        """True where a counter can be read."""
        return bool(self._last)

    def joules(self) -> float:
        """Since this meter was made."""
        for file, before in self._last.items():
            now = _number(file)
            if now is None:
                continue
            used = now - before if now >= before else now - before + self._ranges[file]
            self._joules += max(0, used) / 1e6
            self._last[file] = now
        return self._joules


def _number(file: Path) -> int | None:
    text = first_line(file).strip()
    return int(text) if text.isdigit() and len(text) < 20 else None
