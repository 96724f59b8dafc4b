"""`config explain` says of every setting what the engine will do, what that costs, and a metric that exists."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ridgeline.config.groups import EngineConfig, ServerConfig, public_fields
from ridgeline.config.setting import setting_of
from ridgeline.facts.hardware import ceilings
from ridgeline.facts.hardware.disk import file_rate, folder_rate
from ridgeline.facts.hardware.this_machine import this_machine
from ridgeline.planning.report import CHECKED_BYTES_PER_SECOND

METRICS = (Path(__file__).parents[2] / "src/ridgeline/observe/prometheus.py").read_text()


def explain(*arguments: str) -> list[dict[str, object]]:
    """Without numpy and torch."""
    block = "import sys; sys.modules.update(numpy=None, torch=None); from ridgeline.cli.main import main; main()"
    words = ["config", "explain", *arguments, "--json"]
    done = subprocess.run([sys.executable, "-c", block, *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


def test_every_setting_is_explained_by_metrics_that_exist() -> None:
    settings = {name: setting_of(field) for name, field in public_fields(EngineConfig, ServerConfig).items()}
    assert not [name for name, setting in settings.items() if name != "model" and not (setting.help and setting.why and setting.wrong)]
    named = {name for setting in settings.values() for name in re.findall(r"vllm:(\w+)", setting.wrong)}
    assert len(named) >= 7
    assert not [name for name in named if name not in METRICS]


def test_values_are_those_that_the_engine_takes(demo_file: Path) -> None:
    found = explain(str(demo_file), "--set", "max_num_seqs=8", "--device", "epyc-9654", "--api-key", "hush")
    rows = {str(row["name"]): row for row in found}
    assert list(rows) == list(public_fields(EngineConfig, ServerConfig))
    assert (rows["max_num_seqs"]["value"], rows["max_num_seqs"]["origin"]) == (8, "flag")
    assert (rows["api_key"]["value"], rows["port"]["value"], rows["port"]["origin"]) == ("set", 8000, "default")
    assert (rows["max_model_len"]["value"], rows["max_model_len"]["origin"]) == (32768, "model")
    assert rows["kv_cache_memory_bytes"]["value"] == rows["kv_cache_memory_bytes"]["bytes"]
    assert rows["block_size"]["origin"] == "default"
    assert re.search(r"adds to steps with decoding sequences: \d+ tokens, as a step takes [\d.]+ ms", str(rows["step_ms"]["reason"]))
    assert 0 < float(str(rows["max_model_len"]["seconds"])) < float(str(rows["max_num_seqs"]["seconds"])) < 0.1


def test_tiers_have_a_price_where_they_are_used(demo_file: Path, tmp_path: Path) -> None:
    names = ("kv_cache_dir", "kv_cache_dir_bytes", "kv_cache_listen", "kv_cache_peers", "kv_cache_redis")
    unused = {str(row["name"]): row for row in explain(str(demo_file), "--device", "epyc-9654")}
    assert not any(unused[name]["seconds"] or unused[name]["bytes"] for name in names)
    used = [f"kv_cache_dir={tmp_path}", "kv_cache_dir_bytes=1GiB", "kv_cache_listen=127.0.0.1:7000=2"]
    words = [word for each in used for word in ("--set", each)]
    rows = {str(row["name"]): row for row in explain(str(demo_file), "--device", "epyc-9654", *words, "--max-model-len", "4096")}
    assert [rows[name]["bytes"] for name in names[1:3]] == [1 << 30, 2 << 30]
    told = re.search(r"bringing the blocks of 4,096 tokens, which take ([\d.]+) s to compute", str(rows["kv_cache_dir"]["reason"]))
    assert told and 0 < float(str(rows["kv_cache_dir"]["seconds"])) < float(told[1])


def test_the_file_of_blocks_is_read_for_its_rate(demo_file: Path, tmp_path: Path) -> None:
    (tmp_path / "model.kv").write_bytes(bytes(range(256)) * (1 << 16))
    words = ("--device", "epyc-9654", "--set", f"kv_cache_dir={tmp_path}", "--max-model-len", "4096")
    rows = {str(row["name"]): row for row in explain(str(demo_file), *words)}
    rate = re.search(r"what lies there is read at ([\d.e+]+) GB/s", str(rows["kv_cache_dir"]["reason"]))
    assert rate
    per_byte, size = 1 / (1e9 * float(rate[1])) + 1 / CHECKED_BYTES_PER_SECOND, float(str(rows["max_model_len"]["bytes"]))
    assert float(str(rows["kv_cache_dir"]["seconds"])) == pytest.approx(size * per_byte, rel=0.06)


def test_rates_are_those_of_what_is_there(tmp_path: Path) -> None:
    """Holes are none of it, and a disk that is slow costs milliseconds."""
    path = tmp_path / "file"
    with path.open("wb+") as file:
        file.truncate(1 << 30)
        assert file_rate(file.fileno()) is None, "it is a hole"
        file.seek(600 << 20)
        file.write(bytes(range(256)) * (1 << 15))
        file.flush()
        began = time.perf_counter()
        rate = file_rate(file.fileno())
        assert rate is not None and rate > 1e7 and time.perf_counter() - began < 2
    assert folder_rate(str(tmp_path), ".kv") is None and folder_rate(str(tmp_path / "missing"), ".kv") is None
    (tmp_path / "link.kv").symlink_to(path)
    assert folder_rate(str(tmp_path), ".kv") is None


@pytest.mark.parametrize(("flags", "lanes", "eight"), [("avx2", 32, 64), ("avx2 avx512f avx512_vnni", 64, 256), ("sse2", 4, 0)])
def test_peaks_follow_from_clock_and_instruction_set(tmp_path: Path, flags: str, lanes: int, eight: int) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(f"processor: 0\ncpu MHz\t\t: 3000.0\nflags\t\t: fpu {flags}\n")
    assert dict(ceilings.theoretical_flops(2, tmp_path)) == {"f32": 2 * 3e9 * lanes} | ({"int8": 2 * 3e9 * eight} if eight else {})


def test_this_machine_is_a_device(tmp_path: Path) -> None:
    device = this_machine(tmp_path)
    assert 1e8 < device.bytes_per_second < 5e12 and device.memory_bytes > 1e8 and device.flops("f32") > 1e9
