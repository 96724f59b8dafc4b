"""Frozen groups of settings. Each field is read by exactly one owner; `None` means that `resolve` decides and says why."""

from dataclasses import dataclass

FAKE_PREFIX = "fake:"
"""A model named `fake:{…}` needs no weights: the JSON object holds the arguments of `sim.laws.executor.fake_executor`."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """All that the engine process needs; travels to it as JSON.

    model                  `demo`, or the path of a GGUF file (the first of a split file)
    max_model_len          None: the model's context, shrunk (with a message) to what the KV cache holds
    max_num_seqs           sequences that run at once; None: what suits the runner
    max_num_batched_tokens  tokens in one step; None: what suits the runner
    step_ms                milliseconds that a step may take in which somebody waits for the next token: bounds the prompts' part of it
    kv_cache_memory_bytes  None: the lesser of the need and 30 % of the memory that this process may use
    swap_space             GiB of host memory for blocks of the prefix cache that leave the KV cache; 0: none, they are forgotten
    depth                  steps in flight
    speculative            `ngram`: what followed the last time that a sequence's newest ids stood in it is verified, several ids in a
                           step, where that is quicker; answers stay the same. `off`: nothing is
    num_speculative_tokens  ids verified per sequence and step at most
    runner                 `cuda` (a GPU), `native` (the extension), `numpy`, or `auto`: the first of these that is there
    dtype                  what a GPU computes with: `bf16`, `fp16`, `f32`, or `fp8`: bf16, with matrices of floats as e4m3
    kv_dtype               format of the KV cache: `bf16`, `f32`, `int8`, on a GPU also `fp16` and `fp8`, or `auto`: the runner's own
    batch_invariant        on a GPU: a token's bits do not depend on what else is computed with it; slower. Other runners always are
    attention_backend      of a GPU: `triton` (Ridgeline's), `flash-attention`, `flashinfer` (where installed), or `auto`: Ridgeline's
    threads                that share a step; None: the CPU cores that this process may use
    record                 path of a file that takes every command, plan and result, token ids included; see `engine.record`
    trace                  path of a file for what every thread of the native runner did in every phase of a step, for Perfetto
    step_timeout_seconds   an engine that has work, completes no step and uses no CPU for so long is killed and started anew;
                           one that computes for twenty times as long, too
    """

    model: str
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    step_ms: int = 60
    kv_cache_memory_bytes: int | None = None
    swap_space: float = 0.0
    block_size: int = 16
    enable_prefix_caching: bool = True
    scheduling_policy: str = "fcfs"
    depth: int = 2
    speculative: str = "off"
    num_speculative_tokens: int = 4
    seed: int | None = None
    runner: str = "auto"
    dtype: str = "auto"
    kv_dtype: str = "auto"
    batch_invariant: bool = False
    attention_backend: str = "auto"
    threads: int | None = None
    record: str | None = None
    trace: str | None = None
    step_timeout_seconds: float = 30.0

    @property
    def rows(self) -> int:
        """`max_num_seqs`, once it is settled."""
        assert self.max_num_seqs is not None, "max_num_seqs is open: config.runner settles it"
        return self.max_num_seqs

    @property
    def tokens(self) -> int:
        """`max_num_batched_tokens`, once it is settled."""
        assert self.max_num_batched_tokens is not None, "max_num_batched_tokens is open: config.runner settles it"
        return self.max_num_batched_tokens


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Settings of the front end beside the engine's.

    max_waiting              requests that may wait; beyond them clients get 429
    chat_template            path of a template that replaces the model's
    generation_config        `auto`: the model's defaults for what clients leave out; `none`: Ridgeline's
    sse_keep_alive_interval  seconds without an event after which a stream has a comment, so that proxies keep the connection
    shutdown_timeout         seconds that accepted requests may run on after SIGTERM
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    served_model_name: str | None = None
    max_waiting: int = 256
    chat_template: str | None = None
    generation_config: str = "auto"
    sse_keep_alive_interval: float = 15.0
    shutdown_timeout: float = 30.0
