"""Matrices of several formats that read one value: it is quantised for the widest of them, and every product is its reference exactly."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from native import NativeDriver
from tiny import Tiny, open_tiny

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.packing import PackedWeight, pack, pack_grouped, pack_weights
from ridgeline.compute.graph import Op
from ridgeline.compute.ops.quantised import linear_codes, quantise
from ridgeline.compute.quant.bits import Groups
from ridgeline.compute.quant.grouped import GroupedWeight
from ridgeline.compute.quant.groups import groups
from ridgeline.facts.files.formats import FORMATS

pytestmark = pytest.mark.skipif(ext.lost() is not None, reason="the native extension is not built")

HALVES = {"Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}
"""Byte offsets of the fp16 fields."""

MATRICES = {
    "attn_q": ("Q8_0", 256), "attn_k": ("Q4_K", 256), "attn_v": ("INT4", 256), "attn_output": ("Q8_0", 32),
    "ffn_gate": ("Q8_0", 128), "ffn_up": ("INT4", 128), "ffn_down": ("Q6_K", 256),
}  # fmt: skip
"""Format of a matrix, and width of the groups in which what it reads is quantised."""

PROMPT = np.random.default_rng(2).integers(3, 300, 30).tolist()


def matrix(kind: str, shape: tuple[int, int], seed: int, pool: ThreadPoolExecutor) -> tuple[PackedWeight, Groups]:
    """Made-up weights of a format: packed, and as the reference takes them."""
    random, (n, k) = np.random.default_rng(seed), shape
    if kind == "INT4":
        codes, zeros = random.integers(0, 16, (n, k), np.uint8), random.integers(0, 16, (n, k // 128), np.uint8)
        scales = random.random((n, k // 128), np.float32) / 128
        stored = GroupedWeight(shape, 4, 128, codes[:, ::2] | codes[:, 1::2] << np.uint8(4), scales, zeros)
        return pack_grouped(stored, pool), Groups(codes.astype(np.int16) - zeros.repeat(128, axis=1), scales)
    form = FORMATS[kind]
    blocks = random.integers(0, 256, (n, k // form.block_elements, form.block_bytes), np.uint8)
    for start in HALVES[kind]:
        blocks[..., start : start + 2] = (random.random(blocks.shape[:2]) / 2048).astype(np.float16)[..., None].view(np.uint8)
    rows = blocks.reshape(n, -1)
    return pack(kind, rows, shape, pool), groups(kind, rows)


def mixed(path: Path) -> tuple[NativeDriver, Mapping[str, Groups]]:
    facts, weights = open_tiny(path, Tiny(layers=2, hidden=256, head_dim=64, ffn=256))
    packed, integers = pack_weights(facts, 1, lambda stage, fraction: None), {}
    with ThreadPoolExecutor(1) as pool:
        for seed, name in enumerate(name for name in weights if name.startswith("blk.")):
            part = name.split(".")[2]
            if part in MATRICES:
                packed[name], integers[name] = matrix(MATRICES[part][0], facts.tensors[name].shape, seed, pool)  # type: ignore[arg-type]
    return NativeDriver(facts, packed, threads=2, kv_dtype="f32"), integers  # type: ignore[arg-type]


def test_every_product_is_its_formula(tmp_path: Path) -> None:
    driver, integers = mixed(tmp_path / "tiny.gguf")
    ops = driver.runner.oplist.ops
    values = driver.runner.values(driver.inputs([(0, PROMPT)]), driver.kv)
    made = {value: op for op in ops for value in op.outputs}

    def check(op: Op) -> None:
        name, coded = op.weights[0].name, made[op.inputs[0]]
        width = MATRICES[name.split(".")[2]][1]
        assert coded.attributes == {"group": width, "stepped": "ffn_down" in name}
        expected = linear_codes(*quantise(values[coded.inputs[0]], **coded.attributes), integers[name])  # type: ignore[misc]
        assert np.isfinite(expected).all() and values[op.outputs[0]].tobytes() == expected.tobytes(), name  # type: ignore[arg-type,union-attr]

    products = [op for op in ops if op.name == "linear_codes"]
    assert len(products) == len(integers) == 14
    for op in products:
        check(op)


def test_steps_change_no_bit(tmp_path: Path) -> None:
    """Groups are a function of the model: one token at a time gives what a whole prompt in company gives."""
    driver, _ = mixed(tmp_path / "tiny.gguf")
    whole = driver.step((1, PROMPT[:7]), (0, PROMPT))[7:].copy()
    alone = np.concatenate([driver.step((2, [token])).copy() for token in PROMPT])
    assert np.isfinite(whole).all() and whole.tobytes() == alone.tobytes()
