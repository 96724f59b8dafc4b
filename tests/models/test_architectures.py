"""Every architecture in every format against transformers: the same weights, every position."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_llama import write_chat_llama
from checkpoints import GGUFS, RECIPES, WINDOW, logits_of
from convert import KINDS, dequantised
from tiny import Driver, dense, log_softmax

from ridgeline.errors import ModelFormatError
from ridgeline.facts.headers.read import describe_files, read_model_facts
from ridgeline.facts.headers.rope import select_rope
from ridgeline.facts.model import ModelFacts

FORMS = [(name, "safetensors") for name in RECIPES] + [(name, kind) for name in GGUFS for kind in KINDS]


def settled(path: Path, name: str) -> ModelFacts:
    """Facts of the model at `path`, its rotation chosen as the recipe says."""
    return select_rope(read_model_facts(path), RECIPES[name].reach)[0]


def same(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Log-probabilities within 1e-4, and the same best id wherever the gap to the second is more than 1e-3."""
    assert np.abs(log_softmax(ours) - log_softmax(theirs)).max() < 1e-4
    best = np.sort(log_softmax(theirs), axis=1)
    clear = best[:, -1] - best[:, -2] > 1e-3
    assert (ours.argmax(1) == theirs.argmax(1))[clear].all() and clear.mean() > 0.7


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_equals_transformers(checkpoint, stored, name: str, form: str) -> None:
    """Files with quantised matrices: transformers with the weights that they hold."""
    made = checkpoint(name)
    facts = settled(stored(name, form), name)
    driver = Driver(facts, dense(facts))
    model = dequantised(made.model, made.recipe.gguf, form) if form == "Q8_0" else made.model
    for number, ids in enumerate(made.prompts()):
        same(driver.step((number, ids)), made.logits(ids) if model is made.model else logits_of(model, ids))


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, kind in FORMS if kind != "safetensors" and RECIPES[name].read])
def test_transformers_reads_the_same_from_the_file(checkpoint, stored, name: str, kind: str) -> None:
    """What wrote the file and what reads it here share no mistake: transformers has a reader of its own."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    made, path = checkpoint(name), stored(name, kind)
    # That reader leaves out biases, caps and scaled RoPE; it takes a Mistral for a Llama, whose config it then makes itself.
    given = {} if name in ("llama2", "mistral") else {"config": made.model.config}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, attn_implementation="eager", dtype="float32", **given
    )
    facts = settled(path, name)
    driver = Driver(facts, dense(facts))
    for number, ids in enumerate(made.prompts()):
        inside = min(len(ids), WINDOW) if name == "mistral" else len(ids)
        same(driver.step((number, ids))[:inside], logits_of(model, ids)[:inside])


@pytest.mark.parametrize("name", GGUFS)
def test_both_formats_state_the_same_facts(stored, name: str) -> None:
    directory, file = (dataclasses.asdict(settled(stored(name, form), name)) for form in ("safetensors", "F32"))
    for facts in (directory, file):
        for own in ("architecture", "name", "dtype", "stored", "packed", "fingerprint", "tensors"):
            del facts[own]
    assert close(directory, file), (directory, file)


def close(a: Any, b: Any) -> bool:
    """Equal, numbers within what fp32 keeps."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(close(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(close, a, b))
    return a == pytest.approx(b, rel=1e-6) if isinstance(a, float) else a == b


@pytest.mark.parametrize("name", ["llama3", "llama-biases", "qwen2", "gemma3", "phi3-long", "llama2"])
def test_configs_of_earlier_releases(stored, tmp_path: Path, name: str) -> None:
    """`rope_theta` and `rope_scaling`, as most published files have them, state the rotation that `rope_parameters` states."""
    now = settled(stored(name, "safetensors"), name)
    shutil.copytree(stored(name, "safetensors"), tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.gguf"))
    config = json.loads((tmp_path / "config.json").read_text())
    rope = config.pop("rope_parameters")
    if "full_attention" in rope:
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    config["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert settled(tmp_path, name).rope == now.rope


def test_the_chat_checkpoint_equals_transformers(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory = write_chat_llama(tmp_path / "chat")
    tokenizer = AutoTokenizer.from_pretrained(directory)
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "Hello, who are you?"}], add_generation_prompt=True)["input_ids"]
    facts = read_model_facts(directory)
    same(Driver(facts, dense(facts)).step((0, ids)), logits_of(AutoModelForCausalLM.from_pretrained(directory), ids))


def test_layers_behind_the_last_are_left_out_of_checkpoints(checkpoint, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    whole = shutil.copytree(checkpoint("glm4moe").directory, tmp_path / "whole", ignore=shutil.ignore_patterns("*.gguf"))
    right = read_model_facts(whole)
    tensors = load_file(whole / "model.safetensors")
    tensors["model.layers.3.eh_proj.weight"] = tensors["lm_head.weight"].clone()
    save_file(tensors, whole / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((whole / "config.json").read_text())
    (whole / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 0}))
    with pytest.raises(ModelFormatError, match="eh_proj"):
        read_model_facts(whole)
    (whole / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    found = read_model_facts(whole)
    assert found.tensors.keys() == right.tensors.keys() and found.stored == right.stored == describe_files(whole).stored
