"""This machine as the process may use it: memory and processors within cgroup limits and affinity. Standard library only."""

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path

_UNLIMITED = 1 << 60


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """`memory_bytes` is what this process may use at most, `available_bytes` what is free of it now."""

    memory_bytes: int
    available_bytes: int
    processors: int


def machine_facts(root: Path = Path("/")) -> MachineFacts:
    """Reads /proc and the cgroup files under `root`; falls back to sysconf where they are absent."""
    memory = _meminfo(root)
    total, available = memory.get("MemTotal", _physical()), memory.get("MemAvailable", _physical())
    for limit, used in _memory_limits(root):
        total, available = min(total, limit), min(available, limit - used)
    return MachineFacts(memory_bytes=total, available_bytes=max(0, available), processors=_processors(root))


def extension_missing() -> str | None:
    """Reason why nothing native can run here; None where the extension is installed. Does not load it."""
    if importlib.util.find_spec("ridgeline.compute.cpu._C") is None:
        return "the native extension is not installed; reinstall with a C++17 compiler and without RIDGELINE_NO_EXT"
    return None


def _physical() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _meminfo(root: Path) -> dict[str, int]:
    lines = _lines(root / "proc/meminfo")
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Directories of the cgroups that this process is in, from its own up to the root: a limit of each of them holds.

    `controller` is empty for version 2. In a container the path in /proc may lie outside what is mounted; the mounted root is then its own.
    """
    mounted = root / "sys/fs/cgroup" / controller
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            inner = Path(path.lstrip("/"))
            yield from (mounted / group for group in (inner, *inner.parents) if group != Path())
    yield mounted


def _memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, used) in bytes of every cgroup that has a limit. File pages that the kernel would give back are not counted as used."""
    for controller, limit_name, used_name, cached_name in (
        ("", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        for group in _groups(root, controller):
            limit = _number(group / limit_name)
            if limit is not None and limit < _UNLIMITED:
                fields = dict(line.split(" ", 1) for line in _lines(group / "memory.stat"))
                yield limit, max(0, (_number(group / used_name) or 0) - int(fields.get(cached_name, 0)))


def _processors(root: Path) -> int:
    """Processors of the affinity mask, at most the quota of any cgroup (a part of a processor counts as one)."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [(_first(group / "cpu.max").split()) for group in _groups(root, "")]
    quotas += [[_first(group / "cpu.cfs_quota_us"), _first(group / "cpu.cfs_period_us")] for group in _groups(root, "cpu")]
    for quota in quotas:
        if len(quota) == 2 and all(word.isdigit() and int(word) > 0 for word in quota):
            count = min(count, ceil(int(quota[0]) / int(quota[1])))
    return count


def _first(path: Path) -> str:
    return next(iter(_lines(path)), "")


def _number(path: Path) -> int | None:
    text = _first(path)
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    """Nothing where the file is absent: not every system has each of them."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
