"""GGUF files of transformers' models, by the rules of llama.cpp's converter: its tensor names (the `gguf` package has them), its
permutation of Llama's Q and K, its + 1 on norms of Gemma and Qwen3-Next, its tensors and keys for scaled RoPE.

One key is more than that converter writes: the window of a Mistral or a StarCoder2, which their files leave out.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
from checkpoints import ROUTERS
from tiny import add_vocabulary

KINDS = ("F32", "Q8_0")


def write_gguf(path: Path, model: Any, architecture: str, kind: str, behind: Mapping[str, np.ndarray] = MappingProxyType({})) -> Path:
    """The model as a GGUF file whose matrices are stored as `kind`; vectors and learned positions are F32, as llama.cpp keeps them.

    behind  tensors by GGUF name of one more layer, which predicts further tokens
    """
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    _write_sizes(writer, config, more=1 if behind else 0)
    if behind:
        writer.add_nextn_predict_layers(1)
    _write_experts(writer, config)
    _write_rope(writer, config, architecture)
    add_vocabulary(writer, config.vocab_size)
    stored = gguf.GGMLQuantizationType[kind]
    for name, values in (*gguf_tensors(model, architecture).items(), *behind.items()):
        if kind == "F32" or not quantised(name, values):
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def quantised(name: str, values: np.ndarray) -> bool:
    """Whether a file with quantised matrices quantises this tensor."""
    kept = ("position_embd", "ffn_gate_inp", "ssm_conv1d")
    return values.ndim > 1 and not any(part in name for part in kept) and not name.endswith(".bias")


def gguf_tensors(model: Any, architecture: str, module: Any = None, prefix: str = "") -> dict[str, np.ndarray]:
    """fp32 by GGUF name, as the file holds them; of a `module` that has this prefix in the files, or of the whole model."""
    config, module = model.config, module or model
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers + 1)
    found: dict[str, np.ndarray] = {}
    biases = [(key, value) for key, value in module.named_buffers() if key.endswith("e_score_correction_bias")]
    for part, parameter in (*module.named_parameters(), *biases):
        key = f"{prefix}{part}"
        values = parameter.detach().numpy()
        if architecture == "gpt2" and values.ndim == 2 and ".h." in key:
            values = values.T
        if architecture in ("llama", "granitemoe") and "q_proj" in key:
            values = permute(values, config.num_attention_heads)
        if architecture in ("llama", "granitemoe") and "k_proj" in key:
            values = permute(values, config.num_key_value_heads)
        is_norm = key.endswith("norm.weight") and not key.endswith("linear_attn.norm.weight")
        if architecture.startswith(("gemma", "qwen3next")) and is_norm:
            values = values + 1
        for part, own in _unfused(architecture, config, key, values):
            name = names.get_name(part, try_suffixes=(".weight", ".bias"))
            assert name is not None, part
            found[name] = np.ascontiguousarray(own, np.float32)
    return found


def _unfused(architecture: str, config: Any, key: str, values: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """As files have them what transformers keeps otherwise: gate and up of experts in one tensor [E, 2 · F, D], names of its own."""
    stem, _, last = key.rpartition(".")
    if ".linear_attn." in key:
        return _recurrent(config, key, values)
    if architecture == "gpt-oss" and stem.endswith(".experts"):
        # Stored with inputs first, gate and up in turn.
        module, suffix = last.removesuffix("_bias"), "bias" if last.endswith("_bias") else "weight"
        rows = values if suffix == "bias" else values.swapaxes(1, 2)
        if module == "down_proj":
            return [(f"{stem}.down_proj.{suffix}", rows)]
        return [(f"{stem}.gate_proj.{suffix}", rows[:, ::2]), (f"{stem}.up_proj.{suffix}", rows[:, 1::2])]
    if key.endswith("kv_b_proj.weight"):
        k, v = latent_parts(config, values)
        return [(key.replace("kv_b_proj", "k_b_proj"), k.swapaxes(1, 2)), (key.replace("kv_b_proj", "v_b_proj"), v)]
    for ours, theirs in (
        (".block_sparse_moe.router.", ".mlp.gate."), (".block_sparse_moe.", ".mlp."), (".gate.moe_statics.", ".moe_statics."),
        ("e_score_correction_bias", "e_score_correction.bias"),
    ):  # fmt: skip
        key = key.replace(ours, theirs)
    if key.endswith(".experts.gate_up_proj"):
        gate, up = np.split(values, 2, axis=1)
        stem = key.removesuffix("gate_up_proj")
        return [(f"{stem}gate_proj.weight", gate), (f"{stem}up_proj.weight", up)]
    if key.endswith(("shared_expert_gate.weight", "moe_statics.e_score_correction.bias")):
        return [(key, values[0])]
    return [(f"{key}.weight" if key.endswith(".experts.down_proj") else key, values)]


def _recurrent(config: Any, key: str, values: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Tensors of the gated delta rule: queries, keys and values of all heads in one matrix, their gates in another."""
    stem, _, last = key.rpartition(".linear_attn.")
    stem = f"{stem}.linear_attn."
    if last == "A_log":
        return [(key, -np.exp(values))]
    if last == "dt_bias":
        return [(f"{stem}dt_proj.bias", values)]
    if last != "in_proj_qkvz.weight":
        return [(key, values[:, 0] if last == "conv1d.weight" else values)]
    served = config.linear_num_value_heads // config.linear_num_key_heads * config.linear_value_head_dim
    heads = values.reshape(config.linear_num_key_heads, -1, values.shape[1])
    ends = np.cumsum([config.linear_key_head_dim, config.linear_key_head_dim, served])
    q, k, v, z = (part.reshape(-1, values.shape[1]) for part in np.split(heads, ends, axis=1))
    return [(f"{stem}in_proj_qkv.weight", np.concatenate([q, k, v])), (f"{stem}in_proj_z.weight", z)]


def latent_parts(config: Any, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Views of the rows of K [heads, plain, rank] and of V [heads, value, rank] of the matrix that makes both of a latent."""
    heads = rows.reshape(config.num_attention_heads, -1, rows.shape[1])
    return heads[:, : config.qk_nope_head_dim], heads[:, config.qk_nope_head_dim :]


def permute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from halves to pairs: 0, h/2, 1, h/2 + 1 …"""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def dequantised(model: Any, architecture: str, kind: str) -> Any:
    """A copy of the model with the weights that a file of `kind` holds."""
    import copy

    import torch

    own = copy.deepcopy(model)
    stored = gguf.GGMLQuantizationType[kind]
    with torch.no_grad():
        for key, parameter in own.named_parameters():
            values = parameter.numpy()
            if key.endswith("kv_b_proj.weight"):
                for part, turned in zip(latent_parts(own.config, values), (True, False), strict=True):
                    part[:] = _rounded(part, stored, turned)
                continue
            turned = (architecture == "gpt2" and ".h." in key) or (architecture == "gpt-oss" and ".experts." in key)
            if values.ndim > 1 and ".wpe" not in key and not key.endswith((*ROUTERS, "_bias", "conv1d.weight")):
                parameter.copy_(torch.from_numpy(np.ascontiguousarray(_rounded(values, stored, turned))))
    own.tie_weights()
    return own


def _rounded(values: np.ndarray, stored: gguf.GGMLQuantizationType, turned: bool) -> np.ndarray:
    """What a file keeps of matrices; `turned`: it has them transposed."""
    rows = np.ascontiguousarray(values.swapaxes(-1, -2) if turned else values)
    rows = gguf.quants.dequantize(gguf.quants.quantize(rows, stored), stored)
    return rows.swapaxes(-1, -2) if turned else rows


def _write_sizes(writer: gguf.GGUFWriter, config: Any, more: int) -> None:
    heads = config.num_attention_heads
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers + more)
    writer.add_head_count(heads)
    if config.model_type == "gpt2":
        writer.add_feed_forward_length(config.n_inner)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv(1 if hasattr(config, "kv_lora_rank") else config.num_key_value_heads)
    if config.model_type == "starcoder2":
        writer.add_layer_norm_eps(config.norm_epsilon)
    else:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if hasattr(config, "kv_lora_rank"):
        _write_latent(writer, config)
    elif getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if config.model_type == "qwen3_next":
        _write_delta(writer, config)
    if config.model_type in ("mistral", "gemma2", "gemma3_text", "phi3", "starcoder2", "gpt_oss"):
        writer.add_sliding_window(config.sliding_window or 0)
    if config.model_type == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


def _write_latent(writer: gguf.GGUFWriter, config: Any) -> None:
    if config.q_lora_rank:
        writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
    writer.add_value_length(config.kv_lora_rank)
    writer.add_key_length_mla(config.qk_nope_head_dim + config.qk_rope_head_dim)
    writer.add_value_length_mla(config.v_head_dim)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    writer.add_leading_dense_block_count(config.first_k_dense_replace)


def _write_delta(writer: gguf.GGUFWriter, config: Any) -> None:
    heads = config.linear_num_value_heads
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_group_count(config.linear_num_key_heads)
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_inner_size(config.linear_value_head_dim * heads)
    writer.add_full_attention_interval(config.layer_types.index("full_attention") + 1)


def _write_experts(writer: gguf.GGUFWriter, config: Any) -> None:
    count = next((found for key in ("num_local_experts", "num_experts", "n_routed_experts") if (found := getattr(config, key, 0))), 0)
    if not count:
        return
    writer.add_expert_count(count)
    writer.add_expert_used_count(config.num_experts_per_tok)
    if hasattr(config, "moe_intermediate_size"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if hasattr(config, "shared_expert_intermediate_size"):
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    shared = getattr(config, "n_shared_experts", getattr(config, "moe_num_shared_experts", 0))
    if shared:
        writer.add_expert_shared_count(shared)
    if config.model_type in ("glm4_moe", "dots1", "deepseek_v2", "deepseek_v3"):
        gating = gguf.ExpertGatingFuncType
        writer.add_expert_gating_func(gating.SOFTMAX if config.model_type == "deepseek_v2" else gating.SIGMOID)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
    if config.model_type == "granitemoe":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)


def _write_rope(writer: gguf.GGUFWriter, config: Any, architecture: str) -> None:
    if architecture == "gpt2":
        return
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_rope_freq_base(rope["rope_theta"])
    if architecture in ("llama", "phi3", "glm4moe", "qwen3next"):
        writer.add_rope_dimension_count(int(rope.get("partial_rotary_factor", 1.0) * head))
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "mscale_all_dim" in rope:
            writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    elif rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_factors(rope, head))
    elif rope["rope_type"] == "longrope":
        original = config.original_max_position_embeddings
        scale = config.max_position_embeddings / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))
        for part in ("long", "short"):
            writer.add_tensor(f"rope_factors_{part}.weight", np.array(rope[f"{part}_factor"], np.float32))


def _llama3_factors(rope: Any, dim: int) -> np.ndarray:
    """Divisors of the angles, from wavelengths."""
    low, high, original = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
    factors = []
    for frequency in rope["rope_theta"] ** (-np.arange(0, dim, 2) / dim):
        wavelength = 2 * math.pi / frequency
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(rope["factor"])
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)
