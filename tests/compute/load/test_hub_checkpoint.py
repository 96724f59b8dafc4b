"""Real checkpoints from a hub: what comes out of the library's cache, links and all, is what was put in."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hub_server import resolve, serve_hub
from tiny_checkpoints import model, write_gguf

from ridgeline.compute.load.weights import map_weights
from ridgeline.facts.headers.read import read_model_facts


@pytest.mark.parametrize("shards", ["250KB", "10GB"])
def test_a_checkpoint_makes_the_journey(shards: str, tmp_path: Path) -> None:
    model("qwen2").save_pretrained(tmp_path / "here", max_shard_size=shards)
    with serve_hub() as hub:
        hub.files["org/tiny"] = {path.name: path.read_bytes() for path in (tmp_path / "here").iterdir()}
        there = Path(str(resolve("org/tiny", tmp_path, hub.url)["path"]))
    assert any(path.is_symlink() for path in there.iterdir())
    ours, theirs = read_model_facts(tmp_path / "here"), read_model_facts(there)
    assert replace(theirs, name=ours.name, tensors=ours.tensors) == ours
    mine, fetched = map_weights(ours), map_weights(theirs)
    assert mine.keys() == fetched.keys()
    assert all(np.array_equal(mine[name].dense(), fetched[name].dense()) for name in mine)


def test_a_gguf_makes_the_journey(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m-Q8_0.gguf", model("llama"), "Q8_0")
    with serve_hub() as hub:
        hub.files["org/tiny"] = {"m-Q8_0.gguf": (tmp_path / "m-Q8_0.gguf").read_bytes(), "m-Q4_0.gguf": b"another"}
        there = Path(str(resolve("org/tiny:q8_0", tmp_path, hub.url)["path"]))
    assert read_model_facts(there).fingerprint == read_model_facts(tmp_path / "m-Q8_0.gguf").fingerprint
