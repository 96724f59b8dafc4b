"""What `ridgeline doctor` says of systems, from files planted as they stand on machines: every loss has its fix."""

import socket
from pathlib import Path

from ridgeline.cli.doctor_system import GIB, check_disk, check_port, check_system
from ridgeline.facts.hardware.limits import system_limits

LIMITS = "Limit                Soft Limit   Hard Limit   Units     \nMax open files       1024         {}       files     \n"
WELL = {
    "proc/self/limits": LIMITS.format(524288),
    "proc/self/status": "Name:\tpython\nCpus_allowed_list:\t0-7,16-23\n",
    "sys/devices/system/cpu/online": "0-7,16-23\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "proc/meminfo": "MemTotal: 64000000 kB\nSwapTotal: 8000000 kB\nSwapFree: 7900000 kB\n",
    "proc/sys/vm/overcommit_memory": "0\n",
    "proc/sys/net/core/somaxconn": "4096\n",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver": "intel_pstate\n",
}


def losses(folder: Path, **planted: str) -> dict[str, str]:
    """Name → text and fix of each loss on a system that is well but for these files; `__` stands for a slash."""
    for name, text in (WELL | {name.replace("__", "/"): text for name, text in planted.items()}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return {each.name: f"{each.text} → {each.fix}" for each in check_system(system_limits(folder)) if each.fix is not None}


def test_a_system_that_is_well_or_tells_nothing(tmp_path: Path) -> None:
    limits = system_limits(tmp_path)
    assert limits.open_files is limits.cores is limits.quota is limits.clock is None
    assert [each.fix for each in check_system(limits)] == [None] * 10
    assert losses(tmp_path) == {}
    limits = system_limits(tmp_path)
    assert (limits.open_files, limits.cores, limits.pinned, limits.huge_pages) == (524288, 16, 16, "madvise")


def test_every_loss_has_its_fix(tmp_path: Path) -> None:
    found = losses(
        tmp_path,
        proc__self__limits=LIMITS.format(4096),
        proc__self__status="Cpus_allowed_list:\t3\n",
        sys__kernel__mm__transparent_hugepage__enabled="always madvise [never]\n",
        proc__meminfo="SwapTotal: 8000000 kB\nSwapFree: 4000000 kB\n",
        proc__sys__vm__overcommit_memory="2\n",
        proc__sys__net__core__somaxconn="128\n",
        sys__devices__system__clocksource__clocksource0__current_clocksource="hpet\n",
        sys__devices__system__cpu__cpu0__cpufreq__scaling_driver="acpi-cpufreq\n",
    )
    assert set(found) == {"open files", "pinning", "huge pages", "swap", "overcommit", "backlog", "clock", "CPU clock"}
    assert "4,096 may be open" in found["open files"] and "LimitNOFILE" in found["open files"]
    assert "1 of 16 cores" in found["pinning"] and "3.8 of 7.6 GiB" in found["swap"] and "somaxconn" in found["backlog"]


def test_limits_of_cgroups_of_both_versions(tmp_path: Path) -> None:
    two, one = tmp_path / "two", tmp_path / "one"
    group = {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.events": "low 0\noom 3\noom_kill 2\n"}
    found = losses(two, **group, **{
        "sys/fs/cgroup/a/cpu.max": "150000 100000\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
        "sys/fs/cgroup/a/cpu.stat": "usage_usec 5\nnr_periods 200\nnr_throttled 50\n",
    })  # fmt: skip
    assert set(found) == {"CPU limit", "memory limit"} and "2 processes" in found["memory limit"]
    assert "1.5 cores" in found["CPU limit"] and "25% of its periods" in found["CPU limit"] and "--threads 1" in found["CPU limit"]
    group = {"proc/self/cgroup": "5:memory:/c\n4:cpu,cpuacct:/c\n", "sys/fs/cgroup/memory/c/memory.oom_control": "oom_kill 1\n"}
    quota = {"sys/fs/cgroup/cpu/c/cpu.cfs_quota_us": "250000\n", "sys/fs/cgroup/cpu/c/cpu.cfs_period_us": "100000\n"}
    found = losses(one, **group, **quota)
    assert set(found) == {"CPU limit", "memory limit"} and "2.5 cores" in found["CPU limit"] and "not a whole number" in found["CPU limit"]


def test_disks_and_ports(tmp_path: Path) -> None:
    (found,) = check_disk([tmp_path / "absent" / "store", tmp_path], lambda path: 3 * GIB)
    assert found.fix is not None and "3.0 GiB are free" in found.text and "ridgeline rm" in found.fix
    (found,) = check_disk([tmp_path], lambda path: 30 * GIB)
    assert found.fix is None
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "--port 0" in str(check_port("127.0.0.1", port).fix)
    assert check_port("127.0.0.1", port).fix is None
