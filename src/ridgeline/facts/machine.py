"""This machine as the process may use it: memory and processors within cgroup limits and affinity. Standard library only."""

import os
from dataclasses import dataclass
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
    limit, used = _cgroup_memory(root)
    return MachineFacts(
        memory_bytes=min(total, limit),
        available_bytes=max(0, min(available, limit - used)),
        processors=_processors(root),
    )


def _physical() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _meminfo(root: Path) -> dict[str, int]:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}


def _cgroup_memory(root: Path) -> tuple[int, int]:
    """(limit, used) in bytes; version 2 first, then version 1."""
    base = root / "sys/fs/cgroup"
    for limit_name, used_name in (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
        limit, used = _number(base / limit_name), _number(base / used_name)
        if limit is not None and limit < _UNLIMITED:
            return limit, used or 0
    return _UNLIMITED, 0


def _processors(root: Path) -> int:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = (root / "sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            count = min(count, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        pass
    return count


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
