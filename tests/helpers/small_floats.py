"""Checkpoints of NVFP4, MXFP4 and fp8 per tensor as compressed-tensors and ModelOpt publish them; weights by those libraries' own formulas.

Quantisation itself is crude (the nearest number): layouts and formulas are what matters.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors.mx_utils import decompress_mx_scale
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
E2M1 = unpack_fp4_from_uint8(torch.arange(16, dtype=torch.uint8), 16, 2, torch.float32)[:, 0]
EIGHT = QuantizationArgs(num_bits=8, type="float", strategy="tensor")
ARGS = {
    size: QuantizationArgs(num_bits=4, type="float", strategy=name, group_size=size) for size, name in ((16, "tensor_group"), (32, "group"))
}


def compressed_config(stored: str, group: int, **weights: Any) -> dict[str, Any]:
    own = {"num_bits": 4, "type": "float", "symmetric": True, "dynamic": False, "group_size": group, "actorder": None} | weights
    inputs = {"num_bits": 4, "type": "float", "dynamic": "local", "group_size": group, "strategy": "tensor_group"}
    return {
        "quant_method": "compressed-tensors", "format": stored, "quantization_status": "compressed", "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": own, "input_activations": inputs, "format": stored}},
    }  # fmt: skip


def static_config() -> dict[str, Any]:
    """fp8 with a scale for a matrix and one for its inputs, both made ahead."""
    own = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False, "strategy": "tensor"}
    return {
        "quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed", "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": own, "input_activations": own}},
    }  # fmt: skip


def modelopt_config(algorithm: str, **more: Any) -> dict[str, Any]:
    return {"quant_algo": algorithm, "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]} | more


CONFIGS = {
    "nvfp4": compressed_config("nvfp4-pack-quantized", 16),
    "mxfp4": compressed_config("mxfp4-pack-quantized", 32),
    "modelopt nvfp4": {"quant_method": "modelopt"} | modelopt_config("NVFP4", group_size=16),
    "modelopt fp8": {"quant_method": "modelopt"} | modelopt_config("FP8"),
    "static fp8": static_config(),
}


def nearest(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Codes [N, K / 2] of values [N, K] under scales [N, G]."""
    wanted = values.reshape(*scales.shape, -1) / torch.where(scales > 0, scales, 1)[..., None]
    codes = (wanted[..., None] - E2M1).abs().argmin(-1).reshape(values.shape).to(torch.uint8)
    return codes[:, ::2] | codes[:, 1::2] << 4


def nvfp4(values: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """(tensors by their last names, weights)."""
    largest = values.reshape(len(values), -1, 16).abs().amax(-1)
    whole = 448 * 6 / largest.max().reshape(1)
    scales = (largest / 6 * whole).to(torch.float8_e4m3fn)
    codes = nearest(values, scales.float() / whole)
    parts = {"weight_packed": codes, "weight_scale": scales, "weight_global_scale": whole, "input_global_scale": torch.ones(1)}
    return parts, nvfp4_weights(codes, scales, whole)


def nvfp4_weights(codes: torch.Tensor, scales: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    values = unpack_fp4_from_uint8(codes, len(codes), 2 * codes.shape[1], torch.float32)
    return dequantize(values, scales.float(), args=ARGS[16], global_scale=whole)


def mxfp4(values: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    exponents = (values.reshape(len(values), -1, 32).abs().amax(-1) / 4).log2().floor().clamp(min=-120).to(torch.int32) + 127
    scales = exponents.to(torch.uint8)
    codes = nearest(values, decompress_mx_scale(scales).float())
    dense = unpack_fp4_from_uint8(codes, len(codes), values.shape[1], torch.float32)
    return {"weight_packed": codes, "weight_scale": scales}, dequantize(dense, decompress_mx_scale(scales).float(), args=ARGS[32])


def modelopt_nvfp4(values: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    largest = values.reshape(len(values), -1, 16).abs().amax(-1)
    whole = largest.max() / (448 * 6)
    scales = (largest / 6 / whole).to(torch.float8_e4m3fn)
    codes = nearest(values, scales.float() * whole)
    parts = {"weight": codes, "weight_scale": scales, "weight_scale_2": whole, "input_scale": torch.tensor(0.5)}
    return parts, modelopt_weights(codes, scales, whole)


def modelopt_weights(codes: torch.Tensor, scales: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """modelopt/torch/quantization/qtensor/nvfp4_tensor.py, NVFP4QTensor.dequantize."""
    table = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
    values = torch.empty(len(codes), 2 * codes.shape[1])
    values[:, 1::2], values[:, ::2] = table[(codes >> 4).long()], table[(codes & 15).long()]
    return (values.view(*scales.shape, -1) * (scales.float() * whole)[..., None]).reshape(values.shape)


def modelopt_fp8(values: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = values.abs().max() / 448
    codes = (values / scale).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scale, "input_scale": torch.tensor(0.5)}, codes.float() * scale


def static_fp8(values: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = (values.abs().max() / 448).reshape(1)
    codes = (values / scale).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scale, "input_scale": torch.tensor([0.5])}, dequantize(codes.float(), scale, args=EIGHT)


WRITERS: dict[str, Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]] = {
    "nvfp4": nvfp4, "mxfp4": mxfp4, "modelopt nvfp4": modelopt_nvfp4, "modelopt fp8": modelopt_fp8, "static fp8": static_fp8,
}  # fmt: skip


def write_small_floats(directory: Path, model: Any, name: str, put: Callable[[Any, str, torch.Tensor], None]) -> None:
    """Writes the model of transformers with the matrices of its layers but routers quantised; `put` gives it the weights that result."""
    model.save_pretrained(directory)
    tensors = load_file(directory / "model.safetensors")
    for key in [key for key in tensors if "_proj.weight" in key]:
        module = key.removesuffix(".weight")
        parts, dense = WRITERS[name](tensors.pop(key))
        tensors |= {f"{module}.{last}": part.contiguous() for last, part in parts.items()}
        if "modelopt" in name and module.endswith(("k_proj", "v_proj")):
            tensors[f"{module}.{module[-6]}_scale"] = torch.tensor(1.0)
        put(model, module, dense)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_text()) | {"quantization_config": CONFIGS[name]}
    (directory / "config.json").write_text(json.dumps(config))
