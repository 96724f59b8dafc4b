"""Ceilings of this machine: every key is there, and what physics orders is in order."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeline.compute.bench.roofline import NAMES, Roofline, roofline
from ridgeline.compute.cpu import ext
from ridgeline.facts.hardware import ceilings
from ridgeline.facts.hardware.noise import Noise, NoiseMonitor
from ridgeline.facts.hardware.this_machine import this_machine

pytestmark = pytest.mark.alone
native = pytest.mark.skipif(ext.lost() is not None, reason=f"no native extension: {ext.lost()}")


@pytest.fixture(scope="module", autouse=True)
def _little_memory() -> Iterator[None]:
    """A system takes seconds to provide more than its largest cache holds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ceilings, "MAX_DRAM_BYTES", ceilings.MIN_DRAM_BYTES)
        yield


@pytest.fixture(scope="module")
def measured(_little_memory: None) -> Roofline:
    return roofline(rounds=6)


@native
def test_every_ceiling_is_told_for_one_thread_and_for_all(measured: Roofline) -> None:
    told = json.loads(json.dumps(measured.as_dict()))
    for key in NAMES:
        if told[key] is None:
            assert key in ("bf16_flops_per_second", "l3_bytes_per_second", "l2_bytes_per_second")
            continue
        for threads in ("one", "all"):
            assert 0 < told["medians"][key][threads] <= told[key][threads] < 1e16, key
    assert told["isa"] == ext.isa() and told["threads"] >= 1
    assert set(told["noise"]) == {"load_average", "others", "steal", "disturbed"}


@native
def test_ceilings_are_physically_plausible(measured: Roofline) -> None:
    """One thread: with several the neighbours of a shared machine decide."""
    best = {key: measured.best(key, 1) for key in NAMES}
    assert 5e8 < measured.clock_hertz < 1e10
    assert 1e9 < best["dram_bytes_per_second"] < 1e12
    if best["l2_bytes_per_second"] and best["l3_bytes_per_second"]:
        assert best["l2_bytes_per_second"] > 0.8 * best["l3_bytes_per_second"] > 0.4 * best["dram_bytes_per_second"]
    if measured.isa == "avx2":  # what two units of 32 bytes can do, at no more than 6 GHz
        assert 1e9 < best["f32_flops_per_second"] < 32 * 6e9
        assert best["f32_flops_per_second"] < best["int8_ops_per_second"] < 64 * 6e9
        assert best["int8_ops_per_second"] < best["int4_ops_per_second"] < 128 * 6e9
    if measured.isa == "avx512vnni":
        assert best["int8_ops_per_second"] > 2 * best["f32_flops_per_second"]
    assert 0 < measured.phase_seconds < 1e-2 and 0 < measured.entry_seconds < 1e-1


@native
@pytest.mark.parametrize("level", ext.isa_levels())
def test_every_level_does_what_it_counts(level: str) -> None:
    """No loop is dropped or hoisted by the compiler: none is faster than two units of 64 bytes are at 6 GHz."""
    loops = ceilings.RooflineLoops(ext.native(), 2, ext.level_number(level))
    for key in ("f32_flops_per_second", "int4_ops_per_second", "int8_ops_per_second", "l2_bytes_per_second"):
        rate = max(loops.rate(key, 1) or 0 for _ in range(2))
        assert 1e8 < rate < 256 * 6e9, key


@native
def test_a_plan_takes_the_measured_ceilings(tmp_path: Path) -> None:
    device = this_machine(tmp_path)
    loops = ceilings.RooflineLoops(ext.native(), 1)
    one = max(loops.rate("f32_flops_per_second", 1) or 0 for _ in range(8))
    assert 0.4 * one < device.flops("f32") < 1e15
    assert device.flops("int8") > 0.4 * device.flops("f32")
    assert 1e9 < device.bytes_per_second < 1e13


def test_without_the_extension_a_plan_still_knows_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "load_native", lambda: None)
    device = this_machine(tmp_path)
    assert dict(device.flops_per_second) == dict(ceilings.theoretical_flops(ceilings.machine_facts().cpu_cores))


def test_caches_are_counted_once_where_they_are_shared(tmp_path: Path) -> None:
    for cpu, index, level, kind, size, shared in (
        (0, 0, "1", "Data", "32K", "0"), (0, 1, "1", "Instruction", "32K", "0"),
        (0, 2, "2", "Unified", "512K", "0"), (0, 3, "3", "Unified", "16384K", "0-1"),
        (1, 2, "2", "Unified", "512K", "1"), (1, 3, "3", "Unified", "16384K", "0-1"),
        (2, 3, "3", "Unified", "16384K", "2-3"), (3, 3, "3", "Unified", "oops", "2-3"),
    ):  # fmt: skip
        place = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
        place.mkdir(parents=True)
        for name, text in (("level", level), ("type", kind), ("size", size), ("shared_cpu_list", shared)):
            (place / name).write_text(text + "\n")
    assert ceilings.read_caches(tmp_path) == ceilings.Caches(512 << 10, 32 << 20)
    assert ceilings.read_caches(tmp_path / "nothing") == ceilings.Caches(0, 0)


def test_noise_counts_what_others_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "proc").mkdir()
    stat = tmp_path / "proc/stat"
    seconds = iter([0.0, 10.0])
    monkeypatch.setattr("ridgeline.facts.hardware.noise.time.monotonic", lambda: next(seconds))
    monkeypatch.setattr("ridgeline.facts.hardware.noise._process_seconds", lambda: 2.0)
    monkeypatch.setattr("ridgeline.facts.hardware.noise.os.sysconf", lambda name: 100)
    stat.write_text("cpu 100 0 0 5000 7 0 0 10 0 0\n")
    watch = NoiseMonitor(tmp_path)
    stat.write_text("cpu 300 50 150 9000 9 0 0 60 0 0\n")
    noise = watch.stop()
    assert (noise.others, noise.steal, noise.disturbed) == (0.4, 0.05, True)
    assert "DISTURBED" in noise.summary() and "DISTURBED" not in Noise(9.0, 0.3, 0.3).summary()
