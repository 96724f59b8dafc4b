"""Fields that clients of OpenAI's API, vLLM, SGLang and llama.cpp send and that no endpoint acts on, as data.

Unsupported ones have the values, beside null, that ask for nothing; any other value is rejected by name (`server.body`), since it would
change the answer. Those without effect are taken silently. Every other name is unknown: ignored, and told (`server.notes`).
"""

from collections.abc import Mapping
from typing import Final

Fields = Mapping[str, tuple[object, ...]]

_OFF, _NONE = (False,), (0,)
_SAMPLERS: Final[Fields] = {
    "adaptive_target": (-1,),
    "dry_multiplier": _NONE,
    "dynatemp_range": _NONE,
    "mirostat": _NONE,
    "no_repeat_ngram_size": _NONE,
    "repeat_penalty": (1,),
    "samplers": ([],),
    "tfs_z": (1,),
    "top_a": _NONE,
    "top_n_sigma": (-1, 0),
    "typ_p": (1,),
    "typical_p": (1,),
    "xtc_probability": _NONE,
}
_GENERATION: Final[Fields] = {
    "format": ("",),
    **_SAMPLERS,
    "image_data": ([],),
    "kv_transfer_params": (),
    "logprob_token_ids": ([],),
    "lora": ([],),
    "max_new_tokens": (),
    "n_indent": _NONE,
    "n_probs": _NONE,
    "num_predict": (),
    "repetition_detection": (),
    "return_prompt_text": _OFF,
    "spaces_between_special_tokens": (True,),
    "stream_interval": (1,),
    "t_max_predict_ms": _NONE,
    "vllm_xargs": ({},),
    "watermarking": _OFF,
}
REASONS: Final[Mapping[str, str]] = {
    "chat_template": "chat_template is never taken from a request; start the server with --chat-template FILE",
    "max_new_tokens": "max_new_tokens is not supported by this server; send max_tokens",
    "n_probs": "n_probs is not supported by this server; send logprobs",
    "num_predict": "num_predict is not supported by this server; send max_tokens",
    "repeat_penalty": "repeat_penalty is not supported by this server; send repetition_penalty, which counts the whole prompt and output",
    "format": "format is not supported by this server; send response_format",
}

COMPLETION: Final[Fields] = {
    **_GENERATION,
    "prompt_embeds": (),
    "think": _OFF,
    "thinking": ({"type": "disabled"},),
    "truncation_side": ("left",),
}
CHAT: Final[Fields] = {
    **_GENERATION,
    "add_special_tokens": _OFF,
    "audio": (),
    "chat_template": (),
    "echo": _OFF,
    "function_call": ("none",),
    "functions": ([],),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "prediction": (),
    "truncate_prompt_tokens": (),
    "verbosity": (),
    "web_search_options": (),
}
TOKENIZE: Final[Fields] = {"chat_template": (), "mm_processor_kwargs": ({},)}
POOLING: Final[Fields] = {
    "chat_template": (),
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "messages": (),
    "mm_processor_kwargs": ({},),
    "normalize": (True,),
    "task": ("embed", "score"),
    "use_activation": (True,),
}
"""Fields of requests for vectors."""
MESSAGES: Final[Fields] = {
    "compaction": (),
    "container": (),
    "mcp_servers": ([],),
}

GGML_EMBEDDING: Final[Fields] = {"embd_normalize": (2,), "encoding_format": ("float",)}
"""Vectors have the length 1 and come as numbers."""

_OWN: Final = ("n_probs", "repeat_penalty")
_NOTED: Final = ("samplers", "t_max_predict_ms", "n_indent")
"""Fields that editors send with every request: ignored, and told."""
GGML: Final[Fields] = {
    **{name: values for name, values in COMPLETION.items() if name not in (*_OWN, *_NOTED)},
    "n_cmpl": (1,),
    "post_sampling_probs": _OFF,
}
OLLAMA: Final[Fields] = {
    **{f"options.{name}": values for name, values in _SAMPLERS.items() if name != "repeat_penalty"},
    "options.penalize_newline": (True,),
    "shift": (True, False),
}
OLLAMA_GENERATE: Final[Fields] = {
    **OLLAMA,
    "context": ([],),
    "images": ([],),
    "template": ("",),
    "width": _NONE,
    "height": _NONE,
    "steps": _NONE,
}
OLLAMA_REASONS: Final[Mapping[str, str]] = {
    "context": "context is not supported by this server; send the conversation to /api/chat",
    "template": "template is never taken from a request; start the server with --chat-template FILE, or send raw: true",
    "images": "images is not supported by this server; send text",
}

RESPONSES: Final[Fields] = {
    **_SAMPLERS,
    "context_management": ([],),
    "conversation": (),
    "max_tokens": (),
    "messages": (),
    "moderation": (),
    "n": (1,),
    "prompt": (),
    "response_format": ({"type": "text"},),
}
RESPONSES_REASONS: Final[Mapping[str, str]] = {
    "conversation": "conversation is not supported by this server; send previous_response_id",
    "max_tokens": "max_tokens is a field of chat; send max_output_tokens",
    "messages": "messages is a field of chat; send input",
    "repeat_penalty": REASONS["repeat_penalty"],
    "response_format": "response_format is a field of chat; send text.format",
}

WITHOUT_EFFECT: Final = frozenset({
    # who asks, and how it is billed or stored elsewhere
    "billing_policy", "diagnostics", "fallback_credit_token", "fallbacks", "user_profile_id", "workspace_id",
    "client_metadata", "metadata", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier",
    "service_tier", "session_id", "store", "user",
    # how a server is to compute or keep what it computed
    "cache_control", "cache_prompt", "inference_geo", "id_slot", "keep_alive", "n_keep", "speed",
    # details of samplers that are off
    "adaptive_decay", "dry_allowed_length", "dry_base", "dry_penalty_last_n", "dry_sequence_breakers", "dynatemp_exponent", "min_keep",
    "mirostat_eta", "mirostat_tau", "repeat_last_n", "timings_per_token", "return_progress", "n_cache_reuse", "n_discard", "xtc_threshold",
    # of the loading of a model, as Ollama's clients send them
    *(f"options.{name}" for name in (
        "num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "low_vram", "f16_kv", "logits_all", "vocab_only", "use_mmap",
        "use_mlock", "embedding_only",
    )), "verbose",
    # of a stream, and of reasoning, which completions do not split off
    "include_reasoning", "stream_options.include_obfuscation",
})  # fmt: skip
"""Known names whose values change no answer."""
