"""Memory and CPU cores that this process may use, within cgroup limits and affinity. Standard library only."""

import importlib.util
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path

_UNLIMITED = 1 << 60


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Limits of this process: `memory_bytes` at most, of which `available_bytes` are free now."""

    memory_bytes: int
    available_bytes: int
    cpu_cores: int


def machine_facts(root: Path = Path("/")) -> MachineFacts:
    """Reads /proc and the cgroup files under `root`; falls back to sysconf where they are absent."""
    memory = read_meminfo(root)
    total, available = memory.get("MemTotal", _physical_bytes()), memory.get("MemAvailable", _physical_bytes())
    for limit, used in _memory_limits(root):
        total, available = min(total, limit), min(available, limit - used)
    return MachineFacts(memory_bytes=total, available_bytes=max(0, available), cpu_cores=_count_cpu_cores(root))


def extension_missing() -> str | None:
    """Reason why the native runner is unavailable; None where the extension is installed. Does not load it."""
    if importlib.util.find_spec("ridgeline.compute.cpu._C") is None:
        return "the native extension is not installed; reinstall with a C++17 compiler and without RIDGELINE_NO_EXT"
    return None


def process_age_seconds(root: Path = Path("/")) -> float:
    """Seconds since this process began; 0 where the system does not tell."""
    fields = first_line(root / "proc/self/stat").rpartition(")")[2].split()
    if len(fields) < 20 or not fields[19].isdigit() or not hasattr(time, "CLOCK_BOOTTIME"):
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK"))


def anonymous_bytes(pid: int, root: Path = Path("/")) -> int | None:
    """Bytes of memory that a process has touched, without the files that it maps; None where the system does not tell."""
    line = next((line for line in read_lines(root / f"proc/{pid}/status") if line.startswith("RssAnon:")), "")
    words = line.split()
    return int(words[1]) * 1024 if len(words) > 1 and words[1].isdigit() else None


def _physical_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def read_meminfo(root: Path) -> dict[str, int]:
    """Name → bytes."""
    lines = read_lines(root / "proc/meminfo")
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}


def cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """Directories of this process's cgroups, from its own up to the root; the limits of all of them apply.

    `controller` is empty for version 2. In a container the path in /proc may lie outside what is mounted; the mounted root is then its own.
    """
    mounted = root / "sys/fs/cgroup" / controller
    for line in read_lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            inner = Path(path.lstrip("/"))
            yield from (mounted / group for group in (inner, *inner.parents) if group != Path())
    yield mounted


def _memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, used) in bytes of every cgroup that has a limit. Inactive file cache is not counted as used."""
    for controller, limit_name, used_name, cached_name in (
        ("", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        for group in cgroup_folders(root, controller):
            limit = _read_number(group / limit_name)
            if limit is not None and limit < _UNLIMITED:
                fields = dict(line.split(" ", 1) for line in read_lines(group / "memory.stat"))
                yield limit, max(0, (_read_number(group / used_name) or 0) - int(fields.get(cached_name, 0)))


def _count_cpu_cores(root: Path) -> int:
    """CPU cores in the affinity mask, at most the quota of any cgroup, rounded up."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [(first_line(group / "cpu.max").split()) for group in cgroup_folders(root, "")]
    quotas += [[first_line(group / "cpu.cfs_quota_us"), first_line(group / "cpu.cfs_period_us")] for group in cgroup_folders(root, "cpu")]
    for quota in quotas:
        if len(quota) == 2 and all(word.isdigit() and int(word) > 0 for word in quota):
            count = min(count, ceil(int(quota[0]) / int(quota[1])))
    return count


def first_line(path: Path) -> str:
    """The first line of a file; "" where there is none."""
    return next(iter(read_lines(path)), "")


def _read_number(path: Path) -> int | None:
    text = first_line(path)
    return int(text) if text.isdigit() else None


def read_lines(path: Path) -> list[str]:
    """Lines of the file; [] where it is absent, since not every system has all of them."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
