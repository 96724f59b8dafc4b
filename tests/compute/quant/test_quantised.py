"""Checkpoints of GPTQ, AWQ and compressed-tensors: the weights are their formulas', bit for bit, and the logits those of transformers."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from checkpoints import logits_of
from quantised import SCHEMES, Quantised, Scheme
from quantised_models import PARTS, PROMPT, write
from tiny import Driver, log_softmax

from ridgeline.compute.load.weights import load_weights, map_weights
from ridgeline.compute.quant.grouped import GroupedWeight
from ridgeline.config.env import ModelStores
from ridgeline.facts.headers.read import describe_model, read_model_facts
from ridgeline.facts.model import ModelFacts
from ridgeline.planning.formats import class_bytes

CASES = [("llama", name) for name in SCHEMES] + [
    ("llama-biases", "gptq-4-32-act-order"), ("qwen2", "awq-4-32"), ("phi3", "gptq-4-64-asymmetric-v2"), ("phi3", "awq-4-128"),
    ("phi3", "packed-4-32-asymmetric"), ("phi3", "int8-w8a16-asymmetric"), ("gemma3", "packed-4-64-act-order"),
    ("gpt2", "gptq-4-64-asymmetric-v1"),
]  # fmt: skip


def canonical(matrices: dict[str, Quantised], facts: ModelFacts) -> dict[str, Quantised]:
    """By our names, fused matrices cut."""
    found: dict[str, Quantised] = {}
    for name, matrix in matrices.items():
        number, _, inner = name.split(".h." if ".h." in name else ".layers.")[1].partition(".")
        start = 0
        for part in PARTS[inner]:
            end = start + facts.tensors[f"blk.{number}.{part}.weight"].shape[0]
            rows = slice(start, end)
            found[f"blk.{number}.{part}.weight"] = replace(
                matrix, codes=matrix.codes[rows], scales=matrix.scales[rows], zeros=matrix.zeros[rows]
            )
            start = end
        assert start == len(matrix.codes)
    return found


def check(weight: object, wanted: Quantised, scheme: Scheme) -> None:
    """Codes, scales, zeros and order are those that were written."""
    assert isinstance(weight, GroupedWeight) and weight.bits == scheme.bits
    assert weight.size == wanted.codes.shape[1] // wanted.scales.shape[1]
    order = np.arange(weight.shape[1]) if weight.order is None else weight.order
    assert (weight.order is None) == (not scheme.act_order or wanted.scales.shape[1] == 1)
    assert np.array_equal(wanted.group_of[order], np.arange(weight.shape[1]) // weight.size)
    assert np.array_equal(weight.integers(slice(0, None)), wanted.codes[:, order])
    assert weight.scales.dtype == (np.float16 if scheme.scales == "float16" else np.float32)
    assert np.array_equal(weight.scales, wanted.scales) and np.array_equal(weight.zeros, wanted.zeros)
    dense = weight.dense()
    assert np.array_equal(dense.view(np.uint32), wanted.dense().view(np.uint32))
    for part in (slice(0, 1), slice(5, 13), slice(3, 3), slice(weight.shape[0] - 7, weight.shape[0] + 9)):
        assert np.array_equal(weight.integers(part), weight.integers(slice(0, None))[part])
    assert np.array_equal(weight.rows(np.array([3, 0, 3])), dense[[3, 0, 3]])


@pytest.mark.parametrize(("model", "name"), CASES)
def test_weights_and_logits(model: str, name: str, tmp_path: Path) -> None:
    scheme = SCHEMES[name]
    made, matrices, facts = write(tmp_path, model, scheme)
    wanted, weights = canonical(matrices, facts), map_weights(facts)
    assert {key for key, weight in weights.items() if isinstance(weight, GroupedWeight)} == set(wanted)
    for key, matrix in wanted.items():
        check(weights[key], matrix, scheme)
    rich, poor = (load_weights(facts, memory, 2, lambda stage, fraction: None) for memory in (1 << 40, 0))
    for key in wanted:
        assert np.array_equal(rich[key].dense(), poor[key].dense()) and isinstance(poor[key].codes, np.ndarray)  # type: ignore[attr-defined]
        assert poor[key].nbytes < rich[key].nbytes / 3
    ours, theirs = (log_softmax(logits) for logits in (Driver(facts, poor).step((0, PROMPT)), logits_of(made, PROMPT)))
    assert np.abs(ours - theirs).max() < 1e-4


PLANNED = {
    "gptq-4": "gptq", "gptq-4-32-act": "gptq", "gptq-4-64-asymmetric": "gptq", "gptq-8": "gptq8", "gptq-8-32-asymmetric": "gptq8",
    "awq-4": "awq", "int8": "w8a8", "int8-w8a16": "w8a16", "packed-4": "w4a16", "packed-4-32": "w4a16", "packed-4-64-act": "w4a16",
    "packed-8": "w8a16",
}  # fmt: skip
"""Scheme, without its last word → its weight format in plans."""


def test_what_files_hold_is_counted(tmp_path: Path) -> None:
    """Every byte of the data belongs to one tensor; kinds and bits are named; `ridgeline plan` counts the same."""
    for name, scheme in SCHEMES.items():
        directory = tmp_path / name
        _, _, facts = write(directory, "phi3" if "asymmetric" in name else "llama", scheme)
        file = directory / "model.safetensors"
        header = int.from_bytes(file.read_bytes()[:8], "little")
        assert sum(facts.stored.values()) == file.stat().st_size - header - 8
        planned = describe_model(str(directory), ModelStores(tmp_path))
        held = sum(facts.stored.values())
        assert sum(class_bytes(planned, None).values()) == held and planned.dtype == PLANNED[name[: name.rindex("-")]]
        kinds = {tensor.kind for tensor in facts.tensors.values()} - {"F16", "BF16", "F32"}
        assert kinds == {f"{ {'gptq': 'GPTQ', 'awq': 'AWQ'}.get(scheme.method, 'INT') }{scheme.bits}"}


def test_a_head_may_be_quantised_and_modules_may_be_left(tmp_path: Path) -> None:
    made, matrices, facts = write(tmp_path, "llama", SCHEMES["gptq-4-32-act-order"], keep=("model.layers.0.mlp.down_proj",))
    weights = map_weights(facts)
    check(weights["output.weight"], matrices["lm_head"], SCHEMES["gptq-4-32-act-order"])
    assert facts.tensors["blk.0.ffn_down.weight"].kind == "F16" and facts.tensors["blk.1.ffn_down.weight"].kind == "GPTQ4"
    ours, theirs = (log_softmax(logits) for logits in (Driver(facts, weights).step((0, PROMPT)), logits_of(made, PROMPT)))
    assert np.abs(ours - theirs).max() < 1e-4


def test_an_embedding_may_be_quantised_and_be_the_head(tmp_path: Path) -> None:
    scheme = SCHEMES["int8-w8a16-asymmetric"]
    made, matrices, facts = write(tmp_path, "llama-biases", scheme, kinds=("Embedding",))
    weights = load_weights(facts, 0, 1, lambda stage, fraction: None)
    assert facts.tied and {tensor.kind for tensor in facts.tensors.values()} == {"INT8", "F32"}
    check(weights["token_embd.weight"], matrices["model.embed_tokens"], scheme)
    ours, theirs = (log_softmax(logits) for logits in (Driver(facts, weights).step((0, PROMPT)), logits_of(made, PROMPT)))
    assert np.abs(ours - theirs).max() < 1e-4


@pytest.mark.parametrize("name", ["gptq-4-64-asymmetric-v1", "awq-4-32", "int8-w8a16-asymmetric", "packed-4-64-act-order"])
def test_data_may_start_at_any_byte(name: str, tmp_path: Path) -> None:
    _, matrices, facts = write(tmp_path, "llama", SCHEMES[name])
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    path.write_bytes((length + 1).to_bytes(8, "little") + whole[8 : 8 + length] + b" " + whole[8 + length :])
    facts = read_model_facts(tmp_path)
    weights = map_weights(facts)
    for key, matrix in canonical(matrices, facts).items():
        check(weights[key], matrix, SCHEMES[name])


def test_parts_of_a_module_may_stand_in_other_shards(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    scheme = SCHEMES["gptq-4-32-act-order"]
    _, matrices, _ = write(tmp_path, "llama", scheme)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    placed = {key: f"model-0000{1 + key.endswith('qweight')}-of-00002.safetensors" for key in tensors}
    for file in set(placed.values()):
        save_file({key: value for key, value in tensors.items() if placed[key] == file}, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    facts = read_model_facts(tmp_path)
    weights = map_weights(facts)
    for key, matrix in canonical(matrices, facts).items():
        check(weights[key], matrix, scheme)
