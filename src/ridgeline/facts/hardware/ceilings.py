"""Ceilings of this machine: bytes read and operations per second, all measured in a moment.

Owns the measurement: by the native extension where it is, else by the standard library and arithmetic. A plan needs nothing else.
"""

import ctypes
import importlib
import mmap
import platform
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from ridgeline.facts.hardware.devices import Device
from ridgeline.facts.hardware.machine import machine_facts

NATIVE: Final = "ridgeline.compute.cpu._C"
LOOPS: Final = {
    "dram_bytes_per_second": 0,
    "l3_bytes_per_second": 0,
    "l2_bytes_per_second": 0,
    "clock_hertz": 1,
    "f32_flops_per_second": 2,
    "bf16_flops_per_second": 3,
    "int4_ops_per_second": 4,
    "int5_ops_per_second": 5,
    "int6_ops_per_second": 6,
    "int8_ops_per_second": 7,
}
"""Ceilings and the numbers of their loops (csrc/runtime/roofline.h). A multiply-add is two operations; int4 … int8: codes of so many
bits with 8-bit activations."""
ROUND_SECONDS = 0.004
"""Seconds that one round of a loop should take: long beside a clock's grain, short beside a neighbour's slice."""
LEAST_TURNS, LEAST_BYTES, TRIES = 50_000, 16 << 20, 3
"""Turns of an arithmetic loop, or bytes read, from which the turns of a round are told."""
PLAN_ROUNDS = 8
LEAST_DRAM, MOST_DRAM, DRAM_PARTS = 256 << 20, 4 << 30, 8
PAGE = 4096

READ_BYTES = 64 << 20
"""Bytes that each processor reads in one go where there is no extension: beyond what its caches hold."""
ROUNDS = 5
CLOCK_HERTZ = 2.5e9
"""Clock assumed where the system does not tell it."""

LANES = (("avx512f", 64, "avx512_vnni", 256), ("avx2", 32, "avx_vnni", 128), ("asimd", 16, "asimddp", 128))
"""Flag → f32 operations per cycle and processor with two multiply-add units; flag of 8-bit dot products → their operations per cycle."""
PLAIN = 4
"""Operations a cycle without any of them."""


@dataclass(frozen=True, slots=True)
class Caches:
    """Bytes of one second-level cache, and of all third-level caches together; 0 where there is none."""

    l2: int
    l3: int


class Loops:
    """The extension's loops over one range of memory that no cache holds.

    threads  the most that a measurement uses; each measurement takes one of the teams, of 1 and of `threads` threads
    level    number of the ISA level; None: the fastest
    """

    def __init__(self, module: ModuleType, threads: int, level: int | None = None, root: Path = Path("/")) -> None:
        self._native = module
        self._level = max(number for number, _ in module.levels()) if level is None else level
        self._teams: dict[int, Any] = {count: module.Team(count) for count in {1, threads}}
        self.isa: str = dict(module.levels())[self._level]
        self.caches = caches(root)
        spare = machine_facts(root).available_bytes // 4
        self.dram_bytes = max(LEAST_DRAM, min(4 * self.caches.l3, MOST_DRAM, spare))
        # Private: a shared mapping, mmap's default, is never held in huge pages.
        self._memory = mmap.mmap(-1, self.dram_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._memory[::PAGE] = b"\1" * (self.dram_bytes // PAGE)  # a page that was never written is one page of zeros, for all of them
        self._turns: dict[tuple[str, int], int] = {}
        self._at = 0
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def rate(self, key: str, threads: int) -> float | None:
        """Rate of one round of the ceiling `key`, on 1 or on all threads; None where this machine has no such thing."""
        size = self._bytes(key, threads)
        if size is None:
            return None
        if (key, threads) not in self._turns:
            self._turns[key, threads] = self._calibrated(key, threads, size)
        spent, work = self._measure(key, threads, size, self._turns[key, threads])
        return work / spent / (threads if key == "clock_hertz" else 1) if work else None

    def _calibrated(self, key: str, threads: int, size: int) -> int:
        """Turns of a loop that fill a round. The quickest of some tries tells: a thread may wait for a processor."""
        if key == "dram_bytes_per_second":
            return 1  # a second turn would find in caches what the first one left there
        turns = max(1, LEAST_BYTES // size) if size else LEAST_TURNS
        spent = min(self._measure(key, threads, size, turns)[0] for _ in range(TRIES))
        return max(turns, int(turns * ROUND_SECONDS / max(spent, 1e-9)))

    def _measure(self, key: str, threads: int, size: int, turns: int) -> tuple[float, float]:
        """Seconds and work."""
        start = 0
        if key == "dram_bytes_per_second":  # short rounds over ever other parts, so that some fall between a neighbour's slices
            start, self._at = self._at, (self._at + size) % self.dram_bytes
        spent, work = self._native.measure(self._level, self._teams[threads], LOOPS[key], self._address + start, size, turns)
        return float(spent), float(work)

    def phase_seconds(self, threads: int, count: int = 2_000) -> float:
        """A phase of a step without work: its chunks are claimed, and all wait until the last one is finished."""
        return float(self._native.measure_phases(self._teams[threads], count)) / count

    def entry_seconds(self, threads: int, count: int = 500) -> float:
        """A step without phases: the team is set to work, and all of it has come."""
        return float(self._native.measure_entries(self._teams[threads], count)) / count

    def _bytes(self, key: str, threads: int) -> int | None:
        """Bytes read for a ceiling by all threads together; 0 for arithmetic, None without such a cache."""
        own, shared = threads * self.caches.l2, self.caches.l3
        if key == "l2_bytes_per_second":
            return own // 2 or None
        if key == "l3_bytes_per_second":
            return min(max(shared // 4, 2 * own), 3 * shared // 4) or None
        return self.dram_bytes // DRAM_PARTS if key == "dram_bytes_per_second" else 0


def native() -> ModuleType | None:
    """The extension; None where it was not built or does not load. Started by name: what is measured is not what computes."""
    try:
        return importlib.import_module(NATIVE)
    except ImportError:
        return None


def caches(root: Path = Path("/")) -> Caches:
    """Sizes as the system tells them. A third-level cache counts once for every set of processors that shares one."""
    second, third = 0, {}
    for index in sorted(root.glob("sys/devices/system/cpu/cpu[0-9]*/cache/index*")):
        try:
            level, kind, size, shared = [(index / name).read_text().strip() for name in ("level", "type", "size", "shared_cpu_list")]
        except OSError:
            continue
        if kind != "Instruction" and size.endswith("K") and size[:-1].isdigit():
            if level == "2":
                second = int(size[:-1]) << 10
            elif level == "3":
                third[shared] = int(size[:-1]) << 10
    return Caches(second, sum(third.values()))


def this_machine(root: Path = Path("/")) -> Device:
    """The machine as this process may use it, measured. Takes some tenths of a second."""
    facts = machine_facts()
    module = native()
    if module is None:
        bandwidth, flops = read_bandwidth(facts.processors), peaks(facts.processors, root)
    else:
        bandwidth, flops = measured(Loops(module, facts.processors, root=root), facts.processors)
    return Device(
        name="this machine",
        memory_bytes=facts.memory_bytes,
        bytes_per_second=bandwidth,
        flops_per_second=flops,
        link_bytes_per_second=1.25e9,
        hop_seconds=50e-6,
        overhead_bytes=500_000_000,
    )


def measured(loops: Loops, threads: int) -> tuple[float, Mapping[str, float]]:
    """Bytes per second from memory and operations per second by data type, as all processors together reach them: the best of some rounds,
    since others can only slow them down."""
    keys = {"f32": "f32_flops_per_second", "f16": "bf16_flops_per_second", "int8": "int8_ops_per_second"}
    best = {key: max(loops.rate(key, threads) or 0.0 for _ in range(PLAN_ROUNDS)) for key in ("dram_bytes_per_second", *keys.values())}
    return best["dram_bytes_per_second"], {kind: best[key] for kind, key in keys.items() if best[key]}


def read_bandwidth(processors: int) -> float:
    """Bytes per second that all processors together read from memory: the best of some rounds, since others can only slow it down.

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
    """Operations per second by data type: processors · clock · operations per cycle. What a processor sustains is less."""
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
