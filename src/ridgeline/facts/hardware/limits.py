"""Limits and settings of the system: open files, pages, swap, clocks, pinning, throttling. Read from files below a root."""

import re
from dataclasses import dataclass
from pathlib import Path

from ridgeline.facts.hardware.machine import cgroup_folders, first_line, read_lines, read_meminfo


@dataclass(frozen=True, slots=True)
class SystemLimits:
    """Facts of this system; None where it does not tell.

    open_files      hard limit; a server raises the soft one itself
    cores           CPU cores that are online, of which `pinned` may be used by affinity
    quota           CPU cores' worth of time that a cgroup allows
    throttled       share of the cgroup's periods in which that was spent
    huge_pages      always, madvise or never
    oom_kills       processes of the cgroup that were killed for lack of memory
    swap, swapped   bytes of swap, and of them in use
    overcommit      0 guess, 1 always, 2 never
    backlog         most connections of a socket that wait to be accepted
    clock           source of the time
    governor        of the CPU's frequency, with `driver`
    """

    open_files: int | None
    cores: int | None
    pinned: int | None
    quota: float | None
    throttled: float | None
    huge_pages: str | None
    oom_kills: int
    swap: int
    swapped: int
    overcommit: int | None
    backlog: int | None
    clock: str | None
    governor: str | None
    driver: str | None


def system_limits(root: Path = Path("/")) -> SystemLimits:
    """Reads /proc, /sys and the cgroups of this process under `root`; versions 1 and 2."""
    memory, system = read_meminfo(root), root / "sys/devices/system"
    swap = memory.get("SwapTotal", 0)
    status = dict(line.split(":", 1) for line in read_lines(root / "proc/self/status") if ":" in line)
    chosen = re.search(r"\[(\w+)\]", first_line(root / "sys/kernel/mm/transparent_hugepage/enabled"))
    quota, throttled = _cpu_quota(root)
    return SystemLimits(
        open_files=_open_files(root),
        cores=_count(first_line(system / "cpu/online")),
        pinned=_count(status.get("Cpus_allowed_list", "").strip()),
        quota=quota,
        throttled=throttled,
        huge_pages=chosen[1] if chosen else None,
        oom_kills=_oom_kills(root),
        swap=swap,
        swapped=swap - memory.get("SwapFree", swap),
        overcommit=_number(root / "proc/sys/vm/overcommit_memory"),
        backlog=_number(root / "proc/sys/net/core/somaxconn"),
        clock=first_line(system / "clocksource/clocksource0/current_clocksource").strip() or None,
        governor=first_line(system / "cpu/cpu0/cpufreq/scaling_governor").strip() or None,
        driver=first_line(system / "cpu/cpu0/cpufreq/scaling_driver").strip() or None,
    )


def _open_files(root: Path) -> int | None:
    """The hard limit; None: there is none, or it is not told."""
    line = next((line for line in read_lines(root / "proc/self/limits") if line.startswith("Max open files")), "")
    words = line.split()
    return int(words[4]) if len(words) > 4 and words[4].isdigit() else None


def _count(ranges: str) -> int | None:
    """Members of a list as `0-3,8`; None where it is none."""
    if not re.fullmatch(r"\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*", ranges):
        return None
    ends = [(part.partition("-")[0], part.rpartition("-")[2]) for part in ranges.split(",")]
    return sum(int(last) - int(first) + 1 for first, last in ends)


def _cpu_quota(root: Path) -> tuple[float | None, float | None]:
    """(cores' worth of time, share of periods in which it was spent) of the tightest cgroup."""
    found: list[tuple[float, Path]] = []
    for controller in ("", "cpu"):
        for group in cgroup_folders(root, controller):
            words = first_line(group / "cpu.max").split() if not controller else [
                first_line(group / "cpu.cfs_quota_us").strip(), first_line(group / "cpu.cfs_period_us").strip(),
            ]  # fmt: skip
            if len(words) == 2 and all(word.isdigit() and int(word) > 0 for word in words):
                found.append((int(words[0]) / int(words[1]), group))
    if not found:
        return None, None
    quota, group = min(found)
    counts = dict(line.split(" ", 1) for line in read_lines(group / "cpu.stat") if " " in line)
    periods, spent = counts.get("nr_periods", ""), counts.get("nr_throttled", "")
    share = int(spent) / int(periods) if periods.isdigit() and spent.isdigit() and int(periods) else None
    return quota, share


def _oom_kills(root: Path) -> int:
    """Kills in this process's own cgroup for lack of memory."""
    for controller, name in (("", "memory.events"), ("memory", "memory.oom_control")):
        for line in read_lines(next(cgroup_folders(root, controller)) / name):
            if line.startswith("oom_kill ") and line.split()[1].isdigit():
                return int(line.split()[1])
    return 0


def _number(path: Path) -> int | None:
    text = first_line(path).strip()
    return int(text) if text.isdigit() else None
