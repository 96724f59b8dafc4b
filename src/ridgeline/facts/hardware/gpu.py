"""Detection of usable NVIDIA GPUs and their driver state, without importing torch. Standard library only."""

import importlib.util
import re
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

PACKAGES: Final = ("torch", "triton")
"""Packages of the extra `gpu`."""

QUERY_FIELDS: Final = (
    "name", "driver_version", "persistence_mode", "clocks.current.sm", "clocks.max.sm", "power.limit", "power.max_limit",
    "memory.used", "memory.total",
)  # fmt: skip
NEWER_QUERY_FIELDS: Final = ("clocks_event_reasons.active", "temperature.gpu", "compute_cap")
"""Fields that older drivers reject; the query is then repeated without them."""
THROTTLE_REASONS: Final = {
    0x02: "clocks that were set", 0x04: "the power limit", 0x08: "the hardware", 0x20: "heat", 0x40: "heat", 0x80: "the power supply",
}  # fmt: skip
"""Bit of NVML's nvmlClocksEventReasons → reason for reduced clocks; idle is not one."""
MIN_DRIVERS: Final = {12: 525, 13: 580}
"""CUDA major version → oldest driver that runs its programs (CUDA Compatibility, minor version compatibility)."""
MIN_CAPABILITY: Final = 8.0
NVIDIA: Final = "0x10de"
DISPLAY: Final = "0x03"
"""PCI vendor id, and the PCI class of display controllers."""
MAX_OUTPUT_CHARACTERS: Final = 300
QUERY_TIMEOUT_SECONDS: Final = 30.0
"""Without persistence mode the driver starts on each query, which takes seconds per GPU."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as `nvidia-smi` describes it; None for fields that it does not report.

    clocks in MHz, power in W, memory in MiB, temperature in °C; slow: reasons for reduced clocks
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
    """Reason why no GPU can be used; None where there is a device and the packages are installed."""
    if not has_device(root):
        return "there is no NVIDIA device (/dev/nvidia0 is absent)"
    absent = absent_packages()
    if absent:
        return f'{" and ".join(absent)} cannot be imported; pip install "ridgeline[gpu]"'
    return None


def has_device(root: Path = Path("/")) -> bool:
    """True where the driver has a GPU."""
    return any((root / "dev").glob("nvidia[0-9]*"))


def absent_packages() -> list[str]:
    """Packages of the extra `gpu` that are not installed."""
    return [name for name in PACKAGES if importlib.util.find_spec(name) is None]


def has_gpu_without_driver(root: Path = Path("/")) -> bool:
    """True where the machine has an NVIDIA GPU on the PCI bus but no driver for it."""
    return not has_device(root) and any(_is_gpu(device) for device in (root / "sys/bus/pci/devices").glob("*"))


def _is_gpu(device: Path) -> bool:
    try:
        vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
    except (OSError, UnicodeDecodeError):
        return False
    return vendor == NVIDIA and kind.startswith(DISPLAY)


def torch_cuda() -> int | None:
    """Major CUDA version of the installed torch, read from its files; None without torch or for a CPU build."""
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
    """GPUs of this machine from nvidia-smi; () where it is absent or times out."""
    return query_driver(program)[0]


def query_driver(program: str = "nvidia-smi") -> tuple[tuple[Gpu, ...], str]:
    """(GPUs from nvidia-smi, "" or its error where there are none)."""
    output = ""
    for fields in ((*QUERY_FIELDS, *NEWER_QUERY_FIELDS), QUERY_FIELDS):
        asked = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(asked, capture_output=True, text=True, errors="replace", timeout=QUERY_TIMEOUT_SECONDS, check=False)
        except FileNotFoundError:
            return (), f"{program} is absent"
        except (OSError, subprocess.SubprocessError) as error:
            return (), f"{program} does not answer: {type(error).__name__}"
        lines = [[word.strip() for word in line.split(",")] for line in done.stdout.splitlines()]
        found = tuple(_gpu(words) for words in lines if len(words) == len(fields))
        if found:
            return found, ""
        output = output or " ".join(f"{done.stdout} {done.stderr}".split())[:MAX_OUTPUT_CHARACTERS]
    return (), output or f"{program} says nothing"


def _gpu(words: list[str]) -> Gpu:
    name, driver, persistence = words[:3]
    clock, most_clock, power, most_power, used, memory = map(_number, words[3 : len(QUERY_FIELDS)])
    reasons, temperature, capability = words[len(QUERY_FIELDS) :] or ["", "", ""]
    return Gpu(
        name, driver, persistence == "Enabled", clock, most_clock, power, most_power, used, memory,
        _throttle_reasons(reasons), _number(temperature), _number(capability),
    )  # fmt: skip


def _throttle_reasons(reasons: str) -> tuple[str, ...]:
    """Reasons in a bit mask such as 0x0000000000000004."""
    try:
        bits = int(reasons, 16)
    except ValueError:
        return ()
    return tuple(dict.fromkeys(words for bit, words in THROTTLE_REASONS.items() if bits & bit))


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:  # [N/A], [Not Supported]
        return None
