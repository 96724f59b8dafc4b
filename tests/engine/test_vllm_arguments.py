"""vLLM's arguments, all of them: each means the same here, asks for nothing, or is refused by its name with what to use instead.

A table of vLLM 0.11 to 0.14 (and of older arguments that scripts still have): name → its default there, and another value.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest

from ridgeline import LLM, BeamSearchParams, PoolingParams, SamplingParams, StructuredOutputsParams
from ridgeline.config.arguments import read_arguments
from ridgeline.config.groups import EngineConfig, public_fields
from ridgeline.core.arguments import OTHERS
from ridgeline.errors import ConfigError, RequestError

Table = Mapping[str, tuple[Any, Any]]

SETTINGS: Table = {
    # ── the model ──
    "tokenizer": (None, "org/other"), "tokenizer_mode": ("auto", "mistral"), "skip_tokenizer_init": (False, True),
    "trust_remote_code": (False, True), "runner": ("auto", "pooling"), "convert": ("auto", "classify"), "task": ("auto", "classify"),
    "dtype": ("auto", "bfloat16"), "quantization": (None, "fp8"), "revision": (None, "v2"), "code_revision": (None, "v2"),
    "tokenizer_revision": (None, "v2"), "hf_config_path": (None, "x"), "hf_token": (None, "hush"), "hf_overrides": (None, {"a": 1}),
    "download_dir": (None, "/x"), "load_format": ("auto", "pt"), "config_format": ("auto", "mistral"),
    "model_impl": ("auto", "transformers"), "safetensors_load_strategy": ("lazy", "eager"), "model_loader_extra_config": ({}, {"a": 1}),
    "ignore_patterns": (None, "*.bin"), "pt_load_map_location": ("cpu", "cuda"), "allow_deprecated_quantization": (False, True),
    "rope_scaling": (None, {"a": 1}), "rope_theta": (None, 5.0), "served_model_name": (None, "x"), "generation_config": ("auto", "none"),
    "override_generation_config": ({}, {"a": 1}), "pooler_config": (None, {"a": 1}), "override_pooler_config": (None, {"a": 1}),
    "enable_prompt_embeds": (False, True), "seed": (0, 3), "max_model_len": (None, 512), "disable_sliding_window": (False, True),
    # ── devices ──
    "device": ("auto", "tpu"), "tensor_parallel_size": (1, 2), "pipeline_parallel_size": (1, 2), "data_parallel_size": (1, 2),
    "decode_context_parallel_size": (1, 2), "prefill_context_parallel_size": (1, 2), "dcp_kv_cache_interleave_size": (1, 2),
    "cp_kv_cache_interleave_size": (1, 2), "distributed_executor_backend": (None, "ray"), "nnodes": (1, 2), "node_rank": (0, 1),
    "master_addr": ("127.0.0.1", "x"), "master_port": (29501, 1), "data_parallel_rank": (None, 1), "data_parallel_start_rank": (None, 1),
    "data_parallel_size_local": (None, 2), "data_parallel_address": (None, "x"), "data_parallel_rpc_port": (None, 1),
    "data_parallel_hybrid_lb": (False, True), "data_parallel_external_lb": (False, True), "data_parallel_backend": ("mp", "ray"),
    "enable_expert_parallel": (False, True), "all2all_backend": (None, "naive"), "enable_dbo": (False, True),
    "dbo_decode_token_threshold": (32, 1), "dbo_prefill_token_threshold": (512, 1), "enable_eplb": (False, True),
    "eplb_config": (None, {"a": 1}), "expert_placement_strategy": ("linear", "round_robin"), "max_parallel_loading_workers": (None, 2),
    "ray_workers_use_nsight": (False, True), "disable_custom_all_reduce": (False, True), "worker_cls": ("auto", "x.Y"),
    "worker_extension_cls": ("", "x.Y"), "scheduler_cls": (None, "x.Y"), "ubatch_size": (0, 8),
    # ── memory and steps ──
    "gpu_memory_utilization": (0.9, 0.3), "swap_space": (0, 1), "cpu_offload_gb": (0, 2), "offload_group_size": (0, 2),
    "offload_num_in_group": (1, 2), "offload_prefetch_step": (1, 2), "offload_params": (None, "x"),
    "kv_cache_memory_bytes": (None, "1GiB"), "kv_cache_dtype": ("auto", "bf16"), "calculate_kv_scales": (False, True),
    "block_size": (None, 32), "enable_prefix_caching": (True, False), "prefix_caching_hash_algo": ("sha256", "xxhash"),
    "num_gpu_blocks_override": (None, 9), "kv_offloading_size": (None, 2), "kv_offloading_backend": ("native", "lmcache"),
    "kv_transfer_config": (None, {"a": 1}), "kv_events_config": (None, {"a": 1}), "ec_transfer_config": (None, {"a": 1}),
    "kv_sharing_fast_prefill": (False, True), "disable_hybrid_kv_cache_manager": (False, True), "mamba_cache_dtype": ("auto", "float32"),
    "mamba_ssm_cache_dtype": ("auto", "x"), "mamba_block_size": (None, 8), "mamba_cache_mode": ("none", "all"),
    "max_num_batched_tokens": (None, 256), "max_num_seqs": (None, 8), "max_num_partial_prefills": (1, 2),
    "max_long_partial_prefills": (1, 2), "long_prefill_token_threshold": (0, 9), "enable_chunked_prefill": (None, False),
    "scheduling_policy": ("fcfs", "priority"), "preemption_mode": (None, "swap"), "num_scheduler_steps": (1, 4),
    "num_lookahead_slots": (0, 2), "async_scheduling": (None, True), "disable_async_output_proc": (False, True),
    "stream_interval": (1, 4), "enforce_eager": (False, True), "max_seq_len_to_capture": (8192, 9),
    "cudagraph_capture_sizes": (None, [1]), "max_cudagraph_capture_size": (None, 8), "compilation_config": (None, 3),
    "optimization_level": (2, 3), "performance_mode": ("balanced", "x"), "attention_backend": (None, "x"),
    "attention_config": (None, {"a": 1}), "kernel_config": (None, {"a": 1}), "enable_flashinfer_autotune": (True, True),
    "disable_cascade_attn": (False, True), "override_attention_dtype": (None, "x"),
    # ── adapters, drafts, structure ──
    "enable_lora": (False, True), "max_loras": (1, 2), "max_lora_rank": (16, 8), "max_cpu_loras": (None, 4),
    "lora_dtype": ("auto", "float16"), "fully_sharded_loras": (False, True), "default_mm_loras": (None, {"a": 1}),
    "speculative_config": (None, {"a": 1}), "structured_outputs_config": (None, {"a": 1}),
    "guided_decoding_backend": ("auto", "outlines"), "reasoning_parser": ("", "qwen3"), "reasoning_parser_plugin": ("", "x.py"),
    "chat_template": (None, "x.jinja"), "logits_processors": (None, ["x.Y"]), "logits_processor_pattern": (None, "x"),
    "logprobs_mode": ("raw_logprobs", "raw_logits"), "max_logprobs": (20, 100),
    # ── images and sound ──
    "limit_mm_per_prompt": ({}, {"image": 1}), "allowed_local_media_path": ("", "/x"), "allowed_media_domains": (None, ["x"]),
    "mm_processor_kwargs": (None, {"a": 1}), "media_io_kwargs": ({}, {"a": 1}), "mm_processor_cache_gb": (4, 1),
    "mm_processor_cache_type": ("lru", "shm"), "mm_shm_cache_max_object_size_mb": (128, 1), "mm_encoder_only": (False, True),
    "mm_encoder_tp_mode": ("weights", "data"), "mm_encoder_attn_backend": (None, "x"), "enable_mm_embeds": (False, True),
    "interleave_mm_strings": (False, True), "skip_mm_profiling": (False, True), "video_pruning_rate": (None, 0.5),
    "disable_chunked_mm_input": (False, True), "enable_mm_processor_stats": (False, True), "io_processor_plugin": (None, "x"),
    # ── what it tells ──
    "disable_log_stats": (True, False), "aggregate_engine_logging": (False, True), "show_hidden_metrics_for_version": (None, "0.1"),
    "otlp_traces_endpoint": (None, "http://x"), "collect_detailed_traces": (None, "all"), "kv_cache_metrics": (False, True),
    "kv_cache_metrics_sample": (0.01, 1.0), "cudagraph_metrics": (False, True), "enable_layerwise_nvtx_tracing": (False, True),
    "enable_mfu_metrics": (False, True), "enable_logging_iteration_details": (False, True), "profiler_config": (None, {"a": 1}),
    "enable_sleep_mode": (False, True), "enable_return_routed_experts": (False, True), "weight_transfer_config": (None, {"a": 1}),
    "additional_config": ({}, {"a": 1}), "use_tqdm_on_load": (True, False), "tokens_only": (False, True),
}  # fmt: skip
OF_LLM = {"chat_template", "generation_config"}
"""Arguments of `LLM` that are no settings of the engine."""

SAMPLING: Table = {
    "n": (1, 2), "best_of": (None, 2), "presence_penalty": (0.0, 0.5), "frequency_penalty": (0.0, 0.5), "repetition_penalty": (1.0, 1.1),
    "temperature": (1.0, 0.5), "top_p": (1.0, 0.9), "top_k": (0, 5), "min_p": (0.0, 0.1), "seed": (None, 3), "stop": (None, ["x"]),
    "stop_token_ids": (None, [5]), "ignore_eos": (False, True), "max_tokens": (16, 3), "min_tokens": (0, 1), "logprobs": (None, 1),
    "prompt_logprobs": (None, 1), "prompt_logprob_token_ids": (None, [1]), "prompt_logprob_start": (None, 1),
    "logprob_token_ids": (None, [1]), "flat_logprobs": (False, True), "detokenize": (True, False), "skip_special_tokens": (True, False),
    "spaces_between_special_tokens": (True, False), "include_stop_str_in_output": (False, True), "output_kind": (None, 1),
    "stream_interval": (None, 4), "skip_clone": (False, True), "output_text_buffer_length": (0, 1),
    "structured_outputs": (None, StructuredOutputsParams(regex="a+")), "logit_bias": (None, {65: 1.0}),
    "allowed_token_ids": (None, [65, 66]), "extra_args": (None, {"a": 1}), "bad_words": (None, ["zz"]),
    "skip_reading_prefix_cache": (None, True), "thinking_token_budget": (None, 3), "repetition_detection": (None, {"a": 1}),
    "routed_experts_prompt_start": (0, 1), "trace_decode_token_ids": (None, [1]), "truncate_prompt_tokens": (None, 3),
    "guided_decoding": (None, {"a": 1}), "logits_processors": (None, [print]), "use_beam_search": (False, True),
    "length_penalty": (1.0, 2.0), "early_stopping": (False, True),
}  # fmt: skip
STRUCTURED: Table = {
    "json": (None, {"type": "object"}), "regex": (None, "a"), "choice": (None, ["a"]), "grammar": (None, 'root ::= "a"'),
    "json_object": (None, True), "structural_tag": (None, "{}"), "whitespace_pattern": (None, " ?"),
    "disable_any_whitespace": (False, True), "disable_additional_properties": (False, True), "disable_fallback": (False, True),
}  # fmt: skip
BEAMS: Table = {
    "ignore_eos": (False, True), "temperature": (0.0, 1.0), "length_penalty": (1.0, 2.0), "include_stop_str_in_output": (False, True)
}  # fmt: skip
POOLING: Table = {
    "truncate_prompt_tokens": (None, 3), "dimensions": (None, 3), "normalize": (True, False), "softmax": (None, True),
    "activation": (None, False), "use_activation": (None, False), "step_tag_id": (None, 1), "returned_token_ids": (None, [1]),
    "task": (None, "classify"), "requires_token_ids": (False, True), "skip_reading_prefix_cache": (None, True),
    "extra_kwargs": (None, {"a": 1}), "output_kind": (None, 1),
}  # fmt: skip
CALL: Table = {
    "use_tqdm": (False, False), "lora_request": (None, "none-such"), "tokenization_kwargs": (None, {"a": 1}),
    "mm_processor_kwargs": (None, {"a": 1})
}  # fmt: skip
CALLS: Mapping[str, Table] = {
    "generate": {
        "sampling_params": (None, SamplingParams(max_tokens=2)), "priority": (None, [1]), "prompt_token_ids": (None, [1]),
        "prompt_adapter_request": (None, 1), "guided_options_request": (None, 1), **CALL,
    },
    "chat": {
        "sampling_params": (None, SamplingParams(max_tokens=2)), "chat_template": (None, "x"),
        "chat_template_content_format": ("auto", "openai"), "add_generation_prompt": (True, False),
        "continue_final_message": (False, True), "tools": (None, []), "chat_template_kwargs": (None, {}),
        **CALL,
    },
    "beam_search": {"lora_request": (None, "x"), "use_tqdm": (False, True), "concurrency_limit": (None, 2)},
    "embed": {"pooling_params": (None, PoolingParams(dimensions=2)), "truncate_prompt_tokens": (None, 2), **CALL},
    "encode": {
        "pooling_params": (None, PoolingParams()), "pooling_task": ("embed", "classify"), "truncate_prompt_tokens": (None, 2), **CALL
    },
    "score": {"chat_template": (None, "x"), "pooling_params": (None, PoolingParams()), "truncate_prompt_tokens": (None, 2), **CALL},
}  # fmt: skip


def held(call: Callable[[], Any], name: str) -> None:
    """The call means something here, or is refused with the argument's name and what to do instead."""
    try:
        call()
    except (ConfigError, RequestError) as error:
        told = str(error)
    else:
        return
    assert name.removesuffix("_request") in told and not re.search("there are:|did you mean|hush", told)


@pytest.mark.parametrize("name", sorted(SETTINGS.keys() - OF_LLM))
def test_a_setting(name: str) -> None:
    by_default, other = SETTINGS[name]
    assert read_arguments("m", {name: None}) == EngineConfig("m")
    if not (name in public_fields(EngineConfig) and by_default is not None):
        assert read_arguments("m", {name: by_default}) == EngineConfig("m"), "vLLM's default asks for nothing"
    held(partial(read_arguments, "m", {name: other}), name)


def test_defaults_all_at_once() -> None:
    """A script that says all that vLLM would do anyhow."""
    settings = {name: by_default for name, (by_default, _) in SETTINGS.items() if name not in OF_LLM}
    assert read_arguments("m", settings).model == "m"


@pytest.mark.parametrize(
    ("make", "table"),
    [
        (SamplingParams, SAMPLING),
        (StructuredOutputsParams, STRUCTURED),
        (partial(BeamSearchParams, 2, 4), BEAMS),
        (PoolingParams, POOLING),
    ],
)
def test_parameters(make: Callable[..., Any], table: Table) -> None:
    make(**{name: by_default for name, (by_default, _) in table.items()})
    for name, (_, other) in table.items():
        held(partial(make, **{name: other}), name)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    template = tmp_path_factory.mktemp("template") / "chat.jinja"
    template.write_text(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    with LLM('fake:{"rows": 4, "vocab": 258}', chat_template=template) as found:
        yield found


@pytest.mark.parametrize("method", CALLS)
def test_calls(llm: LLM, method: str) -> None:
    given: tuple[Any, ...] = ("a",)
    if method == "chat":
        given = ([{"role": "user", "content": "a"}],)
    elif method == "score":
        given = ("a", "b")
    elif method == "beam_search":
        given = ("a", BeamSearchParams(2, 2))
    call = partial(getattr(llm, method), *given)
    call(**{name: by_default for name, (by_default, _) in CALLS[method].items()})
    for name, (_, other) in CALLS[method].items():
        held(partial(call, **{name: other}), name)


def test_none_is_a_default(llm: LLM) -> None:
    """vLLM's None where ours is an empty tuple."""
    plain = SamplingParams(temperature=0, max_tokens=3)
    said = SamplingParams(temperature=0, max_tokens=3, stop=None, stop_token_ids=None, bad_words=None, logit_bias=None)  # type: ignore[arg-type]
    assert llm.generate("a", said)[0].outputs[0].token_ids == llm.generate("a", plain)[0].outputs[0].token_ids


def test_no_line_is_idle() -> None:
    """What is refused here is an argument of vLLM's."""
    theirs = {name for table in (SAMPLING, STRUCTURED, BEAMS, POOLING, *CALLS.values(), SETTINGS) for name in table}
    assert OTHERS.keys() <= theirs
