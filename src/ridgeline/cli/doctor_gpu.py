"""The GPU's lines of `ridgeline doctor`: driver, packages, persistence mode, clocks, memory, and the fix of each loss. Loads no torch."""

from collections.abc import Sequence
from typing import Final

from ridgeline.cli.finding import Finding
from ridgeline.facts.gpu import Gpu, absent_packages, has_device, read_gpus

GIB_MIB: Final = 1024
FREE_SHARE: Final = 0.95
"""Of a GPU's memory, what should be free before anything is loaded."""


def gpu_findings() -> list[Finding]:
    """One line where there is no GPU, which is no loss: models are then computed on processors."""
    if not has_device():
        return [Finding("GPU", "none (/dev/nvidia0 is absent): models are computed on processors")]
    return [_packages(absent_packages()), *findings_of(read_gpus())]


def findings_of(gpus: Sequence[Gpu]) -> list[Finding]:
    """What the driver's description of each GPU means."""
    if not gpus:
        fix = "install the NVIDIA driver's tools; in a container, start it with the driver's `utility` capability"
        return [Finding("GPU driver", "nvidia-smi is absent or does not answer: nothing is known of the GPU's state", fix)]
    found = []
    for number, gpu in enumerate(gpus):
        name = f"GPU {number}"
        found += [Finding(name, f"{gpu.name}, driver {gpu.driver}"), _persistence(name, gpu), _clocks(name, gpu), _memory(name, gpu)]
    return found


def _packages(absent: list[str]) -> Finding:
    if absent:
        return Finding("GPU packages", f"{' and '.join(absent)} cannot be imported", 'pip install "ridgeline[gpu]"')
    return Finding("GPU packages", "torch and triton are installed")


def _persistence(name: str, gpu: Gpu) -> Finding:
    if gpu.persistence:
        return Finding(f"{name} persistence", "on: the driver stays loaded between processes")
    text = "off: the driver starts with every first process, which takes seconds, and forgets its settings"
    return Finding(f"{name} persistence", text, "nvidia-smi -pm 1 (as root)")


def _clocks(name: str, gpu: Gpu) -> Finding:
    clocks = f"{_of(gpu.clock)} of {_of(gpu.most_clock)} MHz now (an idle GPU clocks down)"
    if gpu.power is not None and gpu.most_power is not None and gpu.power < gpu.most_power:
        text = f"{clocks}; power is limited to {_of(gpu.power)} of {_of(gpu.most_power)} W, which lowers clocks under load"
        return Finding(f"{name} clocks", text, f"nvidia-smi -pl {gpu.most_power:.0f} (as root)")
    return Finding(f"{name} clocks", f"{clocks}; power limit {_of(gpu.power)} W, the most there is")


def _memory(name: str, gpu: Gpu) -> Finding:
    if gpu.used is None or gpu.memory is None:
        return Finding(f"{name} memory", "the driver does not say")
    text = f"{(gpu.memory - gpu.used) / GIB_MIB:.1f} of {gpu.memory / GIB_MIB:.1f} GiB are free"
    enough = gpu.memory - gpu.used >= FREE_SHARE * gpu.memory
    return Finding(f"{name} memory", text, None if enough else "end the processes that hold the rest: `nvidia-smi` lists them")


def _of(number: float | None) -> str:
    return "?" if number is None else f"{number:.0f}"
