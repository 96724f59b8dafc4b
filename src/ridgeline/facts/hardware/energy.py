"""Joules that this machine's CPU has used: RAPL's counters in /sys/class/powercap, which wrap around, often for root alone; and
those of a GPU that serves, which NVML counts since its driver was loaded."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ridgeline.facts.hardware.machine import first_line

NVML: Final = "libnvidia-ml.so.1"


def gpu_energy(visible: str, load: Callable[[str], Any] = ctypes.CDLL) -> Callable[[], int | None] | None:
    """A function that reads the millijoules that a GPU, by number or UUID, has used since its driver was loaded; it gives None where the
    driver does not say. None where NVML is absent or the GPU does not count (before Volta)."""
    try:
        library = load(NVML)
        device, used = ctypes.c_void_p(), ctypes.c_ulonglong()
        by_index = visible.isdecimal()
        find = library.nvmlDeviceGetHandleByIndex_v2 if by_index else library.nvmlDeviceGetHandleByUUID
        name = ctypes.c_uint(int(visible)) if by_index else ctypes.c_char_p(visible.encode())
        if library.nvmlInit_v2() or find(name, ctypes.byref(device)):
            return None
    except (OSError, AttributeError):
        return None

    def read() -> int | None:
        failed = library.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(used))
        return None if failed else used.value

    return read if read() is not None else None


class EnergyMeter:
    """Adds up the counters of all packages, and of a GPU. Ask within half an hour: a counter that wrapped around twice is one that wrapped
    once.

    gpu  as `gpu_energy` returns; None: no GPU serves
    """

    def __init__(self, root: Path = Path("/"), gpu: Callable[[], int | None] | None = None) -> None:
        self._joules = 0.0
        self._gpu, self._gpu_last = gpu, None if gpu is None else gpu()
        self._last: dict[Path, int] = {}
        self._ranges: dict[Path, int] = {}
        for zone in sorted((root / "sys/class/powercap").glob("intel-rapl:[0-9]")):
            now, most = _number(zone / "energy_uj"), _number(zone / "max_energy_range_uj")
            if now is not None and most:
                self._last[zone / "energy_uj"], self._ranges[zone / "energy_uj"] = now, most

    @property
    def is_available(self) -> bool:
        """True where a counter can be read."""
        return bool(self._last) or self._gpu_last is not None

    def joules(self) -> float:
        """Since this meter was made."""
        for file, before in self._last.items():
            now = _number(file)
            if now is None:
                continue
            used = now - before if now >= before else now - before + self._ranges[file]
            self._joules += max(0, used) / 1e6
            self._last[file] = now
        if self._gpu is not None and (now := self._gpu()) is not None:
            self._joules += max(0, now - (self._gpu_last or now)) / 1e3  # it begins anew where the driver is loaded anew
            self._gpu_last = now
        return self._joules


def _number(file: Path) -> int | None:
    text = first_line(file).strip()
    return int(text) if text.isdigit() and len(text) < 20 else None
