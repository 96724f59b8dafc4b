"""Tiny random models of every architecture, made by transformers, and GGUF files of their weights as llama.cpp's converter lays them out.

Nothing of the package is used here, so that reader and writer cannot share a mistake.
"""

from pathlib import Path

import gguf
import numpy as np
import torch
import transformers

WIDTHS = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 128}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0 + i / 8 for i in range(8)],
    "long_factor": [1.0 + i for i in range(8)],
}
GEMMA_ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
MODELS: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("Llama", {"rope_parameters": LLAMA3}),
    "llama-biased": ("Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "mistral": ("Mistral", {"sliding_window": 16}),
    "qwen2": ("Qwen2", {"rope_parameters": YARN}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "gemma2": ("Gemma2", {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16}),
    "gemma3": (
        "Gemma3",
        {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16, "num_hidden_layers": 7, "rope_parameters": GEMMA_ROPES},
    ),
    "phi3": ("Phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64, "sliding_window": 32}),
    "gpt2": ("GPT2", {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512}),
}
"""Name → (class, what its config has beside `WIDTHS`)."""


def model(name: str, **changes: object) -> "transformers.PreTrainedModel":
    """A model with random weights, fp32: norms near one, so that every one of them matters."""
    kind, extra = MODELS[name]
    settings = ({"vocab_size": 300, "bos_token_id": 1, "eos_token_id": 2} if kind == "GPT2" else WIDTHS) | extra | changes
    config_class = getattr(transformers, {"Gemma3": "Gemma3TextConfig"}.get(kind, f"{kind}Config"))
    model_class = getattr(transformers, f"{kind}{'LMHeadModel' if kind == 'GPT2' else 'ForCausalLM'}")
    made = model_class(config_class(**settings)).eval()
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            spread = 0.2 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
            parameter.copy_(torch.randn(parameter.shape, generator=noise) * spread)
    return made


def layers_of(made: "transformers.PreTrainedModel") -> list[dict[str, np.ndarray]]:
    """Each layer's tensors by canonical name, fp32, straight from the modules that use them."""
    if made.config.model_type == "gpt2":
        return [_gpt2_layer(block) for block in made.transformer.h]
    return [_layer(layer) for layer in made.model.layers]


def ends_of(made: "transformers.PreTrainedModel") -> dict[str, np.ndarray]:
    """The tensors outside layers."""
    ends = {"token_embd.weight": made.get_input_embeddings().weight}
    if made.config.model_type == "gpt2":
        ends |= {"position_embd.weight": made.transformer.wpe.weight}
        ends |= {"output_norm.weight": made.transformer.ln_f.weight, "output_norm.bias": made.transformer.ln_f.bias}
    else:
        ends |= {"output_norm.weight": made.model.norm.weight + _shift(made.model.norm)}
    if not made.config.tie_word_embeddings:
        ends |= {"output.weight": made.lm_head.weight}
    return {name: value.detach().numpy() for name, value in ends.items()}


def _shift(norm: torch.nn.Module) -> int:
    """What the formula of a norm adds to its weight."""
    return 1 if type(norm).__name__.startswith("Gemma") else 0


def _layer(layer: torch.nn.Module) -> dict[str, np.ndarray]:
    attention, mlp = layer.self_attn, layer.mlp
    found: dict[str, torch.Tensor] = {}

    def add(name: str, module: torch.nn.Module) -> None:
        found[f"{name}.weight"] = module.weight + _shift(module)
        if getattr(module, "bias", None) is not None:
            found[f"{name}.bias"] = module.bias

    add("attn_norm", layer.input_layernorm)
    after = hasattr(layer, "pre_feedforward_layernorm")
    add("post_attention_norm" if after else "ffn_norm", layer.post_attention_layernorm)
    if after:
        add("ffn_norm", layer.pre_feedforward_layernorm)
        add("post_ffw_norm", layer.post_feedforward_layernorm)
    if hasattr(attention, "qkv_proj"):
        head = attention.head_dim
        heads, kv_heads = attention.config.num_attention_heads, attention.config.num_key_value_heads
        parts = attention.qkv_proj.weight.split([heads * head, kv_heads * head, kv_heads * head])
        found |= {f"attn_{part}.weight": value for part, value in zip("qkv", parts, strict=True)}
        found["ffn_gate.weight"], found["ffn_up.weight"] = mlp.gate_up_proj.weight.chunk(2)
    else:
        for part in "qkv":
            add(f"attn_{part}", getattr(attention, f"{part}_proj"))
        add("ffn_gate", mlp.gate_proj)
        add("ffn_up", mlp.up_proj)
    for part in "qk":
        if hasattr(attention, f"{part}_norm"):
            add(f"attn_{part}_norm", getattr(attention, f"{part}_norm"))
    add("attn_output", attention.o_proj)
    add("ffn_down", mlp.down_proj)
    return {name: value.detach().numpy() for name, value in found.items()}


def _gpt2_layer(block: torch.nn.Module) -> dict[str, np.ndarray]:
    found = {f"attn_norm.{kind}": getattr(block.ln_1, kind) for kind in ("weight", "bias")}
    found |= {f"ffn_norm.{kind}": getattr(block.ln_2, kind) for kind in ("weight", "bias")}
    for part, weight, bias in zip("qkv", block.attn.c_attn.weight.T.chunk(3), block.attn.c_attn.bias.chunk(3), strict=True):
        found |= {f"attn_{part}.weight": weight, f"attn_{part}.bias": bias}
    for name, module in (("attn_output", block.attn.c_proj), ("ffn_up", block.mlp.c_fc), ("ffn_down", block.mlp.c_proj)):
        found |= {f"{name}.weight": module.weight.T, f"{name}.bias": module.bias}
    return {name: value.detach().numpy() for name, value in found.items()}


def write_gguf(path: Path, made: "transformers.PreTrainedModel", kind: str = "F32") -> Path:
    """A GGUF file of the model; matrices are stored as `kind`, vectors as F32. The vocabulary has no meaning."""
    config = made.config
    architecture = {"mistral": "llama", "gemma3_text": "gemma3"}.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_token_list([f"t{i}" for i in range(config.vocab_size)])
    if architecture == "gpt2":
        writer.add_feed_forward_length(4 * config.hidden_size)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    else:
        _numbers(writer, config, architecture)
    stored = gguf.GGMLQuantizationType[kind]
    for name, values in _tensors(made, architecture).items():
        flat = values.ndim == 1 or kind == "F32"
        data = np.ascontiguousarray(values, np.float32)
        writer.add_tensor(name, data if flat else gguf.quants.quantize(data, stored), raw_dtype=None if flat else stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _numbers(writer: gguf.GGUFWriter, config: "transformers.PreTrainedConfig", architecture: str) -> None:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(head_dim)
    if head_dim * config.num_attention_heads != config.hidden_size or architecture.startswith("gemma"):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    parameters = config.rope_parameters
    window_layers = getattr(config, "layer_types", None) is None or "sliding_attention" in config.layer_types
    if getattr(config, "sliding_window", None) and window_layers:
        writer.add_sliding_window(config.sliding_window)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    full = parameters.get("full_attention", parameters)
    writer.add_rope_freq_base(full["rope_theta"])
    if full["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(full["factor"])
    if full["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(full["factor"])
        writer.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
    if full["rope_type"] == "longrope":
        original = full["original_max_position_embeddings"]
        scale = config.max_position_embeddings / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(scale) / np.log(original))))


def _tensors(made: "transformers.PreTrainedModel", architecture: str) -> dict[str, np.ndarray]:
    config = made.config
    found = ends_of(made)
    for i, layer in enumerate(layers_of(made)):
        if architecture == "llama":
            layer |= {name: _permuted(value, config.num_attention_heads) for name, value in layer.items() if name.startswith("attn_q.")}
            layer |= {name: _permuted(value, config.num_key_value_heads) for name, value in layer.items() if name.startswith("attn_k.")}
        if architecture in ("phi3", "gpt2"):
            for suffix in ("weight", "bias") if architecture == "gpt2" else ("weight",):
                layer[f"attn_qkv.{suffix}"] = np.concatenate([layer.pop(f"attn_{part}.{suffix}") for part in "qkv"])
        if architecture == "phi3":
            layer["ffn_up.weight"] = np.concatenate([layer.pop("ffn_gate.weight"), layer["ffn_up.weight"]])
        found |= {f"blk.{i}.{name}": value for name, value in layer.items()}
    parameters = {} if architecture == "gpt2" else config.rope_parameters
    if parameters.get("rope_type") == "llama3":
        found["rope_freqs.weight"] = _llama3_factors(config.head_dim, parameters)
    if parameters.get("rope_type") == "longrope":
        found |= {f"rope_factors_{kind}.weight": np.array(parameters[f"{kind}_factor"], np.float32) for kind in ("long", "short")}
    return found


def _permuted(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows in the order of pairwise RoPE, as llama.cpp's converter writes Q and K of Llama."""
    return values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _llama3_factors(dim: int, parameters: dict[str, float]) -> np.ndarray:
    """`rope_freqs`, as llama.cpp's converter computes it."""
    low, high, factor = (parameters[key] for key in ("low_freq_factor", "high_freq_factor", "factor"))
    context = parameters["original_max_position_embeddings"]
    factors = []
    for frequency in 1.0 / parameters["rope_theta"] ** (np.arange(0, dim, 2, dtype=np.float32) / dim):
        wavelength = 2 * np.pi / frequency
        smooth = (context / wavelength - low) / (high - low)
        slow, fast = wavelength > context / low, wavelength < context / high
        factors.append(factor if slow else 1.0 if fast else 1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)
