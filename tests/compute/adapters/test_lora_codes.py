"""What codes of 8 bits cost an adapter of the demo: its distributions beside those of the same adapter in bf16.

Products round activations to codes, so that any change at all, here of the adapter by a hundred thousandth, moves what comes of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from native import NativeDriver
from tiny import log_softmax

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.adapters import NativeAdapterSlots
from ridgeline.compute.cpu.cache import allocate_native_kv
from ridgeline.compute.cpu.packing import pack_weights
from ridgeline.compute.cpu.runner import NativeRunner
from ridgeline.compute.load.record import record
from ridgeline.compute.lowering.adapters import add_adapters, changed_matrices
from ridgeline.compute.ops.lora import Pair
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.text.files import load_tokenizer

pytestmark = pytest.mark.skipif(ext.lost() is not None, reason="the native extension is not built")

TEXT = Path(__file__).resolve().parents[3] / "docs" / "physics.md"
RANK, TOKENS, SIZE = 16, 128, 0.02
CODES, FLOATS, MOVED, NONE = 0, 1, 2, -1


def bf16(random: np.random.Generator, *shape: int) -> np.ndarray:
    return ((random.standard_normal(shape) * SIZE).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def divergence(p: np.ndarray, q: np.ndarray) -> float:
    """KL of rows of log-probabilities, mean."""
    return float((np.exp(p) * (p - q)).sum(1).mean())


def test_codes_change_little_of_what_an_adapter_does(demo_file: Path) -> None:
    facts, random = read_model_facts(demo_file), np.random.default_rng(0)
    oplist = record(facts)["step"]
    matrices = changed_matrices(add_adapters(oplist))
    pairs = {name: Pair("BF16", bf16(random, RANK, columns), bf16(random, RANK, rows), 1.0) for name, (rows, columns) in matrices.items()}
    driver = NativeDriver(facts, pack_weights(facts, 2, lambda stage, fraction: None), blocks=512, tokens=TOKENS)
    runner = NativeRunner(oplist, driver.weights, driver.shape, tokens=TOKENS, selected=TOKENS, vocab=facts.tokens, threads=2, slots=3)
    assert runner.adapters is not None
    as_stored = NativeAdapterSlots(matrices, 1)
    coded, floats = runner.adapters.pack(pairs), as_stored.pack(pairs)
    assert coded.nbytes < 0.52 * floats.nbytes
    runner.adapters.fill(CODES, coded)
    runner.adapters.fill(FLOATS, floats)
    runner.adapters.fill(MOVED, as_stored.pack({name: replace(pair, scale=1.00001) for name, pair in pairs.items()}))
    ids = load_tokenizer(demo_file).encode(TEXT.read_text(), add_bos=True)[:TOKENS]
    found = {}
    for slot in (CODES, FLOATS, MOVED, NONE):
        kv = allocate_native_kv(driver.shape, facts.cached, "f32", driver.states())
        inputs = driver.inputs([(slot + 1, ids)], range(TOKENS))
        own = None if slot == NONE else np.full(TOKENS, slot, np.int32)
        found[slot] = log_softmax(runner.run(replace(inputs, adapter=own), kv)["logits"]).astype(np.float64)
    runner.close()
    lost, floor, effect = (divergence(found[FLOATS], found[slot]) for slot in (CODES, MOVED, NONE))
    agree = float((found[FLOATS].argmax(1) == found[CODES].argmax(1)).mean())
    print(f"KL of bf16: to codes {lost:.4f}, moved {floor:.4f}, to no adapter {effect:.4f}; the same first choice as codes {agree:.3f}")
    assert lost < 2 * floor and lost < effect / 20
