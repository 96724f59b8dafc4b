"""LoRA adapters of tiny checkpoints: made by PEFT with random matrices, and the same as GGUF files."""

import copy
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from checkpoints import Checkpoint
from convert import permute
from tiny import Tiny

SCALE = 0.12
"""Of random matrices: large enough that an adapter changes every choice."""


def peft_model(checkpoint: Checkpoint, directory: Path, *, rank: int = 4, seed: int = 0, kind: str = "float32", **settings: Any) -> Any:
    """PEFT's model of a checkpoint with a random adapter on all of its linear layers, which is saved to `directory`."""
    import peft
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        targets = settings.pop("target_modules", "all-linear")
        config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets, task_type="CAUSAL_LM", **settings)
        model = peft.get_peft_model(copy.deepcopy(checkpoint.model), config).eval()
        random = np.random.default_rng(seed)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_" in name:
                    values = (random.standard_normal(tuple(parameter.shape)) * SCALE).astype(np.float32)
                    parameter.copy_(torch.from_numpy(values).to(getattr(torch, kind)))
        model.save_pretrained(directory)
    if kind != "float32":
        _store_as(directory, getattr(torch, kind))
    return model


def _store_as(directory: Path, kind: Any) -> None:
    from safetensors.torch import load_file, save_file

    path = directory / "adapter_model.safetensors"
    save_file({name: values.to(kind) for name, values in load_file(path).items()}, path, metadata={"format": "pt"})


def write_tensors(directory: Path, tensors: Mapping[str, np.ndarray], **config: Any) -> Path:
    """A directory as PEFT writes it, of any tensors."""
    from safetensors.numpy import save_file

    directory.mkdir(parents=True, exist_ok=True)
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", "target_modules": ["q_proj"], **config}
    (directory / "adapter_config.json").write_text(json.dumps(settings))
    save_file({f"base_model.model.{name}": values for name, values in tensors.items()}, directory / "adapter_model.safetensors")
    return directory


def write_lora_gguf(path: Path, checkpoint: Checkpoint, directory: Path) -> Path:
    """The adapter in `directory` as llama.cpp's converter writes it: its tensor names, and Llama's order of Q and K."""
    from safetensors.numpy import load_file

    architecture, config = checkpoint.recipe.gguf, checkpoint.model.config
    settings = json.loads((directory / "adapter_config.json").read_text())
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(settings["lora_alpha"]))
    for key, stored in load_file(directory / "adapter_model.safetensors").items():
        module, part = key.removeprefix("base_model.model.").removesuffix(".weight").rsplit(".", 1)
        values = stored
        if architecture in ("llama", "granitemoe") and part == "lora_B" and module.endswith(("q_proj", "k_proj")):
            values = permute(values, config.num_attention_heads if module.endswith("q_proj") else config.num_key_value_heads)
        name = names.get_name(f"{module}.weight", try_suffixes=(".weight",))
        assert name is not None, module
        writer.add_tensor(f"{name}.{part.lower()}", np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_tiny_adapter(directory: Path, seed: int, rank: int = 4, **config: Any) -> Path:
    """A random adapter of the tiny Gemma 3."""
    size, random = Tiny(), np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}
    for layer in range(size.layers):
        for module, outputs, inputs in (("self_attn.q_proj", 64, 64), ("mlp.down_proj", size.hidden, size.ffn)):
            name = f"model.layers.{layer}.{module}"
            tensors[f"{name}.lora_A.weight"] = random.standard_normal((rank, inputs)).astype(np.float32)
            tensors[f"{name}.lora_B.weight"] = random.standard_normal((outputs, rank)).astype(np.float32)
    return write_tensors(directory, tensors, **config)
