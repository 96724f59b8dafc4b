"""This machine as a device of the planner: memory bandwidth measured in a moment, peaks from its clock and instruction set.

Owns the measurement. Standard library only, so that a plan needs nothing else.
"""

import ctypes
import platform
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ridgeline.facts.devices import Device
from ridgeline.facts.machine import machine_facts

READ_BYTES = 64 << 20
"""What each processor reads in one go: beyond what its caches hold."""
ROUNDS = 5
CLOCK_HERTZ = 2.5e9
"""Where the system does not tell its clock."""

LANES = (("avx512f", 64, "avx512_vnni", 256), ("avx2", 32, "avx_vnni", 128), ("asimd", 16, "asimddp", 128))
"""Flag → f32 operations a cycle and processor with two multiply-add units; flag of 8-bit dot products → their operations a cycle."""
PLAIN = 4
"""Operations a cycle without any of them."""


def this_machine(root: Path = Path("/")) -> Device:
    """What this process may use of the machine that it runs on. Takes about a tenth of a second."""
    facts = machine_facts()
    return Device(
        name="this machine",
        memory_bytes=facts.memory_bytes,
        bytes_per_second=read_bandwidth(facts.processors),
        flops_per_second=peaks(facts.processors, root),
        link_bytes_per_second=1.25e9,
        hop_seconds=50e-6,
        overhead_bytes=500_000_000,
    )


def read_bandwidth(processors: int) -> float:
    """Bytes a second that all processors together read from memory: the best of some rounds, since others can only slow it down.

    `memcmp` of two equal ranges reads both in order and gives the interpreter's lock away while it does.
    """
    compare = ctypes.CDLL(None).memcmp
    compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    buffers = [(ctypes.create_string_buffer(READ_BYTES // 2), ctypes.create_string_buffer(READ_BYTES // 2)) for _ in range(processors)]
    best = float("inf")
    with ThreadPoolExecutor(processors) as pool:
        for _ in range(ROUNDS):
            began = time.perf_counter()
            list(pool.map(lambda pair: compare(pair[0], pair[1], READ_BYTES // 2), buffers))
            best = min(best, time.perf_counter() - began)
    return processors * READ_BYTES / best


def peaks(processors: int, root: Path = Path("/")) -> Mapping[str, float]:
    """Operations a second by data type: processors · clock · operations a cycle. What a processor sustains is less."""
    flags, hertz = _processor(root)
    single, eight = PLAIN, 0
    for flag, lanes, dot_flag, dot_lanes in LANES:
        if flag in flags:
            single, eight = lanes, dot_lanes if dot_flag in flags else 2 * lanes
            break
    found = {"f32": processors * hertz * single}
    return {**found, "int8": processors * hertz * eight} if eight else found


def _processor(root: Path) -> tuple[frozenset[str], float]:
    """Flags and clock of the first processor that the system lists."""
    try:
        text = (root / "proc/cpuinfo").read_text()
    except OSError:
        return frozenset({"asimd"} if platform.machine() in ("arm64", "aarch64") else ()), CLOCK_HERTZ
    fields = {key.strip(): value for key, _, value in (line.partition(":") for line in text.splitlines())}
    flags = frozenset((fields.get("flags") or fields.get("Features") or "").split())
    try:
        return flags, float(fields["cpu MHz"]) * 1e6
    except (KeyError, ValueError):
        return flags, CLOCK_HERTZ
