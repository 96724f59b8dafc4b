"""What a model name stands for, and facts from headers and from this machine."""

import errno
import os
import sys
from pathlib import Path

import pytest

from ridgeline.config.env import ModelStores
from ridgeline.errors import ModelFormatError, ModelNotFoundError
from ridgeline.facts.hardware.machine import machine_facts
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.facts.hub.packaged import PACKAGED
from ridgeline.facts.hub.source import resolve_model
from ridgeline.facts.model import ModelFacts
from ridgeline.planning.memory import block_bytes, kv_groups, longest_sequence, sequence_blocks


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A packaged model of three parts on the import path, called `small`."""
    import hashlib

    parts = [b"GGUF", b"-middle-", b"end"]
    site = tmp_path / "site"
    (site / "small_model" / "data").mkdir(parents=True)
    (site / "small_model" / "__init__.py").write_text("")
    digest = hashlib.sha256(b"".join(parts)).hexdigest()
    (site / "small_model" / "data" / "SHA256SUMS").write_text(f"{digest}  small.gguf\n")
    for number, part in enumerate(parts, 1):
        data = site / f"small_model_part{number}" / "data"
        data.mkdir(parents=True)
        (data.parent / "__init__.py").write_text("")
        (data / f"small.gguf.part0{number - 1}").write_bytes(part)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setitem(PACKAGED, "small", "small_model")
    yield site
    for name in [name for name in sys.modules if name.startswith("small_model")]:
        del sys.modules[name]


def test_a_package_is_assembled_once(package: Path, tmp_path: Path) -> None:
    stages: list[tuple[str, float]] = []
    path = resolve_model("small", ModelStores(tmp_path / "cache"), lambda stage, fraction: stages.append((stage, fraction)))
    assert path.read_bytes() == b"GGUF-middle-end"
    assert stages[-1] == ("assembling", 1.0)
    written = path.stat().st_mtime_ns
    assert resolve_model("small", ModelStores(tmp_path / "cache")).stat().st_mtime_ns == written
    assert sorted((tmp_path / "cache").iterdir()) == sorted([path, tmp_path / "cache" / "library"])


def test_a_damaged_part_is_never_used(package: Path, tmp_path: Path) -> None:
    next((package / "small_model_part2" / "data").iterdir()).write_bytes(b"-muddle-")
    with pytest.raises(ModelFormatError, match="reinstall"):
        resolve_model("small", ModelStores(tmp_path / "cache"))
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("sums", ["", "zz  small.gguf\n", "0" * 64 + "  ../../small.gguf\n"])
def test_a_damaged_digest_file_is_never_used(package: Path, tmp_path: Path, sums: str) -> None:
    (package / "small_model" / "data" / "SHA256SUMS").write_text(sums)
    with pytest.raises(ModelFormatError, match="SHA256SUMS is missing or damaged; reinstall"):
        resolve_model("small", ModelStores(tmp_path / "cache"))


def test_a_file_that_was_cut_is_assembled_again(package: Path, tmp_path: Path) -> None:
    path = resolve_model("small", ModelStores(tmp_path / "cache"))
    path.write_bytes(b"GGUF")
    assert resolve_model("small", ModelStores(tmp_path / "cache")).read_bytes() == b"GGUF-middle-end"


def test_what_a_killed_process_left_is_removed(package: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / ".assembling-living").write_bytes(b"x")
    (cache / ".assembling-dead").write_bytes(b"x")
    os.utime(cache / ".assembling-dead", (0, 0))
    path = resolve_model("small", ModelStores(cache))
    assert set(cache.iterdir()) == {path, cache / ".assembling-living", cache / "library"}


def test_a_cache_that_cannot_be_written_names_the_fix(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelNotFoundError, match="XDG_CACHE_HOME"):
        resolve_model("small", ModelStores(tmp_path / "file" / "cache"))

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ModelNotFoundError, match=r"15 bytes cannot be assembled .* .No space left on device."):
        resolve_model("small", ModelStores(tmp_path / "cache"))
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_missing_package_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGED, "absent", "no_such_package_at_all")
    with pytest.raises(ModelNotFoundError, match="pip install"):
        resolve_model("absent", ModelStores(tmp_path))


def test_paths_and_directories(tmp_path: Path) -> None:
    for name in ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf"):
        (tmp_path / name).write_bytes(b"x")
    assert resolve_model(str(tmp_path), ModelStores(tmp_path)).name == "a-00001-of-00002.gguf"
    (tmp_path / "b.gguf").write_bytes(b"x")
    assert resolve_model(str(tmp_path / "b.gguf"), ModelStores(tmp_path)).name == "b.gguf"
    for wrong in (str(tmp_path), str(tmp_path / "c.gguf"), "no/such/model"):
        with pytest.raises(ModelNotFoundError):
            resolve_model(wrong, ModelStores(tmp_path))


def test_a_directory_with_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path), ModelStores(tmp_path)) == tmp_path.resolve()
    (tmp_path / "mmproj-F16.gguf").write_bytes(b"x")
    assert resolve_model(str(tmp_path), ModelStores(tmp_path)) == tmp_path.resolve()
    (tmp_path / "m.gguf").write_bytes(b"x")
    assert resolve_model(str(tmp_path), ModelStores(tmp_path)).name == "m.gguf"
    (tmp_path / "model.safetensors").write_bytes(b"x")
    assert resolve_model(str(tmp_path), ModelStores(tmp_path)) == tmp_path.resolve()
    with pytest.raises(ModelNotFoundError, match="give the directory"):
        resolve_model(str(tmp_path / "model.safetensors"), ModelStores(tmp_path))


@pytest.fixture(scope="module")
def demo(demo_file: Path) -> ModelFacts:
    return read_model_facts(demo_file)


def test_the_demo(demo: ModelFacts) -> None:
    assert (demo.layers, demo.hidden, demo.heads, demo.kv_heads, demo.head_dim) == (18, 640, 4, 1, 256)
    assert [i for i, kind in enumerate(demo.layer_kinds) if kind == "full"] == [5, 11, 17]
    assert {kind: rope.base for kind, rope in demo.rope.items()} == {"full": 1e6, "window": 1e4}
    assert (demo.window, demo.vocab, demo.tied) == (512, 262_144, True)
    assert len(demo.fingerprint) == 32


def test_pages_of_the_demo(demo: ModelFacts) -> None:
    groups = kv_groups(demo)
    assert [len(group.layers) for group in groups] == [3] * 6
    assert sorted(layer for group in groups for layer in group.layers) == list(range(18))
    assert block_bytes(demo, groups[0], 16, "f32") == 2 * 3 * 16 * 1 * 256 * 4
    # 32,768 tokens: 2,048 blocks in the full group; a window of 512 and a chunk of 512 in the five others
    assert sequence_blocks(groups, 16, 32_768, 512) == 2_048 + 5 * (64 + 1)
    assert sequence_blocks(groups, 16, 32, 512) == 6 * 2
    pages = sequence_blocks(groups, 16, 10_000, 512)
    assert longest_sequence(groups, 16, pages, 512, 32_768) == 10_000
    assert longest_sequence(groups, 16, 5, 512, 32_768) == 0


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


MEMINFO = {"proc/meminfo": "MemTotal: 1000000 kB\nMemAvailable: 900000 kB"}


def test_a_machine_without_limits(tmp_path: Path) -> None:
    facts = machine_facts(write(tmp_path, MEMINFO | {"sys/fs/cgroup/memory.max": "max", "sys/fs/cgroup/cpu.max": "max 100000"}))
    assert (facts.memory_bytes, facts.available_bytes) == (1_024_000_000, 921_600_000)
    assert facts.cpu_cores == len(os.sched_getaffinity(0))
    assert machine_facts(tmp_path / "nothing").memory_bytes > 0


def test_limits_of_cgroup_version_2_at_any_level(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/system.slice/ridgeline.service"
    files = {
        "proc/self/cgroup": "0::/system.slice/ridgeline.service",
        f"{group}/memory.max": "max",
        f"{group}/cpu.max": "150000 100000",
        "sys/fs/cgroup/system.slice/memory.max": "500000",
        "sys/fs/cgroup/system.slice/memory.current": "100000",
        "sys/fs/cgroup/system.slice/memory.stat": "anon 60000\ninactive_file 40000",
        "sys/fs/cgroup/system.slice/cpu.max": "max 100000",
    }
    facts = machine_facts(write(tmp_path, MEMINFO | files))
    assert (facts.memory_bytes, facts.available_bytes) == (500_000, 440_000)
    assert facts.cpu_cores == min(2, len(os.sched_getaffinity(0)))


def test_limits_of_cgroup_version_1(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/docker/abc\n1:cpu,cpuacct:/\n0::/",
        "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": "9223372036854771712",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "700000",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "300000",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
    }
    facts = machine_facts(write(tmp_path, MEMINFO | files))
    assert (facts.memory_bytes, facts.available_bytes, facts.cpu_cores) == (700_000, 400_000, 1)
