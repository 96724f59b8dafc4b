"""Experts that lie in a file and in slots of memory: the same bits as with all in memory, within the slots that there are, whatever
becomes of the file."""

import json
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
from native import NativeDriver

from ridgeline.compute.cpu import expert_file, ext
from ridgeline.compute.cpu.expert_file import ExpertMemory, file_path, pack_with_slots
from ridgeline.compute.cpu.memory import Slots, allocate
from ridgeline.compute.cpu.packing import pack_weights
from ridgeline.compute.load.record import record
from ridgeline.compute.lowering.ahead import AHEAD
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
@pytest.mark.parametrize("name", ["qwen3moe", "qwen3next", "gpt_oss"])
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
    uses, misses, read, waited, *_ = slots.store.counts
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


def test_the_file_is_kept_and_one_with_another_end_is_written_again(facts: ModelFacts, tmp_path: Path) -> None:
    """A bit of the table, its end, a length: each of them is noticed at the start."""
    path, step = written(tmp_path, facts), record(facts)["step"]

    def again() -> int:
        pack_with_slots(facts, 2, quiet, step, ExpertMemory(SMALL * 64, tmp_path))
        return path.stat().st_ino

    first, content = again(), path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    assert again() == first
    for place in (len(content) - 500, len(content) - 50, len(content) - 1):
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


def test_a_damaged_expert_fails_the_step_that_reads_it_and_the_next_start_writes_it_again(facts: ModelFacts, tmp_path: Path) -> None:
    """One bit of any expert, when it is read for the first time; other experts serve on."""
    path, step = written(tmp_path, facts), record(facts)["step"]
    pack_with_slots(facts, 2, quiet, step, ExpertMemory(1 << 30, tmp_path))
    content = path.read_bytes()
    damaged = bytearray(content)
    damaged[: expert_file.PAGE] = bytes(byte ^ 1 for byte in content[: expert_file.PAGE])
    path.write_bytes(damaged)
    driver, _ = opened(facts, tmp_path, 10**6)
    with pytest.raises(RuntimeError, match=r"experts in .*packed are damaged: it has been removed, and the next start writes it again"):
        driver.step((0, list(range(60))))
    assert not path.exists()
    pack_with_slots(facts, 2, quiet, step, ExpertMemory(1 << 30, tmp_path))
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table["tensors"].clear(),
        lambda table: table.update(tensors=[1]),
        lambda table: table.pop("key"),
        lambda table: [tensor.__setitem__(0, "Q9") for tensor in table["tensors"].values()],
        lambda table: [tensor.__setitem__(slice(0, 1), ["INT4"]) for tensor in table["tensors"].values()],
        lambda table: [tensor.__setitem__(1, [2 * tensor[1][0], *tensor[1][1:]]) for tensor in table["tensors"].values()],
        lambda table: [tensor.__setitem__(3, -expert_file.PAGE) for tensor in table["tensors"].values()],
        lambda table: [tensor.__setitem__(3, 1 << 50) for tensor in table["tensors"].values()],
        lambda table: [tensor.__setitem__(3, tensor[3] + 1) for tensor in table["tensors"].values()],
        lambda table: [tensor.__setitem__(4, 0) for tensor in table["tensors"].values()],
        lambda table: [tensor.__setitem__(4, None) for tensor in table["tensors"].values()],
        lambda table: [tensor.__setitem__(5, tensor[5][16:]) for tensor in table["tensors"].values()],
        lambda table: [tensor.__setitem__(5, "g" * len(tensor[5])) for tensor in table["tensors"].values()],
    ],
)
def test_a_table_that_somebody_made_is_not_believed(facts: ModelFacts, tmp_path: Path, change: Callable[[Any], object]) -> None:
    """With its own SHA-256 in order: what lies where is compared with the model, its packed layout and the file's length."""
    path, step = written(tmp_path, facts), record(facts)["step"]
    pack_with_slots(facts, 2, quiet, step, ExpertMemory(1 << 30, tmp_path))
    content = path.read_bytes()
    length = int.from_bytes(content[-8:], "little")
    table = json.loads(content[-length - expert_file.TAIL_BYTES : -expert_file.TAIL_BYTES])
    change(table)
    made = json.dumps(table).encode()
    path.write_bytes(content[: -length - expert_file.TAIL_BYTES] + made + sha256(made).digest() + len(made).to_bytes(8, "little"))
    pack_with_slots(facts, 2, quiet, step, ExpertMemory(1 << 30, tmp_path))
    assert path.read_bytes() == content


def test_sums_tell_every_bit() -> None:
    """And that of words which change places."""
    data = np.random.default_rng(5).integers(0, 256, 4096, np.uint8)
    found = {ext.native().sum_bytes(data.ctypes.data, data.nbytes)}
    for bit in range(0, 4096 * 8, 7):
        data[bit // 8] ^= 1 << bit % 8
        found.add(ext.native().sum_bytes(data.ctypes.data, data.nbytes))
        data[bit // 8] ^= 1 << bit % 8
    swapped = data.reshape(-1, 32)[::-1].copy()
    found |= {ext.native().sum_bytes(swapped.ctypes.data, 4096), ext.native().sum_bytes(data.ctypes.data, 2048)}
    assert len(found) == 1 + len(range(0, 4096 * 8, 7)) + 2


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


def store_of(path: Path, experts: int, slots: int, readers: int = 2, size: int = expert_file.PAGE) -> tuple[Any, np.ndarray, np.ndarray]:
    """A store over a new file of two groups of experts of `size` bytes; its slots [slots, bytes], and the file [groups, experts, bytes]."""
    content = np.random.default_rng(1).integers(0, 256, (2, experts, size), np.uint8)
    path.write_bytes(content.tobytes())
    memory = allocate(slots * size)
    store = ext.native().ExpertStore(str(path), memory.ctypes.data, size, slots, readers)
    for group in range(2):
        sums = [ext.native().sum_bytes(expert.ctypes.data, size) for expert in content[group]]
        assert store.add([(group * experts * size, size, 0, sums)], experts) == group
    return store, memory, content


def held(store: Any, memory: np.ndarray, content: np.ndarray, group: int, expert: int) -> bool:
    """Whether an expert that has been required lies in a slot as the file has it."""
    start = store.address(group, expert) - memory.ctypes.data
    return 0 <= start < memory.nbytes and np.array_equal(memory[start : start + content.shape[2]], content[group, expert])


def test_right_guesses_are_there_and_wrong_ones_cost_no_expert(tmp_path: Path) -> None:
    """What is foreseen is read and counted by what became of it; what a step has required stays, whatever is foreseen meanwhile."""
    store, memory, content = store_of(tmp_path / "file", 32, 32)
    assert store.require(0, [1, 2, 3]) == [False] * 3
    store.foresee(1, [4, 5, 6])
    assert all(held(store, memory, content, 0, expert) for expert in (1, 2, 3))
    while store.counts[2] < 6 * expert_file.PAGE:
        sleep(0.001)
    assert store.require(1, [5, 7, 4]) == [True, False, True]
    assert all(held(store, memory, content, 1, expert) for expert in (5, 7, 4))
    assert store.counts[:2] == (6, 4) and store.counts[4:] == (3, 2, 2)


def test_guesses_are_right_late_or_given_up_at_any_time(tmp_path: Path) -> None:
    """Settled while they are read: each required expert has the file's bytes, and slots do not get lost."""
    store, memory, content = store_of(tmp_path / "file", 40, 40, readers=3, size=64 * expert_file.PAGE)
    random = np.random.default_rng(2)
    for turn in range(300):
        group, chosen = turn % 2, random.choice(40, random.integers(1, 9), replace=False).tolist()
        store.require(group, chosen)
        store.foresee(1 - group, random.choice(40, 6).tolist())
        assert all(held(store, memory, content, group, expert) for expert in chosen[: turn % 11])
        sleep(turn % 5 * 1e-4)
    *_, guesses, right, useful = store.counts
    assert 0 <= useful <= right <= guesses
    for group in (0, 1):
        assert store.require(group, list(range(40))) and all(held(store, memory, content, group, expert) for expert in range(40))


def test_guesses_that_are_mostly_wrong_are_no_longer_read(tmp_path: Path) -> None:
    """And are again once they would be right."""
    store, *_ = store_of(tmp_path / "file", 160, 160)
    for number in range(60):
        store.foresee(1, [number])
        store.require(1, [159])
    assert not store.reads_ahead
    before = store.counts[4]
    store.foresee(1, [100])
    store.require(1, [159])
    assert store.counts[4] == before
    for number in range(60, 100):
        store.foresee(1, [number])
        store.require(1, [number])
    assert store.reads_ahead and store.counts[4] > before


def test_a_guess_that_cannot_be_read_fails_no_step(tmp_path: Path) -> None:
    """Where it is needed after all, it is tried again."""
    store, memory, content = store_of(tmp_path / "file", 32, 32)
    os.truncate(tmp_path / "file", 0)
    store.foresee(1, [4, 5])
    while store.require(0, []) or store.counts[2]:
        pass
    sleep(0.05)
    (tmp_path / "file").write_bytes(content.tobytes())
    store.require(1, [4, 6])
    assert held(store, memory, content, 1, 4) and held(store, memory, content, 1, 6)
    assert store.address(1, 5) == 0


def test_a_step_foresees_and_its_bits_stay(facts: ModelFacts, tmp_path: Path) -> None:
    """Half of the experts in memory: routers of later layers are asked ahead, and what they say is read."""
    resident = NativeDriver(facts, pack_weights(facts, 2, quiet), threads=2, kv_dtype="f32", tokens=128)  # type: ignore[arg-type]
    total = pack_with_slots(facts, 1, quiet, record(facts)["step"], ExpertMemory(1 << 30, tmp_path))[1].experts
    streamed, slots = opened(facts, tmp_path, max(experts_of(facts), total // 2))
    assert any(name.startswith(AHEAD) for name in streamed.runner.oplist.taps)
    for token in np.random.default_rng(4).integers(0, facts.tokens, 200).tolist():
        assert streamed.step((0, [token])).tobytes() == resident.step((0, [token])).tobytes()
    assert slots.store.counts[4] > 0


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
