"""Checkpoints of fp8: what config.json may say, where scales lie, and the numbers that torch's e4m3 has."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from ridgeline.compute.load.grouped import scaled_weight
from ridgeline.compute.quant.scaled import E4M3
from ridgeline.errors import ModelFormatError
from ridgeline.facts.files.safetensors import read_file
from ridgeline.facts.headers.quantisation import read_quantisation
from ridgeline.facts.headers.quantised import count_activation_scales, gather_quantised
from ridgeline.facts.headers.tensors import split_tensor
from ridgeline.facts.model import TensorFacts
from ridgeline.models.table import RUNNABLE

BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic", "fmt": "e4m3"}
TENSOR = {"quant_method": "fp8"}


def compressed(strategy: str, inputs: dict[str, Any] | None = None, **more: object) -> dict[str, Any]:
    weights = {"type": "float", "num_bits": 8, "strategy": strategy, **more}
    activations = {"type": "float", "num_bits": 8, "dynamic": True, "strategy": "token"} | (inputs or {})
    scheme = {"weights": weights, "input_activations": activations, "targets": ["Linear"]}
    return {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": scheme}}


STORED = {
    "blocks": (BLOCKS, "weight_scale_inv", (3, 2), (128, 128)),
    "a tensor": (TENSOR, "weight_scale", (1,), (300, 200)),
    "a tensor, no dimension": (TENSOR, "weight_scale", (), (300, 200)),
    "a tensor, as transformers names it": (TENSOR, "weight_scale_inv", (), (300, 200)),
    "compressed, rows": (compressed("channel"), "weight_scale", (300, 1), (1, 200)),
    "compressed, a tensor": (compressed("tensor"), "weight_scale", (1,), (300, 200)),
    "compressed, blocks": (compressed("block", block_structure=[128, 128]), "weight_scale", (3, 2), (128, 128)),
}


def stored(
    directory: Path, config: dict[str, Any], name: str, shape: tuple[int, ...], dtype: torch.dtype
) -> tuple[TensorFacts, np.ndarray]:
    """A matrix of 300 x 200 written as a checkpoint has it, and its numbers."""
    generator = torch.Generator().manual_seed(1)
    codes = torch.randn(300, 200, generator=generator).to(torch.float8_e4m3fn)
    scales = (torch.rand(shape, generator=generator) + 0.5).to(dtype)
    path = directory / "model.safetensors"
    save_file({"m.weight": codes, f"m.{name}": scales, "n.weight": torch.ones(4, dtype=torch.bfloat16)}, path)
    found = gather_quantised(read_file(path), read_quantisation({"quantization_config": config}))
    assert set(found) == {"m.weight", "n.weight"} and found["n.weight"].quantised is None
    wide = scales.float().reshape(-1, max(1, -(-200 // 128)) if shape == (3, 2) else 1)
    group_rows, group = (128, 128) if shape == (3, 2) else (300 // len(wide), 200)
    wide = wide.repeat_interleave(group_rows, 0)[:300].repeat_interleave(group, 1)[:, :200]
    return found["m.weight"], (codes.float() * wide).numpy()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", STORED)
def test_numbers(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    config, scales, shape, block = STORED[name]
    tensor, expected = stored(tmp_path, config, scales, shape, dtype)
    assert tensor.kind == "FP8" and tensor.shape == (300, 200)
    weight = scaled_weight(tensor, {path: np.memmap(path, np.uint8, mode="r") for path in tensor.files})
    assert weight.block == block
    assert np.array_equal(weight.dense(), expected)
    assert np.array_equal(weight.rows(np.array([299, 0, 130])), expected[[299, 0, 130]])
    assert np.array_equal(np.concatenate([part for _, part in weight.tiles()]), expected)
    out = np.empty((50, 200), np.float32)
    assert weight.write(slice(120, 170), out) == 50 * 200 and np.array_equal(out, expected[120:170])


def test_every_code() -> None:
    expected = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    assert np.array_equal(E4M3, expected, equal_nan=True)


@pytest.mark.parametrize("rows", [(128, 172), (100, 200)])
def test_projections_that_are_stored_as_one(rows: tuple[int, int], tmp_path: Path) -> None:
    """Each has its own rows of scales; one that begins inside a block is refused."""
    tensor, expected = stored(tmp_path, BLOCKS, "weight_scale_inv", (3, 2), torch.float32)
    shapes = {"a.weight": (rows[0], 200), "b.weight": (rows[1], 200)}
    first, second = split_tensor(tensor, tuple(shapes), shapes, RUNNABLE["phi3"].checkpoint)
    maps = {path: np.memmap(path, np.uint8, mode="r") for path in tensor.files}
    assert np.array_equal(scaled_weight(first, maps).dense(), expected[: rows[0]])
    if rows[0] % 128:
        with pytest.raises(ModelFormatError, match="begins with row 100"):
            scaled_weight(second, maps)
    else:
        assert np.array_equal(scaled_weight(second, maps).dense(), expected[rows[0] :])


REFUSED = {
    "fmt is 'e5m2'": BLOCKS | {"fmt": "e5m2"},
    "activation_scheme is 'calibrated'": BLOCKS | {"activation_scheme": "calibrated"},
    "dynamic of input_activations is ..float., 8, 'local'.": compressed("tensor", inputs={"dynamic": "local"}),
    r"weight_block_size is \[64, 64\]": BLOCKS | {"weight_block_size": [64, 64]},
    "weight_block_size is 128": BLOCKS | {"weight_block_size": 128},
    "strategy of floats is 'group'": compressed("group", group_size=32),
    "num_bits of floats is 4": compressed("channel", num_bits=4),
    "block_structure is None": compressed("block"),
    "num_bits of nvfp4-pack-quantized is 8": compressed("tensor") | {"format": "nvfp4-pack-quantized"},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        read_quantisation({"quantization_config": REFUSED[message]})


STATIC = {
    "transformers": (TENSOR | {"activation_scheme": "static"}, "weight_scale_inv", "activation_scale"),
    "AutoFP8": (TENSOR | {"activation_scheme": "static"}, "weight_scale", "input_scale"),
    "compressed-tensors": (compressed("tensor", inputs={"dynamic": False, "strategy": "tensor"}), "weight_scale", "input_scale"),
}


@pytest.mark.parametrize("writer", STATIC)
def test_scales_of_activations_that_were_made_ahead(writer: str, tmp_path: Path) -> None:
    """Weights are transformers' own, and the scales are no tensors of the model."""
    from transformers.integrations.finegrained_fp8 import _dequantize_fp8_weight

    config, scale_name, ignored = STATIC[writer]
    codes, scale = torch.randn(300, 200, generator=torch.Generator().manual_seed(2)).to(torch.float8_e4m3fn), torch.tensor(0.0371)
    path, quantisation = tmp_path / "model.safetensors", read_quantisation({"quantization_config": config})
    save_file({"m.weight": codes, f"m.{scale_name}": scale, f"m.{ignored}": torch.tensor(0.5)}, path)
    found = gather_quantised(read_file(path), quantisation)
    assert set(found) == {"m.weight"} and count_activation_scales(read_file(path), quantisation) == 1
    weight = scaled_weight(found["m.weight"], {path: np.memmap(path, np.uint8, mode="r")})
    assert np.array_equal(weight.dense(), _dequantize_fp8_weight(codes, scale, None, torch.float32).numpy())


@pytest.mark.parametrize(
    "config", [TENSOR, compressed("tensor"), compressed("tensor") | {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}]
)
def test_scales_of_caches_are_left_out(config: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensors = {"m.weight": torch.ones(128, 128).to(torch.float8_e4m3fn), "m.weight_scale": torch.tensor(0.5)}
    save_file(tensors | {f"a.{name}": torch.tensor(0.5) for name in ("k_scale", "v_scale", "kv_scale")}, path)
    assert set(gather_quantised(read_file(path), read_quantisation({"quantization_config": config}))) == {"m.weight"}


def test_missing_scales(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="weight_scale_inv' is missing"):
        _missing(tmp_path)


def _missing(directory: Path) -> None:
    path = directory / "model.safetensors"
    save_file({"m.weight": torch.ones(128, 128).to(torch.float8_e4m3fn)}, path)
    gather_quantised(read_file(path), read_quantisation({"quantization_config": BLOCKS}))
