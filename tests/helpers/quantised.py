"""Checkpoints with quantised matrices, laid out as the libraries that publish them do: AutoGPTQ and GPTQModel, AutoAWQ, compressed-tensors.

Words are put together one field at a time, as those libraries' own loops do; nothing of the package is used. Quantisation itself is crude
(the nearest of evenly spaced values): layouts are what matters.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""awq/modules/linear/gemm.py, `order_map`: field i of a word is output order_map[i]."""


@dataclass(frozen=True)
class Scheme:
    """How matrices are quantised and stored.

    group      inputs of a group; -1: all
    act_order  groups of inputs that do not stand together
    scales     float16, bfloat16 or float32
    stored     format of GPTQ (gptq, gptq_v2), or of compressed-tensors (pack-quantized, int-quantized)
    """

    method: str
    bits: int
    group: int
    symmetric: bool = True
    act_order: bool = False
    scales: str = "float16"
    stored: str = ""
    activations: bool = False

    def config(self) -> dict[str, Any]:
        """`quantization_config` of config.json."""
        if self.method == "gptq":
            return {
                "quant_method": "gptq", "bits": self.bits, "group_size": self.group, "desc_act": self.act_order, "sym": self.symmetric,
                "checkpoint_format": self.stored, "damp_percent": 0.01, "true_sequential": True, "lm_head": False, "meta": {"by": "test"},
            }  # fmt: skip
        if self.method == "awq":
            return {
                "quant_method": "awq", "bits": self.bits, "group_size": self.group, "zero_point": True, "version": "gemm",
                "modules_to_not_convert": ["lm_head"],
            }  # fmt: skip
        weights = {
            "num_bits": self.bits, "type": "int", "symmetric": self.symmetric, "dynamic": False, "block_structure": None,
            "strategy": "channel" if self.group < 0 else "group", "group_size": None if self.group < 0 else self.group,
            "actorder": "group" if self.act_order else None, "observer": "minmax", "observer_kwargs": {},
        }  # fmt: skip
        inputs = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": True, "strategy": "token", "group_size": None}
        group = {
            "targets": ["Linear"],
            "weights": weights,
            "input_activations": inputs if self.activations else None,
            "output_activations": None,
        }
        return {
            "quant_method": "compressed-tensors", "format": self.stored, "quantization_status": "compressed", "ignore": ["lm_head"],
            "kv_cache_scheme": None, "sparsity_config": {}, "transform_config": {}, "version": "0.20.0",
            "config_groups": {"group_0": group},
        }  # fmt: skip


SCHEMES = {
    "gptq-4-128": Scheme("gptq", 4, 128, stored="gptq"),
    "gptq-4-32-act-order": Scheme("gptq", 4, 32, act_order=True, stored="gptq"),
    "gptq-4-64-asymmetric-v1": Scheme("gptq", 4, 64, symmetric=False, stored="gptq"),
    "gptq-4-64-asymmetric-v2": Scheme("gptq", 4, 64, symmetric=False, act_order=True, scales="bfloat16", stored="gptq_v2"),
    "gptq-8-row": Scheme("gptq", 8, -1, stored="gptq"),
    "gptq-8-32-asymmetric-v1": Scheme("gptq", 8, 32, symmetric=False, act_order=True, stored="gptq"),
    "awq-4-128": Scheme("awq", 4, 128, symmetric=False),
    "awq-4-32": Scheme("awq", 4, 32, symmetric=False),
    "int8-w8a8": Scheme("compressed-tensors", 8, -1, scales="bfloat16", stored="int-quantized", activations=True),
    "int8-w8a16-asymmetric": Scheme("compressed-tensors", 8, -1, symmetric=False, scales="float32", stored="int-quantized"),
    "packed-4-128": Scheme("compressed-tensors", 4, 128, scales="bfloat16", stored="pack-quantized"),
    "packed-4-32-asymmetric": Scheme("compressed-tensors", 4, 32, symmetric=False, stored="pack-quantized"),
    "packed-4-64-act-order": Scheme("compressed-tensors", 4, 64, act_order=True, scales="bfloat16", stored="pack-quantized"),
    "packed-8-row": Scheme("compressed-tensors", 8, -1, scales="float32", stored="pack-quantized"),
}


@dataclass(frozen=True)
class Quantised:
    """A matrix [N, K]: unsigned codes in the order of the inputs, the group of every input, scales (as stored) and zeros [N, groups]."""

    codes: np.ndarray
    group_of: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray

    def dense(self) -> np.ndarray:
        """(code - zero)·scale, exact before it is rounded to fp32."""
        difference = self.codes.astype(np.int64) - self.zeros[:, self.group_of].astype(np.int64)
        return (difference * self.scales.astype(np.float64)[:, self.group_of]).astype(np.float32)


def quantise(values: np.ndarray, scheme: Scheme, seed: int) -> Quantised:
    """The nearest codes of fp32 [N, K]. Some zeros are 0, which GPTQ's first format can only write with a borrow."""
    columns = values.shape[1]
    size = columns if scheme.group < 0 else scheme.group
    group_of = np.arange(columns) // size
    if scheme.act_order:
        group_of = np.random.default_rng(seed).permutation(group_of)
    top = (1 << scheme.bits) - 1
    low, high = (np.stack([f(values[:, group_of == g], axis=1) for g in range(columns // size)], 1) for f in (np.min, np.max))
    if scheme.symmetric:
        low, high = -np.maximum(-low, high), np.maximum(-low, high)
    else:
        low[::3] = 0.0  # values below are cut off
    scales = rounded((high - low) / top, scheme.scales)
    zeros = np.full(scales.shape, 1 << (scheme.bits - 1)) if scheme.symmetric else np.clip(np.rint(-low / scales), 0, top).astype(int)
    codes = np.clip(np.rint(values / scales[:, group_of]) + zeros[:, group_of], 0, top).astype(np.uint8)
    return Quantised(codes, group_of, scales, zeros.astype(np.uint8))


def rounded(values: np.ndarray, kind: str) -> np.ndarray:
    """fp32 numbers that the type can hold."""
    import torch

    return torch.from_numpy(values.astype(np.float32)).to(getattr(torch, kind)).float().numpy()


def words(fields: np.ndarray, bits: int, order: tuple[int, ...] | None = None) -> np.ndarray:
    """uint [A, B] → int32 [A, B·bits / 32], along the second axis; field i of a word is the input's `order[i]`."""
    count = 32 // bits
    padded = np.pad(fields, ((0, 0), (0, -fields.shape[1] % count))).astype(np.uint32)
    packed = np.zeros((len(fields), padded.shape[1] // count), np.uint32)
    for word in range(packed.shape[1]):
        for i in range(count):
            packed[:, word] |= padded[:, word * count + (order[i] if order else i)] << np.uint32(bits * i)
    return packed.view(np.int32)


def tensors_of(matrix: Quantised, scheme: Scheme) -> dict[str, np.ndarray]:
    """The tensors of a module by their last names; scales are still fp32."""
    order = {"g_idx": matrix.group_of.astype(np.int32)}
    if scheme.method == "gptq":
        zeros = words(matrix.zeros.T, scheme.bits).view(np.uint32)
        if scheme.stored == "gptq":  # gptqmodel/utils/model.py, convert_gptq_v2_to_v1_format_module
            zeros = zeros - np.uint32(0x11111111 if scheme.bits == 4 else 0x01010101)
        return {"qweight": words(matrix.codes, scheme.bits).T, "qzeros": zeros.view(np.int32), "scales": matrix.scales.T, **order}
    if scheme.method == "awq":
        packed = (words(part, 4, AWQ_ORDER) for part in (matrix.codes.T, matrix.zeros.T))
        return dict(zip(("qweight", "qzeros"), packed, strict=True)) | {"scales": matrix.scales.T}
    middle = 1 << (scheme.bits - 1)
    found = {"weight_scale": matrix.scales}
    if scheme.stored == "int-quantized":
        found["weight"] = (matrix.codes.astype(int) - middle).astype(np.int8)
        zeros = (matrix.zeros.astype(int) - middle).astype(np.int8)
    else:
        found |= {"weight_packed": words(matrix.codes, scheme.bits), "weight_shape": np.array(matrix.codes.shape, np.int64)}
        zeros = words(matrix.zeros.T, scheme.bits).T
    if not scheme.symmetric:
        found["weight_zero_point"] = zeros
    return found | ({"weight_g_idx": order["g_idx"]} if scheme.act_order else {})


def write_quantised(
    directory: Path, model: Any, scheme: Scheme, keep: tuple[str, ...] = ("lm_head",), kinds: tuple[str, ...] = ("Linear", "Conv1D")
) -> dict[str, Quantised]:
    """Writes the model of transformers with its modules of some `kinds` quantised, and puts their dequantised weights into it.

    Returns the matrices by module. Modules that are named in `keep`, and all others, stay in the type of the scales.
    """
    import torch
    from safetensors.torch import save_file

    directory.mkdir(parents=True, exist_ok=True)
    kind = getattr(torch, scheme.scales)
    made: dict[str, Quantised] = {}
    for seed, (name, module) in enumerate(model.named_modules()):
        if type(module).__name__ not in kinds or name in keep:
            continue
        turned = type(module).__name__ == "Conv1D"
        values = module.weight.detach().numpy()
        made[name] = quantise(values.T if turned else values, scheme, seed)
        dense = made[name].dense()
        module.weight.data = torch.from_numpy(dense.T.copy() if turned else dense)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.rpartition(".")[0] not in made or name.endswith(".bias"):
                parameter.copy_(parameter.to(kind))
    tied = ["lm_head.weight"] if model.config.tie_word_embeddings else []
    left = {key: value.to(kind).contiguous() for key, value in model.state_dict().items() if key not in tied}
    for name, matrix in made.items():
        del left[f"{name}.weight"]
        for last, values in tensors_of(matrix, scheme).items():
            tensor = torch.from_numpy(np.ascontiguousarray(values))
            left[f"{name}.{last}"] = tensor.to(kind) if last in ("scales", "weight_scale") else tensor
    save_file(left, directory / "model.safetensors", metadata={"format": "pt"})
    model.config.save_pretrained(directory)
    config = json.loads((directory / "config.json").read_text()) | {"quantization_config": scheme.config(), "dtype": scheme.scales}
    (directory / "config.json").write_text(json.dumps(config))
    return made
