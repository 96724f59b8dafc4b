"""A model with long and short RoPE factors takes one kind when it is loaded, by the longest sequence, and says so."""

from pathlib import Path

import pytest
from tiny_checkpoints import model

from ridgeline.compute.runtime.worker import build
from ridgeline.config.groups import EngineConfig


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("phi3")
    model("phi3").save_pretrained(path)
    return path


def test_the_choice_is_said_and_separates_blocks(checkpoint: Path) -> None:
    identities = set()
    for length, words in ((64, "short RoPE factors"), (65, "long RoPE factors"), (200, "long RoPE factors")):
        executor = build(EngineConfig(str(checkpoint), max_model_len=length, max_num_seqs=1), lambda stage, fraction: None)
        said = [decision for decision in executor.decisions if decision.name == "rope_positions"]
        assert [(decision.value, decision.origin) for decision in said] == [(length, "model")]
        assert said[0].reason.startswith(words) and f"max_model_len {length}" in said[0].reason
        identities.add(executor.info.kv.fingerprint)
    assert len(identities) == 2


def test_other_models_have_nothing_to_say(tmp_path: Path) -> None:
    model("gpt2").save_pretrained(tmp_path)
    executor = build(EngineConfig(str(tmp_path), max_num_seqs=1), lambda stage, fraction: None)
    assert not [decision for decision in executor.decisions if decision.name == "rope_positions"]
