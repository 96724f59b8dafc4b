"""Settings of engine and server, frozen. A setting is one field here: its flag, its `RIDGELINE_*` variable, its key in a file, its line of
help and its entry in `config explain` are made of it. `None` means that `config.resolve` decides."""

from dataclasses import Field, dataclass, field, fields
from typing import Any, Final

from ridgeline.config.setting import Setting, setting_of
from ridgeline.config.setting import described as _set

FAKE_PREFIX: Final = "fake:"
"""Prefix of a model without weights, `fake:{…}`: the JSON object holds the arguments of `sim.laws.executor.fake_executor`."""

_LEAST: Final = {"-1": "auto"}
_DTYPES: Final = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "f16": "fp16", "float": "f32", "float32": "f32",
    "fp8_e4m3": "fp8", "q8_0": "int8"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of the engine process, sent to it as JSON: there is no secret among them."""

    model: str = field(metadata={"setting": Setting("`demo`, a GGUF file, a model directory, or a name of the hub (org/name).")})
    max_model_len: int | None = _set(
        None, "Tokens of prompt and output [what model and cache hold].", "the cost is one such sequence, and its last token",
        'finish_reason "length" where users wanted more, 400 context_length_exceeded: too short', unit="tokens", also=_LEAST,
    )  # fmt: skip
    max_num_seqs: int | None = _set(
        None, "Sequences that run at once [64, on a GPU 256].", "the cost is a step with all of them at half the context",
        "vllm:num_requests_waiting > 0 while vllm:kv_cache_usage_perc < 0.8: too few; vllm:inter_token_latency_seconds too high: too many",
        bounds=(1, 4_096),
    )  # fmt: skip
    max_num_batched_tokens: int | None = _set(
        None, "Tokens in one step [512, on a GPU 8192].",
        "the cost is a step of prefill alone; steps that also decode have fewer tokens (step_ms)",
        "vllm:inter_token_latency_seconds p99 far above p50: too many; vllm:time_to_first_token_seconds too high: too few",
        unit="tokens", bounds=(1, 1 << 20),
    )  # fmt: skip
    step_ms: int = _set(
        60, "Milliseconds that a step with decode rows may take.", "bounds the time that prefill adds to steps with decoding sequences",
        "ridgeline_late_steps grows: too many sequences, or too short; vllm:time_to_first_token_seconds too high: too short",
        bounds=(1, 60_000),
    )  # fmt: skip
    kv_cache_memory_bytes: int | None = _set(
        None, "Memory of the KV cache [as needed, up to 30 % of all; on a GPU what is left].", "all blocks together",
        "vllm:kv_cache_usage_perc > 0.9, or vllm:num_preemptions growing: too small", unit="bytes",
    )  # fmt: skip
    swap_space: float = _set(
        0.0, "GiB of host memory for evicted KV blocks.",
        "evicted KV blocks are copied back instead of computed again; on a CPU a larger KV cache serves better",
        "ridgeline_evicted_blocks and vllm:num_preemptions growing: too small; ridgeline_host_cache_hits stays 0: too large", unit="GiB",
    )  # fmt: skip
    expert_memory: float = _set(
        0.0, "GiB of memory for experts of a sparse model; others are read from disk [all].", "models larger than memory run (native)",
        "ridgeline_expert_misses and ridgeline_expert_wait_seconds grow with every token: too small", unit="GiB",
    )  # fmt: skip
    kv_cache_dir: str | None = _set(
        None, "Folder for KV blocks that outlive the engine, made where there is none.",
        "prompts that were computed before a restart are read instead of computed again; one engine per folder and model",
        "ridgeline_tier_fetched_blocks stays 0 behind a restart: another secret; ridgeline_tier_dropped_blocks grows: a slow disk",
        unit="FOLDER",
    )  # fmt: skip
    kv_cache_dir_bytes: int = _set(4 << 30, "Bytes of the blocks in --kv-cache-dir.", "what is asked for least makes room",
        "the disk fills up: too many", unit="bytes", bounds=(1 << 20, 1 << 50))  # fmt: skip
    kv_cache_redis: str | None = _set(
        None, "Redis or Valkey server for KV blocks that engines share: unix:///path, rediss://host:port, redis://127.0.0.1:port.",
        "an engine finds what another has computed; needs ridgeline[redis], and --kv-cache-secret-file where they share no folder",
        "ridgeline_tier_failures grows: slow, or gone", unit="URL",
    )  # fmt: skip
    kv_cache_redis_password_file: str | None = _set(None, "File with the password of --kv-cache-redis.",
        "others see what stands in a URL", "ridgeline_tier_failures grows: another", unit="FILE")  # fmt: skip
    kv_cache_listen: str | None = _set(
        None, "Address at which other engines with the same secret ask for KV blocks, as HOST:PORT or HOST:PORT=GIB [1 GiB of them].",
        "blocks travel sealed and not encrypted: loopback, or a network that is", "ridgeline_tier_kept_blocks stays 0", unit="ADDRESS",
    )  # fmt: skip
    kv_cache_peers: tuple[str, ...] = _set(
        (), "Another engine that listens so, as HOST:PORT; may be repeated.", "it finds what they have computed",
        "ridgeline_tier_failures grows: slow, gone, or with another secret", unit="ADDRESS",
    )  # fmt: skip
    kv_cache_secret_file: str | None = _set(
        None, "File with the secret that signs KV blocks in tiers, made where there is none [secret in --kv-cache-dir].",
        "blocks that nobody with the secret has written are not used", "ridgeline_tier_bad_blocks grows: another file, or somebody writes",
        unit="FILE",
    )  # fmt: skip
    kv_cache_numerics: str = _set(
        "same", "same, or any: KV blocks in tiers of engines that say any too, whatever runner, instruction set and KV type they have.",
        "blocks of another KV type are converted, and answers behind them may differ", "ridgeline_tier_fetched_blocks stays 0: same",
        choices=("same", "any"),
    )  # fmt: skip
    block_size: int = _set(
        16, "Tokens in a block of the KV cache.", "the cost is one block; a sequence wastes half a block on average",
        "vllm:prefix_cache_hits low against vllm:prefix_cache_queries: too large", unit="tokens", bounds=(1, 1_024),
    )  # fmt: skip
    enable_prefix_caching: bool = _set(
        True, "Reuse the KV cache of shared prefixes.", "no cost: free blocks keep their content until they are reused",
        "vllm:prefix_cache_hits stays 0 although prompts share beginnings: off",
    )  # fmt: skip
    scheduling_policy: str = _set(
        "fcfs", "fcfs, priority, slo, static or one.",
        "fcfs is fair; priority follows the requests' priority, slo their targets; static and one are for comparison",
        "vllm:request_queue_time_seconds too high for some", choices=("fcfs", "priority", "slo", "static", "one"),
    )  # fmt: skip
    depth: int = _set(
        2, "Steps in flight: two overlap scheduling with computing.", "with two the host plans while the device computes",
        "time between steps longer than a step: too shallow", bounds=(1, 4),
    )  # fmt: skip
    speculative: str = _set(
        "off", "Speculative decoding: ngram (repetition, forced text), suffix (and recent answers), draft (--draft-model), mtp, auto, off.",
        "several drafted ids are verified per step; the same answers, faster for text that repeats itself or its prompt",
        "vllm:spec_decode_num_accepted_tokens far below vllm:spec_decode_num_draft_tokens: off",
        choices=("off", "ngram", "suffix", "draft", "mtp", "auto"),
    )  # fmt: skip
    num_speculative_tokens: int = _set(
        4, "Most drafted ids per sequence and step.", "an upper bound: the number per step adapts to the acceptance",
        "vllm:spec_decode_num_accepted_tokens close to vllm:spec_decode_num_draft_tokens: too few", bounds=(1, 8),
    )  # fmt: skip
    draft_model: str | None = _set(
        None, "What drafts for --speculative draft or auto: a small model with the same texts of tokens, or EAGLE or Medusa heads.",
        "it runs in front of each step that verifies; answers stay the model's own",
        "vllm:spec_decode_num_accepted_tokens below half of vllm:spec_decode_num_draft_tokens: another one",
    )  # fmt: skip
    seed: int | None = _set(
        None, "Seed from which requests without a seed draw theirs.", "requests without a seed derive theirs from it; open: random",
        "answers repeat after a restart: set", bounds=(0, (1 << 63) - 1), also=_LEAST,
    )  # fmt: skip
    runner: str = _set(
        "auto", "cuda, native, numpy, or auto: the first available one.", "a GPU if available, else the native extension, else numpy",
        "`ridgeline doctor` says LOST and names the fix", also={"generate": "auto", "pooling": "auto"},
    )  # fmt: skip
    dtype: str = _set(
        "auto", "On a GPU: bf16, fp16, f32, fp8 (matrices as e4m3), or auto.",
        "compute type of a GPU; other runners compute with the file's own formats", "answers lose quality with fp8: bf16", also=_DTYPES,
    )  # fmt: skip
    kv_dtype: str = _set(
        "auto", "KV cache: bf16, f32, int8, on a GPU fp16, fp8, or auto.", "half the bytes of a token are twice the sequences",
        "vllm:kv_cache_usage_perc > 0.9 and vllm:num_preemptions growing: too wide", also=_DTYPES,
    )  # fmt: skip
    batch_invariant: bool = _set(
        False, "On a GPU: answers do not depend on the batch; slower.",
        "on a GPU the last bits of an answer may depend on the batch; other runners are always invariant",
        "vllm:inter_token_latency_seconds: on",
    )  # fmt: skip
    pooling: str = _set(
        "auto", "Vector of a text: last, mean or cls (of its tokens' final states), or auto: as the model's files say, else last.",
        "the model's authors say what it was trained for", "similar texts have dissimilar vectors: another",
        choices=("auto", "last", "mean", "cls"),
    )  # fmt: skip
    threads: int | None = _set(
        None, "Threads of a step [available CPU cores].", "all CPU cores share a step", "other programs slow down: too many",
        bounds=(1, 1_024), also=_LEAST,
    )  # fmt: skip
    enable_lora: bool = _set(
        False, "Answer requests with LoRA adapters, which --lora and the server's routes name.",
        "rows without an adapter cost nothing more", "400 for requests that name an adapter: off",
    )  # fmt: skip
    lora: tuple[str, ...] = _set(
        (), "An adapter as NAME=PATH, a folder of PEFT's or a GGUF file; may be repeated. Of several models MODEL:NAME=PATH.",
        "it turns on --enable-lora", "404 model_not_found for an adapter of yours: not listed",
    )  # fmt: skip
    max_loras: int = _set(
        8, "Adapters that the sequences of one step may have.", "a slot is as large as an adapter in it",
        "requests wait for an adapter slot while sequences could run: too few", bounds=(1, 256),
    )  # fmt: skip
    max_lora_rank: int = _set(
        64, "Largest rank of an adapter.", "bounds the memory of an adapter", "an adapter is refused with its rank: too small",
        bounds=(1, 256),
    )  # fmt: skip
    max_cpu_loras: int = _set(
        32, "Adapters in host memory, from which slots are filled.", "others are read from their files again",
        "requests wait for adapters that have been used before: too few", bounds=(1, 4_096),
    )  # fmt: skip
    record: str | None = _set(
        None, "File for every command, plan and result, token ids included; see `replay`.",
        "every command, plan and result, with token ids; after a restart FILE.restart-1", "the disk fills up: set", unit="FILE",
    )  # fmt: skip
    trace: str | None = _set(
        None, "File for a trace of every thread in every step, for Perfetto (native runner).",
        "a file that Perfetto opens; costs a few percent of a step", "the disk fills up: set", unit="FILE",
    )  # fmt: skip
    expect_sha256: str | None = _set(
        None, "SHA-256 that the weights must have, or a file as sha256sum writes it. Of several models NAME=SHA256,…",
        "weights that are damaged or replaced end the start; reading them takes about a second per GB",
        "the start ends with another SHA-256: damaged weights, or a new version", unit="FILE",
    )  # fmt: skip
    step_timeout_seconds: float = _set(
        6.0, "Seconds after which an engine that has work and does not move is restarted.",
        "an engine with work that does not move for this long is killed and started again; a long step moves",
        "engine restarts while it computes: too short", unit="seconds", bounds=(0.01, 3_600), name="step_timeout",
    )  # fmt: skip

    @property
    def adapter_slots(self) -> int:
        """Adapters that the sequences of one step may have; 0: none is taken."""
        return self.max_loras if self.enable_lora or self.lora else 0

    @property
    def has_tiers(self) -> bool:
        """True if KV blocks outlive the engine."""
        return any((self.kv_cache_dir, self.kv_cache_redis, self.kv_cache_listen, self.kv_cache_peers))

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
    """Settings of the front end."""

    host: str = _set(
        "127.0.0.1", "Address to listen on; other than loopback needs an API key.", "reached from this machine alone",
        "connections refused from other machines: loopback",
    )  # fmt: skip
    port: int = _set(8000, "Port to listen on; 0 takes a free one.", "vLLM's", "the start fails: taken", unit="PORT", bounds=(0, 65_535))
    api_key: str | None = _set(
        None, "Key that clients must send as a bearer token; others see it in `ps`: RIDGELINE_API_KEY and --api-key-file are not seen.",
        "without a key everybody who reaches the server may use it", "401 for clients that have one: another", secret=True,
    )  # fmt: skip
    api_key_file: str | None = _set(
        None, "File with keys, one per line as KEY, or NAME KEY and options; read again on SIGHUP.",
        "several keys, each of which can be withdrawn", "401 for clients that have one: not in the file", unit="FILE",
    )  # fmt: skip
    cache_secret_file: str | None = _set(
        None, "File with the secret that parts the tenants' prefixes in the cache, made where there is none [a new secret at every start].",
        "replicas and restarts that share it find the same prefixes", "vllm:prefix_cache_hits stays 0 behind a restart: another file",
        unit="FILE",
    )  # fmt: skip
    router_key_file: str | None = _set(
        None, "File with the key that `ridgeline route` and its replicas share, made where there is none [streams end with their replica].",
        "a router that has it goes on with a stream at another replica when this one dies", "403 router_only: another file than its",
        unit="FILE",
    )  # fmt: skip
    allowed_origins: tuple[str, ...] = _set(
        (), "Origins of pages that may use the server, as https://host:port, or *; may be repeated [its own page's].",
        "pages of other origins are rejected, so that no site uses this server behind its reader's back",
        "403 origin_not_allowed for a page of yours: not listed",
    )  # fmt: skip
    ssl_certfile: str | None = _set(
        None, "File with the certificate and its chain, PEM: the server speaks HTTPS.", "keys and prompts are encrypted on the way",
        "clients report an expired certificate: send SIGHUP after its renewal", unit="FILE",
    )  # fmt: skip
    ssl_keyfile: str | None = _set(
        None, "File with the private key of the certificate, PEM [the certificate's].", "only its owner may read it",
        "the server does not start: its rights", unit="FILE",
    )  # fmt: skip
    served_model_name: str | None = _set(
        None, "Name that clients use for the model [its file's or the hub's].", "clients name the model", "404 model_not_found: another",
    )  # fmt: skip
    keep_alive: float | None = _set(
        None, "Seconds without a request after which a model is unloaded; the next request loads it again [never].",
        "memory for other models and programs; a load takes seconds", "ridgeline_model_loads_total grows: too short", unit="seconds",
        bounds=(0, 31_622_400),
    )  # fmt: skip
    max_loaded_models: int | None = _set(
        None, "Of several models, those that are loaded at once; the least recently used makes room [as many as fit into memory].",
        "memory decides", "ridgeline_model_loads_total grows although memory is free: too few", bounds=(1, 64),
    )  # fmt: skip
    min_residence: float = _set(
        10.0, "Seconds for which a model that has been loaded stays, however much others want its memory.",
        "a load is worth some answers: without it two busy models would only load", "requests for other models wait for long: too long",
        unit="seconds", bounds=(0, 86_400),
    )  # fmt: skip
    max_waiting: int = _set(
        256, "Choices of requests that may wait; more get status 429.", "a request that would wait too long hears it at once",
        "429 while vllm:num_requests_waiting falls quickly: too few; vllm:request_queue_time_seconds too high: too many",
        bounds=(0, 1 << 20), name="max_num_queued_reqs",
    )  # fmt: skip
    chat_template: str | None = _set(
        None, "File with a chat template that replaces the model's. Of several models NAME=FILE,NAME=FILE.",
        "a model that was trained to chat has its own", "answers that do not end, or end at once: another", unit="FILE",
    )  # fmt: skip
    generation_config: str = _set(
        "auto", "auto: sampling defaults of the model's authors; none: Ridgeline's.", "a request's own fields always win",
        "answers differ from those of another server: its defaults", choices=("auto", "none"), also={"vllm": "none"},
    )  # fmt: skip
    reasoning_budget: int = _set(
        -1, "Most tokens of reasoning where a request names no budget; -1 is no limit.", "a request's own budget always wins",
        "answers that end with length before they answer: set", bounds=(-1, 2**31 - 1),
    )  # fmt: skip
    reasoning_budget_message: str | None = _set(
        None, "Text before the mark that ends a reasoning whose budget is spent.", "the mark alone ends it",
        "answers that go on as if they still reasoned: set",
    )  # fmt: skip
    response_store: str = _set(
        "memory", "Where answers of /v1/responses are kept for previous_response_id: memory, file, none, or a Redis or Valkey server.",
        "a conversation goes on by the id of its last answer; servers share unix:///path, rediss://host or redis://127.0.0.1",
        "400 previous_response_not_found behind a restart: file", choices=("memory", "file", "none"), unit="URL",
    )  # fmt: skip
    response_store_password_file: str | None = _set(
        None, "File with the password of a Redis or Valkey server in --response-store.", "others see what stands in a URL",
        "503 for stored answers, and log lines of answers that are not stored: another", unit="FILE",
    )  # fmt: skip
    response_store_dir: str | None = _set(
        None, "Folder of stored answers, with --response-store file [ridgeline/responses in the user's state].",
        "only the server's user may read it", "the server does not start: the rights of the folder", unit="FOLDER",
    )  # fmt: skip
    response_store_bytes: int = _set(
        64 << 20, "Bytes of stored answers of one API key.", "the oldest make room for new ones",
        "400 previous_response_not_found for answers of today: too few", unit="bytes", bounds=(1 << 10, 1 << 40),
    )  # fmt: skip
    response_store_ttl: float = _set(
        86_400.0, "Seconds for which an answer is stored.", "conversations do not stay on the server for long",
        "400 previous_response_not_found for old answers: too short", unit="seconds", bounds=(0.1, 31_622_400),
    )  # fmt: skip
    sse_keep_alive_interval: float = _set(
        15.0, "Seconds without output after which a stream gets a comment.", "proxies close a connection that is silent for long",
        "streams cut by a proxy: too long", unit="seconds", bounds=(0.1, 3_600),
    )  # fmt: skip
    shutdown_timeout: float = _set(
        30.0, "Seconds that accepted requests may continue after SIGTERM.", "long enough for an answer, short enough for a service manager",
        "answers cut at a restart: too short", unit="seconds", bounds=(0, 86_400),
    )  # fmt: skip
    max_connections: int = _set(
        4_096, "Open connections, at most what the limit on open files (ulimit -n) leaves.",
        "beyond it the connection whose client has been silent longest is closed", "log lines about connections closed to make room",
        bounds=(16, 1 << 20),
    )  # fmt: skip
    max_connections_per_client: int = _set(
        1_024, "Open connections of one client address.", "nobody takes all of them; behind a proxy all clients have its address",
        "log lines about connections closed to make room, behind a proxy: too few", bounds=(1, 1 << 20),
    )  # fmt: skip
    send_timeout: float = _set(
        10.0, "Seconds that a client may leave its answer unread before its connection is reset.",
        "its row and its memory are needed by others; what it reads meanwhile gives it as much again",
        "access lines with client_too_slow of clients that meant to read: too short", unit="seconds", bounds=(0.1, 3_600),
    )  # fmt: skip
    brown_out: float | None = _set(
        None, "Seconds of expected wait beyond which the server saves, step by step, and says so [never].",
        "drafts, then prefill beside decoding, then the length of answers and the requests of keys that agreed to it",
        "ridgeline_brown_out_level > 0 for hours: too few machines", unit="seconds", bounds=(0.1, 3_600),
    )  # fmt: skip
    ttft_target: float | None = _set(
        None, "Seconds within which first tokens come of requests that name no other target: who would be later gets 429 [never].",
        "a wait that is too long is an answer that nobody reads; another replica, or a later moment, has room",
        "429 while rows are free: too short; later first tokens: prompts that take longer alone", unit="seconds", bounds=(0.01, 3_600),
    )  # fmt: skip
    lora_root: str | None = _set(
        None, "Folder of adapters that an admin may load while the server runs, by the names of what lies in it [none].",
        "with --enable-lora; no client names a path", "400 for /v1/load_lora_adapter: another folder", unit="FOLDER",
    )  # fmt: skip
    goodput: str = _set(
        "ttft=1s,itl=50ms", "What a request keeps to count as good: times to first token, and per further token.",
        "throughput alone hides answers that came too late", "ridgeline_requests_total{result=\"good\"} far below the others: too strict",
    )  # fmt: skip
    metrics_compat: str = _set(
        "none", "vllm: /metrics has the label engine too, and more of vLLM's metrics.",
        "metrics that vLLM has bear its names in any case", "panels of vLLM's dashboards stay empty: vllm", choices=("none", "vllm"),
    )  # fmt: skip
    price_per_hour: float | None = _set(
        None, "Dollars per hour for this machine; requests and tenants are then told in dollars too [in seconds alone].",
        "what machine time costs is nothing that a server could know", "ridgeline_tenant_dollars far from the bill: another price",
        unit="dollars", bounds=(1e-6, 1e6),
    )  # fmt: skip
    admin_socket: str = _set(
        "auto", "Unix socket of `ridgeline admin`, for this server's user alone: auto (in the user's state folder), none, or its path.",
        "changes at run time need no port: the system says who asks, and each change is a line of the log",
        "`ridgeline admin` finds no server: none, or the rights of its folder", unit="FILE",
    )  # fmt: skip
    otlp_traces_endpoint: str | None = _set(
        None, "URL of an OpenTelemetry collector that spans of requests are sent to, as http://HOST:4318/v1/traces [none are].",
        "spans have times and sizes, never a text; it needs ridgeline[otel]", "log lines of opentelemetry: nobody listens there",
    )  # fmt: skip
    allow_chaos: bool = _set(
        False, "Let `ridgeline chaos` inject faults.", "a server that people rely on should not be told to fail",
        "engine restarts, or answers end with errors, while a fault is injected: on",
    )  # fmt: skip
    log_level: str = _set(
        "info", "Least level of log lines: debug, info, warning or error.", "one line per request; probes are lines of level debug",
        "the log fills up: warning", choices=("debug", "info", "warning", "error"),
    )  # fmt: skip
    log_format: str = _set(
        "text", "text: lines for people; json: one object per line.", "json is for programs that collect logs",
        "a collector does not find the fields: text", choices=("text", "json"),
    )  # fmt: skip

    @property
    def needs_key(self) -> bool:
        """True if clients must send a key."""
        return self.api_key is not None or self.api_key_file is not None


Group = type[EngineConfig] | type[ServerConfig]


def public_name(each: "Field[Any]") -> str:
    """The name of a setting in flags, variables and files."""
    return setting_of(each).name or each.name


def public_fields(*groups: Group) -> "dict[str, Field[Any]]":
    """Public name → field, in the order of the groups."""
    return {public_name(each): each for group in groups for each in fields(group)}
