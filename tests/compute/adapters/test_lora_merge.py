"""A merged checkpoint answers as model and adapter do beside each other."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import RECIPES, logits_of
from lora_files import peft_model
from tiny import Driver, dense, log_softmax

from ridgeline.compute.adapters.merge import merge, narrowed
from ridgeline.compute.ops.lora import widened
from ridgeline.errors import ConfigError, ModelFormatError
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.facts.headers.rope import select_rope


@pytest.mark.parametrize("name", ["llama2", pytest.param("gpt2", marks=pytest.mark.night), "phi3-short"])
def test_merged_is_unmerged(checkpoint: Any, tmp_path: Path, name: str) -> None:
    """Shards, Conv1D and fused matrices; fp32."""
    made = checkpoint(name)
    model = peft_model(made, tmp_path / "own")
    out = tmp_path / "out"
    assert merge(made.directory, tmp_path / "own", out) > 0
    facts = select_rope(read_model_facts(out), RECIPES[name].reach)[0]
    ids = made.prompts()[0]
    ours, theirs = Driver(facts, dense(facts)).step((0, ids)), logits_of(model, ids)
    assert np.abs(log_softmax(ours) - log_softmax(theirs)).max() < 1e-4
    assert (ours.argmax(1) == theirs.argmax(1)).all()
    assert {file.name for file in out.iterdir()} == {file.name for file in made.directory.iterdir()}


def test_what_is_refused(checkpoint: Any, stored: Any, tmp_path: Path) -> None:
    made = checkpoint("llama2")
    peft_model(made, tmp_path / "own")
    for base, out in ((stored("llama2", "Q8_0"), tmp_path / "out"), (made.directory, tmp_path)):
        with pytest.raises(ConfigError):
            merge(base, tmp_path / "own", out)
    with pytest.raises(ModelFormatError, match="is it an adapter of this model"):
        merge(checkpoint("llama-biases").directory, tmp_path / "own", tmp_path / "out")
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.part").exists()


def test_rounding() -> None:
    """Ties to even."""
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8 - 2**-20], np.float32)
    assert widened("BF16", narrowed("BF16", values)).tolist() == [1.0, 1.0, 1 + 2**-6, -1 - 2**-7]
