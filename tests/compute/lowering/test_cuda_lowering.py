"""The list that a GPU runs means what the model's list means: by its numpy references, op for op."""

from dataclasses import replace

import numpy as np
import pytest
from checkpoints import make_checkpoint
from tiny import Driver, Tiny, dense, open_tiny

from ridgeline.compute.exact.cache import allocate_kv
from ridgeline.compute.exact.runner import NumpyRunner
from ridgeline.compute.graph import OpList, WeightFormat
from ridgeline.compute.liveness import last_uses
from ridgeline.compute.load.record import record
from ridgeline.compute.lowering.lower import head_of, lower
from ridgeline.compute.ops.fp8 import POSITIVE, from_e4m3, to_e4m3
from ridgeline.compute.ops.table import check
from ridgeline.compute.runner import diff
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.facts.model import ModelFacts

FORMATS = {"bf16": WeightFormat("bf16"), "grouped": WeightFormat("grouped"), "fp8": WeightFormat("fp8", "f8")}
IDS = np.random.default_rng(1).integers(0, 300, 21).tolist()


@pytest.fixture(scope="module", params=["gemma3", "llama3", "qwen3"])
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Driver:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "gemma3":
        return Driver(*open_tiny(folder / "tiny.gguf", Tiny(layers=2)))
    facts = read_model_facts(make_checkpoint(request.param, folder).directory)
    return Driver(facts, dense(facts))


def formats(facts: ModelFacts, kind: str) -> dict[str, WeightFormat]:
    """The table of embeddings stays as it is: the head may be tied to it."""
    return {name: FORMATS[kind] for name, tensor in facts.tensors.items() if len(tensor.shape) == 2 and name != "token_embd.weight"}


def counts(oplist: OpList) -> dict[str, int]:
    names = [op.name for op in oplist.ops]
    return {name: names.count(name) for name in sorted(set(names))}


def test_a_layer_is_eight_launches(driver: Driver) -> None:
    """Ten where norms stand behind attention and network: qkv, write, attention, output, norm, gated unit, down, norm."""
    semantic = record(driver.facts)["step"]
    lowered = lower(semantic, "cuda", formats(driver.facts, "bf16"))
    check(lowered)
    layers, found = driver.facts.layers, counts(lowered)
    assert found["linear_triple"] == found["linear_glu"] == found["attention"] == layers
    assert found["linear"] == 2 * layers + 1  # and the head
    assert found["add_rms_norm"] == 2 * layers
    assert found["norm_rotate_write" if "blk.0.attn_q_norm.weight" in driver.facts.tensors else "rotate_write"] == layers
    assert found["rms_norm"] == 1 + 2 * layers * ("blk.0.post_ffw_norm.weight" in driver.facts.tensors)
    assert not found.keys() & {"add", "kv_write", "rope", "rotate", "glu"}
    assert (lowered.outputs, lowered.taps) == (semantic.outputs, semantic.taps)
    assert len(last_uses(lowered)) == len(lowered.ops)
    assert [op.name for op in lowered.ops[head_of(lowered) :]] == ["linear"]


@pytest.mark.parametrize(("kind", "tolerance"), [("bf16", 1e-5), ("fp8", 0.25)])
def test_the_references_of_the_lowered_list_agree_with_the_models(driver: Driver, kind: str, tolerance: float) -> None:
    """fp8: of the same weights, so that only the rounding of activations differs."""
    semantic = record(driver.facts)["step"]
    lowered = lower(semantic, "cuda", formats(driver.facts, kind))
    driver.computed.clear()
    inputs = driver.inputs([(0, IDS[:15]), (1, IDS[15:])])
    caches = [allocate_kv(driver.shape, driver.facts.cached) for _ in "ab"]
    runners = [NumpyRunner(each, driver.weights, driver.shape) for each in (lowered, semantic)]
    assert diff(*runners, inputs, *caches, tolerance=tolerance) is None
    assert diff(*runners, inputs, *caches) is not None or kind == "bf16"


def test_products_of_fp8_weights_take_codes(driver: Driver) -> None:
    semantic = record(driver.facts)["step"]
    kinds = formats(driver.facts, "fp8") | {"output.weight": FORMATS["bf16"]}
    lowered = lower(semantic, "cuda", kinds)
    check(lowered)
    found, layers = counts(lowered), driver.facts.layers
    assert found["linear_fp8_triple"] == found["linear_fp8_glu"] == layers
    # What attention and the gated unit give is coded by the product; the last norm feeds the head, which is not fp8.
    assert found["linear_quantise_fp8"] == 2 * layers and found["linear"] == 1
    assert not found.keys() & {"quantise_fp8", "linear_fp8"}
    assert found["add_rms_norm_fp8"] == 2 * layers - 1 and found["rms_norm_fp8"] == found["add_rms_norm"] == 1
    packed = counts(lower(semantic, "cuda", dict.fromkeys(kinds, FORMATS["grouped"])))
    assert packed["linear_pair"] == packed["glu"] == layers, "gate and up are one launch with their unit where they are floats"


def test_matrices_of_different_formats_stay_apart(driver: Driver) -> None:
    semantic = record(driver.facts)["step"]
    kinds = formats(driver.facts, "bf16") | {f"blk.{layer}.attn_v.weight": FORMATS["grouped"] for layer in range(driver.facts.layers)}
    found = counts(lower(semantic, "cuda", kinds))
    assert "linear_triple" not in found and found["linear_pair"] == found["linear_glu"] == driver.facts.layers


def test_a_value_that_is_asked_for_is_not_fused_away(driver: Driver) -> None:
    """Rotated keys that are a tap too: the write stays by itself."""
    semantic = record(driver.facts)["step"]
    key = next(op.inputs[0] for op in semantic.ops if op.name == "kv_write")
    lowered = lower(replace(semantic, taps={**semantic.taps, "keys": key}), "cuda")
    check(lowered)
    assert counts(lowered)["kv_write"] == 1


def test_e4m3_by_all_its_codes() -> None:
    """Every number rounds to itself, and what lies between two of them to the nearer, ties to the even one."""
    assert POSITIVE[[1, 8, 0x7E]].tolist() == [2**-9, 2**-6, 448]
    codes = np.setdiff1d(np.arange(256, dtype=np.uint8), [0x7F, 0xFF])
    assert np.array_equal(to_e4m3(from_e4m3(codes)), codes)
    below, above = POSITIVE[:-1], POSITIVE[1:]
    middle = (below + above) / 2
    even = np.arange(126) + np.arange(126) % 2
    assert np.array_equal(to_e4m3(middle), even)
    assert np.array_equal(to_e4m3(np.nextafter(middle, np.float32(0))), np.arange(126))
    assert np.array_equal(to_e4m3(-np.nextafter(middle, np.float32(500))), 0x80 + np.arange(1, 127))
    assert to_e4m3(np.array([1e9, -np.inf, np.nan, -0.0], np.float32)).tolist() == [0x7E, 0xFE, 0x7F, 0x80]
