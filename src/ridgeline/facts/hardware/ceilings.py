"""Measured ceilings of this machine: memory bandwidth and operations per second.

Owns the measurement: by the native extension if available, else by the standard library and estimates from the data sheet.
"""

import ctypes
import importlib
import mmap
import platform
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import inf
from pathlib import Path
from types import ModuleType
from typing import Any, Final

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
"""Ceiling → number of its loop (csrc/runtime/roofline.h). A multiply-add is two operations; int4 … int8: codes of 4 … 8 bits with 8-bit
activations."""
ROUND_SECONDS = 0.004
"""Target seconds per round: long against the clock's resolution, short against a scheduler's time slice."""
MIN_TURNS, MIN_BYTES, CALIBRATION_ROUNDS = 50_000, 16 << 20, 3
"""Turns of an arithmetic loop, bytes read, and rounds of the calibration of turns per round."""
PLAN_ROUNDS, PLAN_ARITHMETIC_ROUNDS = 8, 3
"""Reads of memory are short and easily disturbed; a round of arithmetic is neither."""
PLAN_PATIENCE_SECONDS = 0.02
MIN_DRAM_BYTES, MAX_DRAM_BYTES, DRAM_PARTS = 256 << 20, 4 << 30, 8
LEAST_DRAM_BYTES = 128 << 20
"""Bytes of memory for a system that provides it slowly."""
OS_PAGE_BYTES = 4096

READ_BYTES = 64 << 20
"""Bytes that each core reads per round without the extension: more than its caches hold."""
ROUNDS = 5
CLOCK_HERTZ = 2.5e9
"""Assumed clock where the system does not report it."""

SIMD_OPS = (("avx512f", 64, "avx512_vnni", 256), ("avx2", 32, "avx_vnni", 128), ("asimd", 16, "asimddp", 128))
"""(CPU flag, f32 operations per cycle and core with two multiply-add units, flag of 8-bit dot products, their operations per cycle)."""
SCALAR_OPS = 4
"""f32 operations per cycle without SIMD."""


@dataclass(frozen=True, slots=True)
class Caches:
    """Bytes of one L2 cache, and of all L3 caches together; 0 without one."""

    l2: int
    l3: int


class RooflineLoops:
    """The extension's measuring loops over one memory range that is larger than the caches.

    threads   of the larger team; each measurement uses 1 or `threads` threads
    level     number of the ISA level; None: the fastest
    patience  seconds for the system to provide memory: where it takes longer, a smaller range is read
    """

    def __init__(self, module: ModuleType, threads: int, level: int | None = None, root: Path = Path("/"), patience: float = inf) -> None:
        self._native = module
        self._level = max(number for number, _ in module.levels()) if level is None else level
        self._teams: dict[int, Any] = {count: module.Team(count) for count in {1, threads}}
        self.isa: str = dict(module.levels())[self._level]
        self.caches = read_caches(root)
        spare = machine_facts(root).available_bytes // 4
        most = max(MIN_DRAM_BYTES, min(4 * self.caches.l3, MAX_DRAM_BYTES, spare)) // MIN_DRAM_BYTES * MIN_DRAM_BYTES
        # Private: a shared mapping, mmap's default, is never backed by huge pages.
        self._memory = mmap.mmap(-1, most, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        began, self.dram_bytes = time.perf_counter(), 0
        while self.dram_bytes < most and (self.dram_bytes < LEAST_DRAM_BYTES or time.perf_counter() - began < patience):
            self._provide(self._address + self.dram_bytes, threads)
            self.dram_bytes += LEAST_DRAM_BYTES
        self._turns: dict[tuple[str, int], int] = {}
        self._at = 0

    def _provide(self, address: int, threads: int) -> None:
        """Writes `LEAST_DRAM_BYTES`, since pages without a write share one. A system may take long to provide them, less so to several."""
        size = LEAST_DRAM_BYTES // threads // OS_PAGE_BYTES * OS_PAGE_BYTES
        with ThreadPoolExecutor(threads) as pool:
            for start in range(0, LEAST_DRAM_BYTES, size):
                pool.submit(ctypes.memset, address + start, 1, min(size, LEAST_DRAM_BYTES - start))

    def rate(self, key: str, threads: int) -> float | None:
        """Rate of one round of the ceiling `key`, on 1 or on all threads; None where this machine lacks it."""
        size = self._bytes(key, threads)
        if size is None:
            return None
        if (key, threads) not in self._turns:
            self._turns[key, threads] = self._calibrate_turns(key, threads, size)
        seconds, work = self._measure(key, threads, size, self._turns[key, threads])
        return work / seconds / (threads if key == "clock_hertz" else 1) if work else None

    def _calibrate_turns(self, key: str, threads: int, size: int) -> int:
        """Turns of a loop that fill a round, from the fastest of some rounds: a thread may wait for a core."""
        if key == "dram_bytes_per_second":
            return 1  # a second turn would read from caches
        turns = max(1, MIN_BYTES // size) if size else MIN_TURNS
        seconds = min(self._measure(key, threads, size, turns)[0] for _ in range(CALIBRATION_ROUNDS))
        return max(turns, int(turns * ROUND_SECONDS / max(seconds, 1e-9)))

    def _measure(self, key: str, threads: int, size: int, turns: int) -> tuple[float, float]:
        """(seconds, operations or bytes) of one round."""
        start = 0
        if key == "dram_bytes_per_second":  # short rounds over changing parts, so that some are not disturbed by other processes
            start, self._at = self._at, (self._at + size) % self.dram_bytes
        seconds, work = self._native.measure(self._level, self._teams[threads], LOOPS[key], self._address + start, size, turns)
        return float(seconds), float(work)

    def phase_seconds(self, threads: int, count: int = 2_000) -> float:
        """Seconds of a phase without work: claiming chunks and the barrier at its end."""
        return float(self._native.measure_phases(self._teams[threads], count)) / count

    def entry_seconds(self, threads: int, count: int = 500) -> float:
        """Seconds to start a step without phases on the thread team."""
        return float(self._native.measure_entries(self._teams[threads], count)) / count

    def _bytes(self, key: str, threads: int) -> int | None:
        """Bytes read per turn by all threads together; 0 for arithmetic, None without such a cache."""
        own, shared = threads * self.caches.l2, self.caches.l3
        if key == "l2_bytes_per_second":
            return own // 2 or None
        if key == "l3_bytes_per_second":
            return min(max(shared // 4, 2 * own), 3 * shared // 4) or None
        return self.dram_bytes // DRAM_PARTS if key == "dram_bytes_per_second" else 0


def load_native() -> ModuleType | None:
    """The extension module; None where it was not built or does not load. Imported by name, since facts may not import compute."""
    try:
        return importlib.import_module(NATIVE)
    except ImportError:
        return None


def read_caches(root: Path = Path("/")) -> Caches:
    """Cache sizes from /sys. An L3 cache counts once per set of cores that shares it."""
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


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Memory bytes per second and operations per second by data type of all CPU cores together; `isa`: the ISA level, or "estimated"."""

    bytes_per_second: float
    flops_per_second: Mapping[str, float]
    isa: str


def measure_ceilings(root: Path = Path("/")) -> Ceilings:
    """The ceilings of this machine, measured within the process's limits. Takes some tenths of a second."""
    cores = machine_facts(root).cpu_cores
    module = load_native()
    if module is None:
        return Ceilings(measure_bandwidth(cores), theoretical_flops(cores, root), "estimated")
    loops = RooflineLoops(module, cores, root=root, patience=PLAN_PATIENCE_SECONDS)
    return Ceilings(*measure_peaks(loops, cores), loops.isa)


def measure_peaks(loops: RooflineLoops, threads: int) -> tuple[float, Mapping[str, float]]:
    """(memory bytes per second, operations per second by data type) of all cores together: the best of some rounds, since other processes
    can only slow them down."""
    keys = {"f32": "f32_flops_per_second", "f16": "bf16_flops_per_second", "int8": "int8_ops_per_second"}
    rates = {kind: max(loops.rate(key, threads) or 0.0 for _ in range(PLAN_ARITHMETIC_ROUNDS)) for kind, key in keys.items()}
    loops.rate("dram_bytes_per_second", threads)  # of what was just written, some is still in a cache
    bandwidth = max(loops.rate("dram_bytes_per_second", threads) or 0.0 for _ in range(PLAN_ROUNDS))
    return bandwidth, {kind: rate for kind, rate in rates.items() if rate}


def measure_codes(loops: RooflineLoops, threads: int, bits: int) -> float:
    """Operations per second on codes of so many bits with 8-bit activations, all cores together."""
    return max(loops.rate(f"int{bits}_ops_per_second", threads) or 0.0 for _ in range(PLAN_ARITHMETIC_ROUNDS))


def measure_bandwidth(cpu_cores: int) -> float:
    """Memory bytes per second that all cores together read: the best of some rounds, since other processes can only slow it down.

    `memcmp` of two equal ranges reads both in order, and ctypes releases the GIL.
    """
    compare = ctypes.CDLL(None).memcmp
    compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    buffers = [(ctypes.create_string_buffer(READ_BYTES // 2), ctypes.create_string_buffer(READ_BYTES // 2)) for _ in range(cpu_cores)]
    best = float("inf")
    with ThreadPoolExecutor(cpu_cores) as pool:
        for _ in range(ROUNDS):
            began = time.perf_counter()
            list(pool.map(lambda pair: compare(pair[0], pair[1], READ_BYTES // 2), buffers))
            best = min(best, time.perf_counter() - began)
    return cpu_cores * READ_BYTES / best


def theoretical_flops(cpu_cores: int, root: Path = Path("/")) -> Mapping[str, float]:
    """Peak operations per second by data type: cores · clock · operations per cycle. Sustained rates are lower."""
    flags, hertz = _flags_and_clock(root)
    f32_ops, int8_ops = SCALAR_OPS, 0
    for flag, lanes, dot_flag, dot_lanes in SIMD_OPS:
        if flag in flags:
            f32_ops, int8_ops = lanes, dot_lanes if dot_flag in flags else 2 * lanes
            break
    found = {"f32": cpu_cores * hertz * f32_ops}
    return {**found, "int8": cpu_cores * hertz * int8_ops} if int8_ops else found


def cpu_name(root: Path = Path("/")) -> str:
    """The CPU's name, or its architecture where the system does not say."""
    name = _read_cpuinfo(root).get("model name", "")
    return " ".join(name.replace("(R)", "").replace("(TM)", "").split()) or platform.machine()


def _flags_and_clock(root: Path) -> tuple[frozenset[str], float]:
    """(flags, clock in Hz) of the first core in /proc/cpuinfo."""
    fields = _read_cpuinfo(root)
    if not fields:
        return frozenset({"asimd"} if platform.machine() in ("arm64", "aarch64") else ()), CLOCK_HERTZ
    flags = frozenset((fields.get("flags") or fields.get("Features") or "").split())
    try:
        return flags, float(fields["cpu MHz"]) * 1e6
    except (KeyError, ValueError):
        return flags, CLOCK_HERTZ


def _read_cpuinfo(root: Path) -> dict[str, str]:
    """Fields of a core in /proc/cpuinfo; {} where it is absent."""
    try:
        lines = (root / "proc/cpuinfo").read_text().splitlines()
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
