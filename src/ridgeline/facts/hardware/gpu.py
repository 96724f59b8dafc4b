"""GPUs of this machine: can they be used, and how has the driver set them up, without loading what would use it. Standard library only."""

import importlib.util
import re
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

PACKAGES: Final = ("torch", "triton")
"""Packages of the extra `gpu`."""

QUERY: Final = (
    "name", "driver_version", "persistence_mode", "clocks.current.sm", "clocks.max.sm", "power.limit", "power.max_limit",
    "memory.used", "memory.total",
)  # fmt: skip
NEWER: Final = ("clocks_event_reasons.active", "temperature.gpu", "compute_cap")
"""Questions that drivers of some years ago do not answer: they are asked for the rest alone."""
SLOW: Final = {
    0x02: "clocks that were set", 0x04: "the power limit", 0x08: "the hardware", 0x20: "heat", 0x40: "heat", 0x80: "the power supply",
}  # fmt: skip
"""Bits of the reasons for clocks that are lower than asked for (NVML, nvmlClocksEventReasons); idling is none of them."""
LEAST_DRIVERS: Final = {12: 525, 13: 580}
"""By CUDA's major version: the first of the drivers that run what is built for it (CUDA Compatibility, minor version compatibility)."""
LEAST_CAPABILITY: Final = 8.0
NVIDIA: Final = "0x10de"
DISPLAY: Final = "0x03"
"""PCI's numbers of the vendor, and the class of graphics and computing devices."""
SAID_CHARACTERS: Final = 300
QUERY_SECONDS: Final = 30.0
"""Without persistence mode a driver starts when it is asked, which takes seconds per GPU."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as `nvidia-smi` describes it; None for what it does not say.

    clocks in MHz, power in W, memory in MiB, temperature in °C; slow: what lowers its clocks now
    """

    name: str
    driver: str
    persistence: bool
    clock: float | None
    most_clock: float | None
    power: float | None
    most_power: float | None
    used: float | None
    memory: float | None
    slow: tuple[str, ...] = ()
    temperature: float | None = None
    capability: float | None = None

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return asdict(self)


def gpu_missing(root: Path = Path("/")) -> str | None:
    """Reason why no step can be computed on a GPU; None where a driver shows one and the packages for it are installed."""
    if not has_device(root):
        return "there is no NVIDIA device (/dev/nvidia0 is absent)"
    absent = absent_packages()
    if absent:
        return f'{" and ".join(absent)} cannot be imported; pip install "ridgeline[gpu]"'
    return None


def has_device(root: Path = Path("/")) -> bool:
    """True where a driver shows a GPU."""
    return any((root / "dev").glob("nvidia[0-9]*"))


def absent_packages() -> list[str]:
    """Packages of the extra `gpu` that are not installed."""
    return [name for name in PACKAGES if importlib.util.find_spec(name) is None]


def lies_idle(root: Path = Path("/")) -> bool:
    """True where the machine has an NVIDIA GPU that no driver shows."""
    return not has_device(root) and any(_is_gpu(device) for device in (root / "sys/bus/pci/devices").glob("*"))


def _is_gpu(device: Path) -> bool:
    try:
        vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
    except (OSError, UnicodeDecodeError):
        return False
    return vendor == NVIDIA and kind.startswith(DISPLAY)


def torch_cuda() -> int | None:
    """The major version of CUDA that the installed torch is built for, by its files; None where there is none, or for processors."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    try:
        text = (Path(found.origin).parent / "version.py").read_text(errors="replace")
    except OSError:
        return None
    version = re.search(r"^cuda\b[^=\n]*=\s*['\"](\d{1,3})\.", text, re.MULTILINE)
    return None if version is None else int(version[1])


def read_gpus(program: str = "nvidia-smi") -> tuple[Gpu, ...]:
    """Every GPU of this machine by its driver's tool; () where that is absent or says nothing in time."""
    return ask_driver(program)[0]


def ask_driver(program: str = "nvidia-smi") -> tuple[tuple[Gpu, ...], str]:
    """Every GPU by its driver's tool; where there is none, what the tool said instead, or why it said nothing."""
    said = ""
    for fields in ((*QUERY, *NEWER), QUERY):
        asked = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(asked, capture_output=True, text=True, errors="replace", timeout=QUERY_SECONDS, check=False)
        except FileNotFoundError:
            return (), f"{program} is absent"
        except (OSError, subprocess.SubprocessError) as error:
            return (), f"{program} does not answer: {type(error).__name__}"
        lines = [[word.strip() for word in line.split(",")] for line in done.stdout.splitlines()]
        found = tuple(_gpu(words) for words in lines if len(words) == len(fields))
        if found:
            return found, ""
        said = said or " ".join(f"{done.stdout} {done.stderr}".split())[:SAID_CHARACTERS]
    return (), said or f"{program} says nothing"


def _gpu(words: list[str]) -> Gpu:
    name, driver, persistence = words[:3]
    clock, most_clock, power, most_power, used, memory = map(_number, words[3 : len(QUERY)])
    reasons, temperature, capability = words[len(QUERY) :] or ["", "", ""]
    return Gpu(
        name, driver, persistence == "Enabled", clock, most_clock, power, most_power, used, memory,
        _slow(reasons), _number(temperature), _number(capability),
    )  # fmt: skip


def _slow(reasons: str) -> tuple[str, ...]:
    """The words for a bit mask such as 0x0000000000000004."""
    try:
        bits = int(reasons, 16)
    except ValueError:
        return ()
    return tuple(dict.fromkeys(words for bit, words in SLOW.items() if bits & bit))


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:  # [N/A], [Not Supported]
        return None
