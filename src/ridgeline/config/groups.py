"""Settings of engine and server, frozen. Each field has one reader; `None` means that `config.resolve` decides."""

from dataclasses import dataclass

FAKE_PREFIX = "fake:"
"""Prefix of a model without weights, `fake:{…}`: the JSON object holds the arguments of `sim.laws.executor.fake_executor`."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of the engine process, sent to it as JSON.

    model                  `demo`, or the path of a GGUF file (the first of a split file)
    max_model_len          None: the model's context, or what the KV cache holds if that is less (with a message)
    max_num_seqs           most running sequences; None: the runner's default
    max_num_batched_tokens  most tokens per step; None: the runner's default
    step_ms                milliseconds per step with decoding sequences; limits the prefill tokens in it
    kv_cache_memory_bytes  None: the need, at most 30 % of the memory that this process may use
    swap_space             GiB of host memory for evicted blocks of the prefix cache; 0: none
    depth                  steps in flight
    speculative            `ngram`: prompt lookup. Ids that followed the last occurrence of the newest ids are drafted, and several are
                           verified per step where that is faster; answers stay the same. `off`: no drafts
    num_speculative_tokens  most drafted ids per sequence and step
    runner                 `cuda` (a GPU), `native` (the extension), `numpy`, or `auto`: the first available one
    dtype                  compute type of a GPU: `bf16`, `fp16`, `f32`, or `fp8`: bf16 with float matrices as e4m3
    kv_dtype               format of the KV cache: `bf16`, `f32`, `int8`, on a GPU also `fp16` and `fp8`, or `auto`: the runner's default
    batch_invariant        on a GPU: a token's bits do not depend on the batch; slower. Other runners always are batch-invariant
    attention_backend      on a GPU: `triton` (Ridgeline's), `flash-attention`, `flashinfer` (if installed), or `auto`: Ridgeline's
    threads                threads per step; None: the CPU cores that this process may use
    record                 path of a file for every command, plan and result, token ids included; see `engine.record`
    trace                  path of a file for a trace of all threads and phases of the native runner, for Perfetto
    expect_sha256          SHA-256 that the weights must have, or the path of a file as sha256sum writes it; None: not checked
    step_timeout_seconds   an engine with work whose executor does not move for this long is killed and restarted; a long step moves
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
    expect_sha256: str | None = None
    step_timeout_seconds: float = 8.0

    @property
    def rows(self) -> int:
        """`max_num_seqs` after resolution."""
        assert self.max_num_seqs is not None, "max_num_seqs is None: config.runner resolves it"
        return self.max_num_seqs

    @property
    def tokens(self) -> int:
        """`max_num_batched_tokens` after resolution."""
        assert self.max_num_batched_tokens is not None, "max_num_batched_tokens is None: config.runner resolves it"
        return self.max_num_batched_tokens


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Settings of the front end.

    max_waiting              most waiting requests; further ones get 429
    chat_template            path of a template that replaces the model's
    generation_config        `auto`: the model's defaults for fields that a request leaves out; `none`: Ridgeline's
    sse_keep_alive_interval  seconds without an event until a stream sends a comment, so that proxies keep the connection
    shutdown_timeout         seconds for accepted requests to finish after SIGTERM
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
