"""Mutated checkpoints: a typed error or facts, never another exception, never slow, never much memory. Shards against their index."""

import json
import random
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from mutants import MOST_SECONDS, header_bytes, mutate
from tiny_checkpoints import model

from ridgeline.errors import ModelFormatError, ModelNotFoundError, RidgelineError
from ridgeline.facts.files.safetensors import MAX_HEADER_BYTES, read_file
from ridgeline.facts.files.shards import INDEX, read_shards
from ridgeline.facts.headers.read import read_model_facts

MOST_BYTES = 256 << 20
WEIGHTS, CONFIG = "model.safetensors", "config.json"


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("single")
    model("gpt2", n_layer=1, n_embd=8, n_positions=16, vocab_size=16).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sharded")
    model("llama", num_hidden_layers=1).save_pretrained(path, max_shard_size="60KB")
    assert len(list(path.glob("*.safetensors"))) > 2
    return path


def worst_case(directory: Path, name: str, count: int, reach: Callable[[bytes], int]) -> tuple[float, int]:
    """Slowest read in seconds of processor time, and the number of refusals, among `count` mutants of one file of a checkpoint."""
    whole = (directory / name).read_bytes()
    rng, slowest, refused = random.Random(11), 0.0, 0
    shortest, longest = 1_000, 0
    try:
        for _ in range(count):
            (directory / name).write_bytes(mutate(rng, whole, reach(whole)))
            began = time.process_time()
            try:
                read_model_facts(directory)
            except RidgelineError as error:
                refused += 1
                shortest, longest = min(shortest, len(str(error))), max(longest, len(str(error)))
            slowest = max(slowest, time.process_time() - began)
    finally:
        (directory / name).write_bytes(whole)
    assert shortest > 20 and longest < 1_000
    return slowest, refused


def test_mutants_of_weights(single: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    slowest, refused = worst_case(single, WEIGHTS, 300, header_bytes)
    assert 180 < refused < 300
    assert slowest <= MOST_SECONDS
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 <= MOST_BYTES


@pytest.mark.night
def test_many_mutants_of_weights(single: Path) -> None:
    slowest, refused = worst_case(single, WEIGHTS, 20_000, header_bytes)
    print(f"20,000 files, {refused} refused, slowest {slowest * 1e3:.1f} ms")
    assert slowest <= MOST_SECONDS


@pytest.mark.parametrize(("name", "least"), [(CONFIG, 150), (INDEX, 270)])
def test_mutants_of_json(sharded: Path, name: str, least: int) -> None:
    slowest, refused = worst_case(sharded, name, 300, len)
    assert least < refused <= 300
    assert slowest <= MOST_SECONDS


def test_truncation_at_every_byte_of_the_header(single: Path, tmp_path: Path) -> None:
    whole = (single / WEIGHTS).read_bytes()
    header = header_bytes(whole)
    for length in (*range(header + 64), *range(header + 64, len(whole), 97), len(whole) - 1):
        (tmp_path / WEIGHTS).write_bytes(whole[:length])
        with pytest.raises(ModelFormatError):
            read_file(tmp_path / WEIGHTS)


HEADERS: dict[str, bytes] = {
    "an object was expected": b' {"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}',
    "not a table of strings": b'{"__metadata__":{"format":7}}',
    "not JSON": b'{"a":' + b"[" * 100_000,
    "appears twice|not JSON": b'{"a":{"dtype":"F32","dtype":"F32","shape":[],"data_offsets":[0,4]}}',
    "impossible shape or place": b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}}',
    "takes 4 bytes, not -4": b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}',
    "stored as 'F32_X', which is not supported": b'{"a":{"dtype":"F32_X","shape":[1],"data_offsets":[0,4]}}',
    "at most 800000 were expected": b"{" + b",".join(b'"%d":{}' % i for i in range(500_000)) + b"}",
    "lists 100001 tensors": b"{" + b",".join(b'"%d":0' % i for i in range(100_001)) + b"}",
}


@pytest.mark.parametrize("words", HEADERS)
def test_headers_against_the_rules(words: str, tmp_path: Path) -> None:
    raw = HEADERS[words]
    (tmp_path / WEIGHTS).write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(4))
    with pytest.raises(ModelFormatError, match=words):
        read_file(tmp_path / WEIGHTS)


def test_a_header_without_bounds(tmp_path: Path) -> None:
    with (tmp_path / WEIGHTS).open("wb") as file:
        file.write((MAX_HEADER_BYTES + 1).to_bytes(8, "little"))
        file.truncate(MAX_HEADER_BYTES + 100)
    with pytest.raises(ModelFormatError, match="at most 16777216"):
        read_file(tmp_path / WEIGHTS)
    with pytest.raises(ModelNotFoundError, match="is not a file"):
        read_file(tmp_path)


def copy(source: Path, target: Path) -> Path:
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def change_index(directory: Path, change: Callable[[dict[str, dict[str, object]]], object]) -> None:
    index = json.loads((directory / INDEX).read_text())
    change(index)
    (directory / INDEX).write_text(json.dumps(index))


NORM = "model.norm.weight"
INDEXES: dict[str, Callable[[dict[str, dict[str, object]]], object]] = {
    "total_size is 1, the shards hold": lambda index: index["metadata"].update(total_size=1),
    "is not the name of a safetensors file in the same directory": lambda index: index["weight_map"].update({NORM: "../model.safetensors"}),
    "'/etc/x.safetensors' is not the name": lambda index: index["weight_map"].update({NORM: "/etc/x.safetensors"}),
    "'x.bin' is not the name": lambda index: index["weight_map"].update({NORM: "x.bin"}),
    "'model.norm.weight' is in model-0000": lambda index: index["weight_map"].pop(NORM),
    "names 1 tensors that no file holds, 'ghost'": lambda index: index["weight_map"].update(
        ghost=index["weight_map"]["model.embed_tokens.weight"]
    ),
    "weight_map is not a table": lambda index: index.update(weight_map={NORM: 7}),
    "at most 1024 were expected": lambda index: index.update(weight_map={str(i): f"{i}.safetensors" for i in range(1025)}),
}


@pytest.mark.parametrize("words", INDEXES)
def test_an_index_that_is_not_true(words: str, sharded: Path, tmp_path: Path) -> None:
    change_index(copy(sharded, tmp_path), INDEXES[words])
    with pytest.raises(ModelFormatError, match=words):
        read_shards(tmp_path)


def test_which_files_hold_the_model(single: Path, sharded: Path, tmp_path: Path) -> None:
    path = copy(sharded, tmp_path)
    (path / "consolidated.safetensors").write_bytes(b"another copy, never read")
    assert read_shards(path).keys() == read_shards(sharded).keys()
    (path / INDEX).unlink()
    with pytest.raises(ModelFormatError, match=r"\d safetensors files without model.safetensors.index.json"):
        read_shards(path)
    for shard in path.glob("*.safetensors"):
        shard.unlink()
    with pytest.raises(ModelNotFoundError, match="holds no safetensors files"):
        read_shards(path)
    (path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(ModelFormatError, match=r"weights in pytorch_model.bin only; such files can run any code"):
        read_shards(path)
    (path / "other.safetensors").write_bytes((single / WEIGHTS).read_bytes())
    assert read_shards(path).keys() == read_shards(single).keys()


def test_links_stay_in_the_directory_or_in_a_hub_cache(single: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes((single / WEIGHTS).read_bytes())
    stolen = tmp_path / "stolen"
    stolen.mkdir()
    (stolen / WEIGHTS).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ModelFormatError, match="is a link out of the directory"):
        read_shards(stolen)
    snapshot = tmp_path / "models--org--name" / "snapshots" / "abc"
    blobs = tmp_path / "models--org--name" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "sha").write_bytes((single / WEIGHTS).read_bytes())
    (snapshot / WEIGHTS).symlink_to("../../blobs/sha")
    assert read_shards(snapshot).keys() == read_shards(single).keys()
