"""This machine as a device of the planner: its GPU where one would be used, else its CPU with measured ceilings.

Owns the file that keeps the ceilings of a CPU, so that a plan does not measure them every time.
"""

import time
from dataclasses import asdict, replace
from math import isfinite
from pathlib import Path
from typing import Any, Final

from ridgeline import __version__
from ridgeline.facts.files.kept import read_kept, write_kept
from ridgeline.facts.hardware.ceilings import Ceilings, cpu_name, measure_ceilings
from ridgeline.facts.hardware.devices import Device, known_device
from ridgeline.facts.hardware.gpu import gpu_missing, read_gpus
from ridgeline.facts.hardware.machine import extension_missing, machine_facts

FILE: Final = "ceilings.json"
KEPT_SECONDS: Final = 7 * 86_400
"""Seconds after which ceilings are measured again."""
LINK_BYTES_PER_SECOND, HOP_SECONDS = 1.25e9, 50e-6
"""Figures of a link to another machine: ten-gigabit Ethernet."""
FRONT_END_SECONDS: Final = 0.008
"""Seconds of a request between its client and its steps where no server was asked: of two machines that were, 5 to 14 ms by run."""
OVERHEAD_BYTES: Final = 20_000_000
"""Bytes of an engine's process beside weights, cache and activations, as measured: interpreter, numpy, threads."""


def this_machine(cache: Path, fresh: bool = False) -> Device:
    """This machine. Ceilings of a CPU are those kept in `cache`, unless `fresh` or absent, else measured: some tenths of a second."""
    gpu = next(iter(read_gpus()), None) if gpu_missing() is None else None
    device = None if gpu is None else gpu_device(gpu.name)
    if gpu is not None and device is not None:
        return replace(device, name=f"this machine ({gpu.name})", memory_bytes=int(gpu.memory or 0) << 20 or device.memory_bytes)
    facts, name = machine_facts(), cpu_name()
    key = {"cpu": name, "cores": facts.cpu_cores, "version": __version__, "native": extension_missing() is None}
    ceilings = None if fresh else _read(cache / FILE, key)
    if ceilings is None:
        ceilings = measure_ceilings()
        write_kept(cache / FILE, {"key": key, "measured": time.time(), "ceilings": asdict(ceilings)})
    cores = f"{facts.cpu_cores} core{'s' * (facts.cpu_cores > 1)}"
    return Device(
        name=f"this machine ({name}, {cores}, {ceilings.isa}{'' if gpu is None else f'; its {gpu.name} is not in the table'})",
        memory_bytes=facts.memory_bytes,
        bytes_per_second=ceilings.bytes_per_second,
        flops_per_second=ceilings.flops_per_second,
        link_bytes_per_second=LINK_BYTES_PER_SECOND,
        hop_seconds=HOP_SECONDS,
        overhead_bytes=OVERHEAD_BYTES,
        front_end_seconds=FRONT_END_SECONDS,
    )


def gpu_device(name: str) -> Device | None:
    """The device of the table that the driver calls `name`, "NVIDIA A100-SXM4-40GB" for instance; None where there is none."""
    words = [word for word in name.lower().replace("-", " ").split() if word not in ("nvidia", "geforce")]
    for end in range(min(2, len(words)), 0, -1):
        for detail in (*words[end:], ""):  # its form or memory, where the table has several
            device = known_device(" ".join((*words[:end], detail)))
            if device is not None:
                return device
    return None


def _read(file: Path, key: dict[str, Any]) -> Ceilings | None:
    """Kept ceilings of the same CPU; None where there are none, or they are old or damaged."""
    found = read_kept(file)
    try:
        ceilings = Ceilings(**found["ceilings"])
        rates = [ceilings.bytes_per_second, *ceilings.flops_per_second.values()]
        known = all(type(rate) is float and isfinite(rate) and rate > 0 for rate in rates) and "f32" in ceilings.flops_per_second
        is_young = 0 <= time.time() - found["measured"] < KEPT_SECONDS
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return ceilings if found.get("key") == key and known and is_young and isinstance(ceilings.isa, str) else None
