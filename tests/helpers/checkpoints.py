"""Tiny random checkpoints of every architecture, made by transformers: config, weights and safetensors files; see `convert.py` for GGUF.

Every weight is random, norms and biases too, so that whatever a model file forgets changes its logits.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

VOCAB, HIDDEN, HEAD_DIM = 288, 64, 16
WINDOW = 6
CONTEXT = 256
PHI3_ORIGINAL = 32
"""Positions of Phi-3's short factors."""

ROUTERS = (".gate.weight", "router.weight", "shared_expert_gate.weight")
"""Ends of their names in transformers."""

_BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "attn_implementation": "eager",
}


def _spread(count: int, low: float, high: float) -> list[float]:
    return np.linspace(low, high, count).round(3).tolist()


_PHI3 = {
    "original_max_position_embeddings": PHI3_ORIGINAL,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "partial_rotary_factor": 0.75,
        "short_factor": _spread(HEAD_DIM * 3 // 8, 1.0, 2.0),
        "long_factor": _spread(HEAD_DIM * 3 // 8, 3.0, 20.0),
    },
}


_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
_SIGMOID = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.7,
    "moe_intermediate_size": 32,
}
_LATENT = {
    **_SIGMOID,
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 8,
    "v_head_dim": 64,
    "rms_norm_eps": 1e-6,
}
"""Latents, and heads of K and of V, of different widths; blocks of Q8_0 fit all of them."""
_MSCALE = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "mscale": 2.0,
    "mscale_all_dim": 2.0,
}
_HALF_ROPE = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
_DELTA = {
    **_EXPERTS,
    "shared_expert_intermediate_size": 64,
    "num_hidden_layers": 4,
    "head_dim": HEAD_DIM,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 32,
}
"""One layer of four attends, and a quarter of its heads turns."""
_GEMMA = {
    "head_dim": HEAD_DIM,
    "query_pre_attn_scalar": HEAD_DIM,
    "sliding_window": WINDOW,
    "num_hidden_layers": 4,
    "hidden_activation": "gelu_pytorch_tanh",
}


@dataclass(frozen=True)
class Recipe:
    """How a tiny model is made.

    config        class of the config in transformers
    settings      its arguments, beside `_BASE`
    stored        data type of the safetensors files: float32, bfloat16 or float16; weights are rounded to it first
    shard_bytes   the most bytes of a file; 0: one file
    lengths       tokens of the prompts
    reach         max_model_len that the rotation is chosen for
    gguf          the architecture that GGUF files of it name; "" where they cannot express it
    read          transformers has a reader of these GGUF files
    exact         the exact runners are tried on it in chunks, in company, after preemption
    """

    config: str
    settings: dict[str, Any]
    stored: str = "float32"
    shard_bytes: int = 0
    lengths: tuple[int, ...] = (30, 1, 5, 23)
    reach: int = CONTEXT
    gguf: str = ""
    read: bool = True
    exact: bool = False


RECIPES: dict[str, Recipe] = {
    "llama2": Recipe("LlamaConfig", {"num_key_value_heads": 4, "rms_norm_eps": 1e-5}, shard_bytes=100_000, gguf="llama"),
    "llama3": Recipe(
        "LlamaConfig", {"tie_word_embeddings": True, "rope_parameters": _LLAMA3_ROPE}, stored="bfloat16", gguf="llama", exact=True
    ),
    "llama-biases": Recipe(
        "LlamaConfig",
        {
            "attention_bias": True,
            "mlp_bias": True,
            "num_key_value_heads": 1,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 3.0},
        },
        gguf="llama",
        exact=True,
    ),
    "mistral": Recipe("MistralConfig", {"sliding_window": WINDOW, "head_dim": 24}, stored="float16", gguf="llama", exact=True),
    "qwen2": Recipe(
        "Qwen2Config",
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}},
        gguf="qwen2",
        exact=True,
    ),
    "qwen2-window": Recipe("Qwen2Config", {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": WINDOW}),
    "qwen3": Recipe("Qwen3Config", {"head_dim": 24, "tie_word_embeddings": True, "rms_norm_eps": 1e-6}, gguf="qwen3", exact=True),
    "qwen3-biases": Recipe("Qwen3Config", {"head_dim": HEAD_DIM, "attention_bias": True}),
    "qwen3moe": Recipe("Qwen3MoeConfig", {**_EXPERTS, "head_dim": 24, "norm_topk_prob": True}, gguf="qwen3moe", exact=True),
    "qwen3moe-some": Recipe(
        "Qwen3MoeConfig",
        {**_EXPERTS, "head_dim": HEAD_DIM, "norm_topk_prob": False, "mlp_only_layers": [1], "attention_bias": True},
        stored="bfloat16",
        shard_bytes=100_000,
    ),
    "gpt_oss": Recipe(
        "GptOssConfig",
        {
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "head_dim": HEAD_DIM,
            "num_hidden_layers": 4,
            "sliding_window": WINDOW,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "truncate": False,
            },
        },
        gguf="gpt-oss",
        read=False,
        exact=True,
    ),
    "qwen2moe": Recipe("Qwen2MoeConfig", {**_EXPERTS, "shared_expert_intermediate_size": 64}, gguf="qwen2moe", exact=True),
    "qwen3next": Recipe("Qwen3NextConfig", _DELTA, gguf="qwen3next", read=False, exact=True),
    "qwen3next-others": Recipe(
        "Qwen3NextConfig",
        {
            **_DELTA,
            "layer_types": ["full_attention", "linear_attention", "full_attention", "linear_attention"],
            "mlp_only_layers": [2],
            "linear_key_head_dim": 24,
            "linear_num_value_heads": 6,
            "linear_conv_kernel_dim": 3,
            "attention_bias": True,
            "norm_topk_prob": False,
            "tie_word_embeddings": True,
            "rope_parameters": _HALF_ROPE,
        },
        stored="bfloat16",
        shard_bytes=100_000,
        lengths=(29, 1, 5, 23),  # of 30 one vector is so short that fp32 alone moves its logits by 1e-4
    ),
    "mixtral": Recipe("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}, gguf="llama", read=False),
    "mixtral-window": Recipe("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW}),
    "olmoe": Recipe("OlmoeConfig", {**_EXPERTS, "intermediate_size": 32}, gguf="olmoe", read=False),
    "granitemoe": Recipe(
        "GraniteMoeConfig",
        {
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.2,
            "logits_scaling": 0.7,
        },
        gguf="granitemoe",
        read=False,
        exact=True,
    ),
    "glm4moe": Recipe(
        "Glm4MoeConfig",
        {**_SIGMOID, "head_dim": HEAD_DIM, "attention_bias": True, "use_qk_norm": True, "rope_parameters": _HALF_ROPE},
        gguf="glm4moe",
        read=False,
        exact=True,
    ),
    "glm4moe-plain": Recipe("Glm4MoeConfig", {**_SIGMOID, "head_dim": 24, "rope_parameters": _HALF_ROPE, "norm_topk_prob": False}),
    "dots1": Recipe("Dots1Config", {**_SIGMOID, "sliding_window": None}, gguf="dots1", read=False),
    "dots1-window": Recipe("Dots1Config", {**_SIGMOID, "sliding_window": WINDOW, "max_window_layers": 1}),
    "ernie": Recipe(
        "Ernie4_5_MoeConfig",
        {
            "moe_num_experts": 6,
            "moe_k": 3,
            "moe_intermediate_size": 32,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": 2,
            "num_hidden_layers": 4,
            "tie_word_embeddings": True,
        },
        gguf="ernie4_5-moe",
        read=False,
    ),
    "deepseek2": Recipe(
        "DeepseekV2Config",
        {**_LATENT, "q_lora_rank": None, "norm_topk_prob": False, "topk_method": "group_limited_greedy", "rope_parameters": _MSCALE},
        gguf="deepseek2",
        read=False,
        exact=True,
    ),
    "deepseek2-greedy": Recipe(
        "DeepseekV2Config",
        {**_LATENT, "q_lora_rank": 32, "norm_topk_prob": False, "topk_method": "greedy", "rope_parameters": {**_MSCALE, "mscale": 1.0}},
        stored="bfloat16",
        shard_bytes=100_000,
    ),
    "deepseek3": Recipe("DeepseekV3Config", {**_LATENT, "q_lora_rank": 32}, gguf="deepseek2", read=False, exact=True),
    "gemma2": Recipe("Gemma2Config", {**_GEMMA, "attn_logit_softcapping": 0.7, "final_logit_softcapping": 3.0}, gguf="gemma2", exact=True),
    "gemma2-scale": Recipe("Gemma2Config", {**_GEMMA, "query_pre_attn_scalar": 50, "attn_logit_softcapping": None}),
    "gemma3": Recipe(
        "Gemma3TextConfig",
        {
            **_GEMMA,
            "num_hidden_layers": 7,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
        gguf="gemma3",
        exact=True,
    ),
    "phi3-short": Recipe("Phi3Config", {**_PHI3, "sliding_window": 20}, reach=PHI3_ORIGINAL, gguf="phi3"),
    "phi3-long": Recipe("Phi3Config", {**_PHI3, "sliding_window": None}, lengths=(50, 33, 40), gguf="phi3", exact=True),
    "olmo2": Recipe("Olmo2Config", {}, gguf="olmo2", read=False, exact=True),
    "olmo2-biases": Recipe("Olmo2Config", {"attention_bias": True, "tie_word_embeddings": True}),
    "gpt2": Recipe("GPT2Config", {"n_inner": 128, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-4}, gguf="gpt2", exact=True),
    "starcoder2": Recipe("Starcoder2Config", {"sliding_window": WINDOW, "norm_epsilon": 1e-4}, gguf="starcoder2", exact=True),
    "starcoder2-plain": Recipe("Starcoder2Config", {"use_bias": False, "tie_word_embeddings": False}, gguf="starcoder2"),
}
"""Name → recipe; one line for each trap that a family sets."""

GGUFS = [name for name, recipe in RECIPES.items() if recipe.gguf]


@dataclass
class Checkpoint:
    """A tiny model of transformers (fp32, in memory) and its directory of safetensors files."""

    name: str
    recipe: Recipe
    model: Any
    directory: Path
    _logits: dict[tuple[int, ...], np.ndarray] = field(default_factory=dict)

    def prompts(self) -> list[list[int]]:
        """Ids of the recipe's lengths."""
        return [np.random.default_rng(length).integers(0, VOCAB, length).tolist() for length in self.recipe.lengths]

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """Logits [tokens, vocabulary] by transformers."""
        if tuple(ids) not in self._logits:
            self._logits[tuple(ids)] = logits_of(self.model, ids)
        return self._logits[tuple(ids)]


def make_checkpoint(name: str, directory: Path) -> Checkpoint:
    """The model of a recipe, saved to `directory`."""
    import torch

    recipe = RECIPES[name]
    model = make_model(recipe)
    # A copy: the model that is compared with keeps its rotations in fp32.
    saved = copy.deepcopy(model).to(getattr(torch, recipe.stored))
    saved.save_pretrained(directory, **({"max_shard_size": recipe.shard_bytes} if recipe.shard_bytes else {}))
    return Checkpoint(name, recipe, model, directory)


def make_model(recipe: Recipe) -> Any:
    """A model of transformers with random weights that its stored data type can hold."""
    import torch
    import transformers

    settings = {**_BASE, **recipe.settings}
    if recipe.config == "GPT2Config":
        settings["n_positions"] = settings.pop("max_position_embeddings")
        del settings["num_key_value_heads"], settings["intermediate_size"]
    config = getattr(transformers, recipe.config)(**settings)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    random = np.random.default_rng(5)
    stored = getattr(torch, recipe.stored)
    with torch.no_grad():
        biases = [(key, value) for key, value in model.named_buffers() if key.endswith("e_score_correction_bias")]
        for key, value in (*model.named_parameters(), *biases):
            value.copy_(_random(key, tuple(value.shape), recipe.config, random.standard_normal).to(stored))
    model.tie_weights()
    return model


def _random(key: str, shape: tuple[int, ...], config: str, normal: Callable[[tuple[int, ...]], np.ndarray]) -> Any:
    import torch

    values = normal(shape)
    if key.endswith((".bias", "_bias")):
        values *= 0.3
    elif key.endswith("A_log"):
        values -= 2  # most of a state is kept from token to token
    elif len(shape) == 1:
        less_one = config.startswith(("Gemma", "Qwen3Next")) and not key.endswith("linear_attn.norm.weight")
        values = 0.2 * values + (0 if less_one else 1)
    elif "embed" in key or ".wte" in key or ".wpe" in key:
        values *= 0.3
    else:
        # Queries and keys are large, so that attention looks at few keys and every detail of it shows.
        gain = 1.6 if any(part in key for part in ("q_proj", "k_proj", "qkv", "c_attn", "q_b_proj", "kv_")) else 1.0
        inputs = shape[0] if config == "GPT2Config" and "lm_head" not in key else shape[-1]
        # Routers too: near ties would turn into other experts.
        values *= (4.0 if key.endswith(ROUTERS) else gain) * inputs**-0.5
    return torch.from_numpy(values.astype(np.float32))


def logits_of(model: Any, ids: Sequence[int]) -> np.ndarray:
    """Logits [tokens, vocabulary] of one sequence by a model of transformers, in one pass without a cache."""
    import torch

    with torch.no_grad():
        return model(torch.tensor([list(ids)]), use_cache=False).logits[0].numpy()
