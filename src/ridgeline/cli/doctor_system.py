"""Findings of `ridgeline doctor` about the system around a server: files, disk, CPU time, pages, swap, sockets, clocks."""

import shutil
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor
from pathlib import Path
from typing import Final

from ridgeline.config.groups import ServerConfig
from ridgeline.facts.hardware.limits import SystemLimits

GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check. fix: None where nothing is wrong."""

    name: str
    text: str
    fix: str | None = None


SERVER: Final = ServerConfig()
SPARE_FILES: Final = 256
"""Files beside connections."""
BACKLOG: Final = 2_048
"""Connections that a server lets wait to be accepted."""
MIN_DISK_BYTES: Final = 10 * GIB
"""A model of 8B parameters in 4 bits takes half of it."""
MAX_THROTTLED: Final = 0.01
MAX_SWAPPED: Final = 0.1
SLOW_CLOCKS: Final = ("hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit")
FIRST_DAY: Final = 1_735_689_600
"""1 January 2025: a clock before it is wrong, and certificates seem not to be valid yet."""


def check_system(limits: SystemLimits) -> list[Finding]:
    """Findings of what the system tells about itself."""
    return [
        _files(limits), _pinning(limits), _quota(limits), _pages(limits), _oom(limits), _swap(limits), _overcommit(limits),
        _backlog(limits), _clock(limits, time.time()), _governor(limits),
    ]  # fmt: skip


def check_disk(folders: Sequence[Path], free: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free) -> list[Finding]:
    """Findings of the disks under folders of models; those that do not exist yet count where they will be made."""
    found, seen = list[Finding](), set[int]()
    for folder in folders:
        existing = next(each for each in (folder, *folder.parents) if each.exists())
        if existing.stat().st_dev in seen:
            continue
        seen.add(existing.stat().st_dev)
        left = free(existing)
        fix = None if left >= MIN_DISK_BYTES else "ridgeline list, and ridgeline rm NAME; or another disk by HF_HOME"
        found.append(Finding("disk", f"{left / GIB:.1f} GiB are free for models below {folder}", fix))
    return found


def check_port(host: str = SERVER.host, port: int = SERVER.port) -> Finding:
    """Checks if the port that `serve` takes by itself is free."""
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        text = f"{host} port {port} cannot be had: {error.strerror}"
        return Finding("port", text, f"ridgeline serve MODEL --port 0; `ridgeline ps`, or `ss -ltnp sport = :{port}`, says who has it")
    return Finding("port", f"{host} port {port} is free")


def _files(limits: SystemLimits) -> Finding:
    wanted = SERVER.max_connections + SPARE_FILES
    if limits.open_files is None or limits.open_files >= wanted:
        return Finding("open files", "no limit" if limits.open_files is None else f"{limits.open_files:,} may be open")
    text = f"{limits.open_files:,} may be open, which is less than --max-connections takes with what else is open ({wanted:,})"
    return Finding("open files", text, "ulimit -Hn 65536 as root; LimitNOFILE=65536 in a unit of systemd; docker run --ulimit nofile=65536")


def _pinning(limits: SystemLimits) -> Finding:
    if limits.cores is None or limits.pinned is None or limits.pinned >= limits.cores:
        return Finding("pinning", "none: every core may be used")
    text = f"this process is pinned to {limits.pinned} of {limits.cores} cores; a server has as many threads, or --threads"
    fix = f"taskset -c 0-{limits.cores - 1} ridgeline serve …, or a wider cpuset of the container" if limits.pinned == 1 else None
    return Finding("pinning", text, fix)


def _quota(limits: SystemLimits) -> Finding:
    if limits.quota is None:
        return Finding("CPU limit", "none: no cgroup limits the time on cores")
    threads = max(1, floor(limits.quota))
    text = f"a cgroup allows {limits.quota:g} cores' worth of time"
    if limits.throttled is not None and limits.throttled > MAX_THROTTLED:
        text += f", which was spent in {limits.throttled:.0%} of its periods: threads stand still for the rest of them"
        return Finding("CPU limit", text, f"raise it (docker run --cpus, resources.limits.cpu), or --threads {threads}")
    if limits.quota != floor(limits.quota):
        text += ", not a whole number: one thread too many waits for the others in every step"
        return Finding("CPU limit", text, f"a whole number of cores, or --threads {threads}")
    return Finding("CPU limit", text)


def _pages(limits: SystemLimits) -> Finding:
    if limits.huge_pages != "never":
        return Finding("huge pages", f"{limits.huge_pages or 'unknown'}: weights lie in pages of 2 MiB where the system has them")
    text = "never: every step misses the table of pages more often, and decodes some percent slower"
    return Finding("huge pages", text, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (as root)")


def _oom(limits: SystemLimits) -> Finding:
    if not limits.oom_kills:
        return Finding("memory limit", "nothing in this cgroup was killed for lack of memory")
    text = f"{limits.oom_kills} processes of this cgroup were killed for lack of memory"
    return Finding("memory limit", text, "raise the container's limit, or lower --kv-cache-memory-bytes; see `ridgeline plan MODEL`")


def _swap(limits: SystemLimits) -> Finding:
    if limits.swapped <= MAX_SWAPPED * limits.swap or not limits.swap:
        return Finding("swap", f"{limits.swap / GIB:.1f} GiB, {limits.swapped / GIB:.1f} in use")
    text = f"{limits.swapped / GIB:.1f} of {limits.swap / GIB:.1f} GiB in use: a step that needs a swapped page waits for the disk"
    return Finding("swap", text, "free memory, then swapoff -a && swapon -a; sysctl vm.swappiness=1 keeps weights in memory (as root)")


def _overcommit(limits: SystemLimits) -> Finding:
    if limits.overcommit != 2:
        return Finding("overcommit", "memory is given when it is used" if limits.overcommit is not None else "unknown")
    text = "strict: memory counts when it is asked for, and a model that fits may not load"
    return Finding("overcommit", text, "sysctl vm.overcommit_memory=0 (as root)")


def _backlog(limits: SystemLimits) -> Finding:
    if limits.backlog is None or limits.backlog >= BACKLOG:
        return Finding("backlog", "unknown" if limits.backlog is None else f"{limits.backlog:,} connections may wait to be accepted")
    text = f"{limits.backlog:,} connections may wait to be accepted; of a burst of {BACKLOG:,} the rest try again after a second"
    return Finding("backlog", text, "sysctl net.core.somaxconn=4096 (as root)")


def _clock(limits: SystemLimits, now: float) -> Finding:
    if now < FIRST_DAY:
        text = f"it is {time.strftime('%d %B %Y', time.gmtime(now))} by the system's clock: certificates of hubs will not be valid"
        return Finding("clock", text, "timedatectl set-ntp true (as root)")
    if limits.clock in SLOW_CLOCKS:
        text = f"{limits.clock}: each look at the time takes microseconds, and there are several in every step"
        return Finding("clock", text, "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource (as root)")
    return Finding("clock", limits.clock or "unknown")


def _governor(limits: SystemLimits) -> Finding:
    if limits.governor in ("powersave", "conservative") and not (limits.driver or "").startswith(("intel_pstate", "amd-pstate")):
        text = f"{limits.governor}: cores do not reach their clock"
        return Finding("CPU clock", text, "cpupower frequency-set -g performance (as root)")
    return Finding("CPU clock", limits.governor or "the system does not tell, as in most virtual machines")
