"""Dequantisation is bit-equal to the `gguf` package: every format, random and extreme blocks, every tensor of the demo."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from ridgeline.compute.quant.formats import FORMATS, Coded, dequantise, dequantise_all
from ridgeline.facts.files.formats import FORMATS as STORED
from ridgeline.facts.headers.read import read_model_facts

HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,), "TQ1_0": (52,), "TQ2_0": (64,),
    **dict.fromkeys(("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), (0,)),
}  # fmt: skip
"""Byte offsets of the fp16 fields."""

EDGES = np.array([0.0, -0.0, 2.0**-24, -(2.0**-24), 6.1e-5, 1.0, -1.0, 65504.0, -65504.0, np.inf, -np.inf, np.nan], np.float16)


def reference(kind: str, rows: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return dequantize(rows, gguf.GGMLQuantizationType[kind])


def assert_same_bits(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.dtype == theirs.dtype == np.float32
    assert np.array_equal(ours.view(np.uint32), theirs.view(np.uint32))


def random_rows(kind: str, rows: int, blocks: int) -> np.ndarray:
    rng = np.random.default_rng(sum(kind.encode()))
    return rng.integers(0, 256, (rows, blocks * FORMATS[kind].block_bytes), np.uint8)


def test_table_is_the_header_readers() -> None:
    assert set(FORMATS) == set(STORED)
    for kind, form in FORMATS.items():
        sizes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
        assert (form.block_elements, form.block_bytes) == sizes


@pytest.mark.parametrize("kind", sorted(FORMATS))
def test_random_blocks(kind: str) -> None:
    rows = random_rows(kind, 96, 1024 if FORMATS[kind].block_elements == 1 else 9)
    assert_same_bits(dequantise(kind, rows), reference(kind, rows))


@pytest.mark.parametrize("kind", sorted(HALVES))
def test_every_code_under_ordinary_and_extreme_scales(kind: str) -> None:
    """Every byte value in every place of the codes, once under each edge of each fp16 field."""
    size = FORMATS[kind].block_bytes
    blocks = np.arange(256, dtype=np.uint8)[:, None] + np.arange(size, dtype=np.uint8) * np.uint8(37)
    for start in HALVES[kind]:
        for edge in EDGES:
            rows = blocks.copy()
            rows[:, start : start + 2] = edge.reshape(1).view(np.uint8)
            for other in set(HALVES[kind]) - {start}:
                rows[:, other : other + 2] = np.array([0.37], np.float16).view(np.uint8)
            assert_same_bits(dequantise(kind, rows), reference(kind, rows))


def test_bf16_and_f16_every_value() -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.uint8).reshape(4, -1)
    for kind in ("F16", "BF16"):
        assert_same_bits(dequantise(kind, every), reference(kind, every))


@pytest.mark.parametrize("kind", ["Q8_0", "Q6_K", "BF16"])
def test_tiles_and_threads_change_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random_rows(kind, 37, 64 if FORMATS[kind].block_elements > 1 else 256)
    whole = dequantise(kind, rows)
    monkeypatch.setattr("ridgeline.compute.quant.formats.TILE_ELEMENTS", 600)
    monkeypatch.setattr("ridgeline.compute.quant.formats.CHUNK_ELEMENTS", 5 * whole.shape[1])
    out = np.full_like(whole, 7)
    with ThreadPoolExecutor(2) as pool:
        dequantise_all([(Coded(kind, rows), out)], pool)
    assert_same_bits(out, whole)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="no whole number of 34-byte blocks"):
        dequantise("Q8_0", np.zeros((1, 35), np.uint8))
    with pytest.raises(ValueError, match="contiguous"):
        dequantise("Q8_0", np.zeros((2, 34), np.uint8), np.zeros((2, 33), np.float32))
    with pytest.raises(ValueError, match="contiguous"):
        dequantise("Q8_0", np.zeros((2, 68), np.uint8)[:, :34])


@pytest.mark.parametrize("most_rows", [pytest.param(64, id="in part"), pytest.param(1 << 40, id="whole", marks=pytest.mark.night)])
def test_every_tensor_of_the_demo(demo_file: Path, most_rows: int) -> None:
    facts = read_model_facts(demo_file)
    data = np.memmap(demo_file, np.uint8, "r")
    for tensor in facts.tensors.values():
        rows = data[tensor.offset : tensor.offset + tensor.bytes].reshape(int(np.prod(tensor.shape[:-1])), -1)
        step = max(1, (1 << 20) // tensor.shape[-1])  # bounds the scratch of the reference
        for start in range(0, min(rows.shape[0], most_rows), step):
            tile = rows[start : min(start + step, most_rows)]
            assert_same_bits(dequantise(tensor.kind, tile), reference(tensor.kind, tile))
