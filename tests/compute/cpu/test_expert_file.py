"""Experts that lie in a file and in slots of memory: the same bits as with all in memory, within the slots that there are, whatever
becomes of the file."""

import os
from pathlib import Path

import numpy as np
import pytest
from native import NativeDriver

from ridgeline.compute.cpu import expert_file, ext
from ridgeline.compute.cpu.expert_file import ExpertMemory, file_path, pack_with_slots
from ridgeline.compute.cpu.memory import Slots
from ridgeline.compute.cpu.packing import pack_weights
from ridgeline.compute.load.record import record
from ridgeline.errors import ConfigError
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.facts.model import ModelFacts

pytestmark = pytest.mark.skipif(ext.lost() is not None, reason="the native extension is not built")

SMALL = 1 << 20
"""Bytes that hold a layer of the tiny models and more, but not all of one."""


def quiet(stage: str, fraction: float) -> None:
    pass


@pytest.fixture(scope="module")
def facts(checkpoint) -> ModelFacts:
    return read_model_facts(checkpoint("qwen3moe").directory)


def opened(facts: ModelFacts, directory: Path, slots: int) -> tuple[NativeDriver, Slots]:
    """A driver with so many slots, and these."""
    step = record(facts)["step"]
    slot_bytes = pack_with_slots(facts, 1, quiet, step, ExpertMemory(1 << 30, directory))[1].slot_bytes
    weights, found = pack_with_slots(facts, 2, quiet, step, ExpertMemory(slots * slot_bytes, directory))
    return NativeDriver(facts, weights, threads=2, kv_dtype="f32", tokens=128), found  # type: ignore[arg-type]


def experts_of(facts: ModelFacts) -> int:
    return max(facts.tensors[name].shape[0] for name in facts.tensors if "_exps" in name)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["qwen3moe", "gpt_oss"])
def test_bits_are_those_of_experts_in_memory(checkpoint, name: str, threads: int, tmp_path: Path) -> None:
    """Chunks of a prompt and single tokens, with as few slots as a layer has experts: most of them are read again and again."""
    facts = read_model_facts(checkpoint(name).directory)
    resident = NativeDriver(facts, pack_weights(facts, 2, quiet), threads=threads, kv_dtype="f32", tokens=128)  # type: ignore[arg-type]
    streamed, slots = opened(facts, tmp_path, experts_of(facts))
    assert slots.count == experts_of(facts) < slots.experts
    ids = np.random.default_rng(3).integers(0, facts.tokens, 60).tolist()
    start = 0
    for count in (17, 1, 1, 3, 30, 1, 1, 1, 5):
        chunk = ids[start : start + count]
        assert streamed.step((0, chunk)).tobytes() == resident.step((0, chunk)).tobytes(), (start, count)
        start += count
    uses, misses, read, waited = slots.store.counts
    assert 0 < misses <= uses
    assert waited > 0
    assert read == misses * slots.slot_bytes


def test_what_is_used_stays(facts: ModelFacts, tmp_path: Path) -> None:
    """With room for all nothing is read twice."""
    driver, slots = opened(facts, tmp_path, 10**6)
    assert slots.count == slots.experts
    for _ in range(3):
        driver.step((0, [5, 6, 7]))
    before = slots.store.counts
    driver.step((1, [5, 6, 7]))
    after = slots.store.counts
    assert after[0] > before[0]
    assert after[1:3] == before[1:3]
    assert before[2] <= slots.experts * slots.slot_bytes


def written(directory: Path, facts: ModelFacts) -> Path:
    return file_path(facts, directory)


def test_the_file_is_kept_and_a_damaged_one_is_written_again(facts: ModelFacts, tmp_path: Path) -> None:
    """A bit of an expert, the table's end, a length: each of them is noticed."""
    path, step = written(tmp_path, facts), record(facts)["step"]

    def again() -> int:
        pack_with_slots(facts, 2, quiet, step, ExpertMemory(SMALL * 64, tmp_path))
        return path.stat().st_ino

    first, content = again(), path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    assert again() == first
    for place in (10, len(content) // 2, len(content) - 50, len(content) - 1):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        again()
        assert path.read_bytes() == content, place
    path.write_bytes(content[: len(content) // 2])
    again()
    assert path.read_bytes() == content
    path.write_bytes(b"")
    again()
    assert path.read_bytes() == content
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_another_model_in_the_same_place_is_packed_anew(facts: ModelFacts, tmp_path: Path) -> None:
    """The file belongs to the model's files as they are."""
    path, step = written(tmp_path, facts), record(facts)["step"]
    pack_with_slots(facts, 2, quiet, step, ExpertMemory(SMALL * 64, tmp_path))
    first, (source, *_) = path.stat().st_ino, sorted({path for tensor in facts.tensors.values() for path in tensor.files})
    stat = source.stat()
    os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    pack_with_slots(facts, 2, quiet, step, ExpertMemory(SMALL * 64, tmp_path))
    assert path.stat().st_ino != first


def test_a_file_that_shrinks_fails_the_step_and_not_the_next(facts: ModelFacts, tmp_path: Path) -> None:
    """What was not read is said with its path; where the file is whole again, so are the answers."""
    driver, slots = opened(facts, tmp_path, experts_of(facts))
    expected = driver.step((0, [1, 2, 3])).copy()
    content = slots.path.read_bytes()
    os.truncate(slots.path, 4096)
    with pytest.raises(RuntimeError, match=r"experts cannot be read from .*packed: it has been shortened"):
        driver.step((1, list(range(60))))
    with slots.path.open("r+b") as file:
        file.write(content)
    assert driver.step((2, [1, 2, 3])).tobytes() == expected.tobytes()


def test_less_than_a_layer_is_refused(facts: ModelFacts, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"may choose all \d+ of a layer; set --expert-memory 0\.\d+ or more"):
        pack_with_slots(facts, 1, quiet, record(facts)["step"], ExpertMemory(4096, tmp_path))


def test_a_dense_model_has_none(demo_file: Path, tmp_path: Path) -> None:
    facts = read_model_facts(demo_file)
    with pytest.raises(ConfigError, match="has no experts"):
        pack_with_slots(facts, 1, quiet, record(facts)["step"], ExpertMemory(1 << 30, tmp_path))


def test_a_folder_that_cannot_be_written_is_named(facts: ModelFacts, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ConfigError, match="XDG_CACHE_HOME"):
        pack_with_slots(facts, 1, quiet, record(facts)["step"], ExpertMemory(1 << 30, blocked))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """More readers than a machine has cores: parts end in any order."""
    monkeypatch.setattr(expert_file, "READERS", 6)
