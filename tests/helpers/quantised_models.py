"""Small models of every way to store integers, written as checkpoints."""

from pathlib import Path
from typing import Any

import numpy as np
from checkpoints import VOCAB, Recipe, make_model
from quantised import Quantised, Scheme, write_quantised

from ridgeline.facts.headers.read import read_model_facts
from ridgeline.facts.model import ModelFacts

SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "head_dim": 32}
MODELS = {
    "llama": Recipe("LlamaConfig", SIZES),
    "llama-biases": Recipe("LlamaConfig", {**SIZES, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "qwen2": Recipe("Qwen2Config", SIZES),
    "phi3": Recipe("Phi3Config", {**SIZES, "pad_token_id": 0}),
    "gemma3": Recipe("Gemma3TextConfig", {**SIZES, "query_pre_attn_scalar": 32, "sliding_window": 6}),
    "gpt2": Recipe("GPT2Config", {"hidden_size": 128, "n_inner": 256, "num_hidden_layers": 2}),
}
PARTS = {
    "self_attn.q_proj": ("attn_q",), "self_attn.k_proj": ("attn_k",), "self_attn.v_proj": ("attn_v",), "self_attn.o_proj": ("attn_output",),
    "mlp.gate_proj": ("ffn_gate",), "mlp.up_proj": ("ffn_up",), "mlp.down_proj": ("ffn_down",),
    "self_attn.qkv_proj": ("attn_q", "attn_k", "attn_v"), "mlp.gate_up_proj": ("ffn_gate", "ffn_up"),
    "attn.c_attn": ("attn_q", "attn_k", "attn_v"), "attn.c_proj": ("attn_output",), "mlp.c_fc": ("ffn_up",), "mlp.c_proj": ("ffn_down",),
}  # fmt: skip
PROMPT = np.random.default_rng(4).integers(3, VOCAB, 24).tolist()


def write(directory: Path, model: str, scheme: Scheme, **options: Any) -> tuple[Any, dict[str, Quantised], ModelFacts]:
    """(the model of transformers with the weights that the files stand for, its matrices, our facts)."""
    made = make_model(MODELS[model])
    matrices = write_quantised(directory, made, scheme, **options)
    return made, matrices, read_model_facts(directory)
