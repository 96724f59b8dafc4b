"""Whether a GPU can be used here, and how its driver has set it up, without loading what would use it. Standard library only."""

import importlib.util
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

PACKAGES: Final = ("torch", "triton")
"""What the extra `gpu` installs."""

QUERY: Final = (
    "name", "driver_version", "persistence_mode", "clocks.current.sm", "clocks.max.sm", "power.limit", "power.max_limit",
    "memory.used", "memory.total",
)  # fmt: skip
QUERY_SECONDS: Final = 30.0
"""Without persistence mode a driver starts when it is asked, which takes seconds a GPU."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as `nvidia-smi` describes it; None for what it does not say.

    clocks in MHz, power in W, memory in MiB
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

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def gpu_missing(root: Path = Path("/")) -> str | None:
    """Why no step can be computed on a GPU; None where a driver shows one and the packages for it are installed."""
    if not has_device(root):
        return "there is no NVIDIA device (/dev/nvidia0 is absent)"
    absent = absent_packages()
    if absent:
        return f'{" and ".join(absent)} cannot be imported; pip install "ridgeline[gpu]"'
    return None


def has_device(root: Path = Path("/")) -> bool:
    """Whether a driver shows a GPU."""
    return any((root / "dev").glob("nvidia[0-9]*"))


def absent_packages() -> list[str]:
    """What of the extra `gpu` is not installed."""
    return [name for name in PACKAGES if importlib.util.find_spec(name) is None]


def read_gpus(program: str = "nvidia-smi") -> tuple[Gpu, ...]:
    """Every GPU of this machine by its driver's tool; () where that is absent or says nothing in time."""
    asked = [program, f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=QUERY_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    lines = [[word.strip() for word in line.split(",")] for line in done.stdout.splitlines()]
    return tuple(_gpu(words) for words in lines if len(words) == len(QUERY))


def _gpu(words: list[str]) -> Gpu:
    name, driver, persistence, *numbers = words
    return Gpu(name, driver, persistence == "Enabled", *map(_number, numbers))


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:  # [N/A], [Not Supported]
        return None
