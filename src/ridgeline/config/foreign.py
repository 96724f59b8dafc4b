"""Flags and arguments of vLLM, llama.cpp, SGLang and TGI: which setting means the same, what asks for nothing, and what to write instead.

A table. `serve`, `config explain` and `LLM` read it, so that a command line or a script of another server works or is told what does.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ridgeline.errors import ConfigError

ANY: Final = ("*",)
FLAG: Final = re.compile(r"--([a-z][a-z-]*)")
SWITCH: Final = "true"
"""Value of a flag that takes none."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """A flag of another server.

    names     spellings; those with two dashes are also names of arguments in Python, `tensor_parallel_size`
    ours      setting of the same meaning ("model" too)
    values    value → ours, "" leaves the setting open; others are passed on as they are
    harmless  values that ask for nothing that is not so anyhow; ANY: whatever it is
    advice    what to write instead, or why nothing is to be written
    switch    takes no value
    secret    no error tells its value
    """

    names: tuple[str, ...]
    ours: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    harmless: tuple[str, ...] = ()
    advice: str = ""
    switch: bool = False
    secret: bool = False

    def translate(self, value: str, written: str) -> tuple[str, str] | str:
        """(our setting, its value), or "" where the value asks for nothing, or a note where it has no effect. Raises ConfigError with what
        to write instead. `written`: the flag or argument as it stands."""
        in_python = not written.startswith("-")
        advice = FLAG.sub(lambda found: found[1].replace("-", "_"), self.advice) if in_python else self.advice
        if value.lower() in ("none", "false") and (self.harmless == ANY or (self.ours and self.switch)):
            return ""
        if self.ours:
            return (self.ours, self.values.get(value, value)) if self.values.get(value, value) else ""
        if self.harmless == ANY:
            return f"{written} has no effect: {advice}"
        if value.lower() in self.harmless:
            return ""
        given = written if self.switch or self.secret else f"{written} {value:.40}"
        raise ConfigError(f"{given!r} is not possible here: {advice}", fix=dict.fromkeys(() if in_python else self.names))


def _same(ours: str, *names: str) -> Foreign:
    return Foreign(names, ours)


def _refused(advice: str, *names: str, harmless: Iterable[str] = (), switch: bool = False) -> Foreign:
    return Foreign(names, harmless=tuple(harmless), advice=advice, switch=switch)


def _nothing(why: str, *names: str, switch: bool = False) -> Foreign:
    return Foreign(names, harmless=ANY, advice=why, switch=switch)


def _each(make: Callable[..., Foreign], why: str, *names: str, **more: Any) -> Iterable[Foreign]:
    """A line for each of several flags of which the same is to be said."""
    return (make(why, name, **more) for name in names)


_CHAINS: Final = "the best tree of drafts brought 1.00 times the best chain wherever drafts pay (docs/log.md); write --speculative suffix"
REFUSED_WORDS: Final[Mapping[str, Mapping[str, str]]] = {
    "speculative": {
        "early-exit": "drafts of a model's own first layers bring 1.05 to 1.42 times, where drafts that cost nothing bring 1.46 to 2.21 "
        "(docs/log.md), and only checkpoints trained for it, facebook/layerskip-*, have any; write --speculative suffix or draft",
        "lookahead": "it asks for twenty tokens or more a step, which cost seven steps of one (docs/log.md); write --speculative suffix",
        "tree": _CHAINS,
        "eagle-tree": _CHAINS,
    }
}
"""Setting → words for it that others have → why there is none, and what to write instead."""

ONE_DEVICE: Final = "a model runs on one device; leave it out"
IN_REQUESTS: Final = "each request says it; `--generation-config none` sets Ridgeline's defaults"
VECTORS: Final = "models generate text and make vectors, or make vectors alone; leave it out"
FROM_FILES: Final = "the model's files say it; leave it out"
NO_IMAGES: Final = "images and sound are not supported yet; leave it out"
NO_CODE: Final = "no code is loaded; leave it out"
MOST: Final = ("0.8", "0.85", "0.88", "0.9", "0.92", "0.95", "0.98", "1.0", "1")

FOREIGN: Final[tuple[Foreign, ...]] = (
    # ── the model, its name and its context ──
    _same("model", "-m", "--model"),
    _same("model", "--model-path"),
    _same("model", "--model-id"),
    _same("model", "-hf", "-hfr", "--hf-repo"),
    _same("served_model_name", "-a", "--alias"),
    Foreign(("-c", "--ctx-size"), "max_model_len", {"0": ""}),
    _same("max_model_len", "--context-length"),
    _refused("write --max-model-len (as TGI means it) or --kv-cache-memory-bytes (as SGLang does)", "--max-total-tokens"),
    _refused("write org/name@revision as the model", "--revision", harmless=("main", "none")),
    _refused("write org/name@revision as the model", "--code-revision", "--tokenizer-revision", harmless=("none",)),
    _refused("write org/name:Q4_K_M or org/name/file.gguf as the model", "-hff", "--hf-file"),
    _refused("give the path of the file, or org/name of the hub, as the model", "-mu", "--model-url"),
    _refused("the model's own tokenizer is used; leave it out", "--tokenizer", "--tokenizer-path", harmless=("none",)),
    _refused("the model's own tokenizer is used; leave it out", "--tokenizer-mode", harmless=("auto", "hf", "slow")),
    _refused("answers are text; leave it out", "--skip-tokenizer-init", switch=True, harmless=("false",)),
    _refused("models are downloaded to HF_HOME; set that", "--download-dir", harmless=("none",)),
    Foreign(("-hft", "--hf-token"), harmless=("none",), advice="set HF_TOKEN, which no other user sees", secret=True),
    _refused("no code of a model is ever run; leave it out", "--trust-remote-code", switch=True, harmless=("false",)),
    _refused(FROM_FILES, "--load-format", harmless=("auto", "gguf", "safetensors")),
    _refused(
        FROM_FILES + ", or write --dtype fp8 on a GPU",
        "-q",
        "--quantization",
        harmless=("none", "auto", "gguf", "gptq", "gptq_marlin", "awq", "awq_marlin", "compressed-tensors", "modelopt", "modelopt_fp4"),
    ),
    _refused(FROM_FILES, "--config-format", harmless=("auto", "hf")),
    _refused(FROM_FILES, "--hf-config-path", "--hf-overrides", harmless=("none", "{}")),
    _refused(FROM_FILES, "--override-kv"),
    _refused(FROM_FILES, "--rope-scaling", harmless=("none", "{}")),
    _refused(FROM_FILES, "--rope-theta", "--rope-freq-base", harmless=("none", "0")),
    _refused(FROM_FILES, "--rope-scale", "--rope-freq-scale"),
    _refused(VECTORS, "--task", harmless=("auto", "generate", "embed", "embedding", "score")),
    _refused(VECTORS, "--convert", harmless=("auto", "none", "embed")),
    _refused("Ridgeline's own is used; leave it out", "--model-impl", harmless=("auto", "vllm", "none")),
    _nothing("vectors are served beside answers", "--embedding", "--embeddings", "--is-embedding", switch=True),
    _refused("models that score pairs are not supported; /rerank orders by vectors without it", "--rerank", "--reranking", switch=True),
    _refused("write --pooling last, mean or cls", "--pooler-config", "--override-pooler-config", harmless=("none",)),
    _nothing("files are read through private memory", "--safetensors-load-strategy"),
    _nothing("only the files that a model needs are fetched", "--ignore-patterns"),
    _nothing("no pickled weights are read", "--pt-load-map-location"),
    _refused(FROM_FILES, "--model-loader-extra-config", harmless=("none", "{}")),
    _refused(FROM_FILES, "--override-attention-dtype", harmless=("none",)),
    *_each(_nothing, FROM_FILES, "--allow-deprecated-quantization", "--calculate-kv-scales", "--disable-sliding-window", switch=True),
    *_each(
        _nothing,
        "states have the type of the model",
        "--mamba-cache-dtype",
        "--mamba-ssm-cache-dtype",
        "--mamba-block-size",
        "--mamba-cache-mode",
    ),
    _refused("prompts are texts or token ids; leave it out", "--enable-prompt-embeds", switch=True, harmless=("false",)),
    _refused(NO_IMAGES, "-mm", "--mmproj"),
    _refused(NO_IMAGES, "--limit-mm-per-prompt", harmless=("none", "{}")),
    *_each(_refused, NO_IMAGES, "--allowed-local-media-path", "--allowed-media-domains", "--default-mm-loras", harmless=("", "none")),
    *_each(_refused, NO_IMAGES, "--mm-encoder-only", "--enable-mm-embeds", switch=True, harmless=("false",)),
    *_each(_nothing, NO_IMAGES, "--mm-processor-kwargs", "--media-io-kwargs", "--mm-encoder-tp-mode", "--mm-encoder-attn-backend"),
    *_each(
        _nothing,
        NO_IMAGES,
        "--mm-processor-cache-gb",
        "--mm-processor-cache-type",
        "--mm-shm-cache-max-object-size-mb",
        "--video-pruning-rate",
    ),
    *_each(
        _nothing,
        NO_IMAGES,
        "--interleave-mm-strings",
        "--skip-mm-profiling",
        "--disable-chunked-mm-input",
        "--enable-mm-processor-stats",
        switch=True,
    ),
    # ── batches, memory, devices ──
    Foreign(("-np", "--parallel"), "max_num_seqs", {"-1": ""}),
    _same("max_num_seqs", "--max-running-requests"),
    _same("max_num_queued_reqs", "--max-queued-requests"),
    _same("max_num_batched_tokens", "-b", "--batch-size"),
    Foreign(("--chunked-prefill-size",), "max_num_batched_tokens", {"-1": ""}),
    _nothing("a step has at most --max-num-batched-tokens tokens", "-ub", "--ubatch-size"),
    Foreign(("-t",), "threads", {"-1": ""}),
    _nothing("--threads is for prefill and decode alike", "-tb", "--threads-batch"),
    _same("kv_dtype", "--kv-cache-dtype"),
    _same("kv_dtype", "-ctk", "--cache-type-k"),
    _same("kv_dtype", "-ctv", "--cache-type-v"),
    _same("swap_space", "--kv-offloading-size"),
    _same("seed", "--random-seed"),
    _same("seed", "-s"),
    _refused(
        "Ridgeline takes what it needs; to leave memory to others write --kv-cache-memory-bytes 4GiB",
        "--gpu-memory-utilization",
        harmless=MOST,
    ),
    _refused(
        "Ridgeline takes what it needs; to leave memory to others write --kv-cache-memory-bytes 4GiB",
        "--mem-fraction-static",
        harmless=MOST,
    ),
    _refused("write --kv-cache-memory-bytes 4GiB", "--num-gpu-blocks-override", harmless=("none",)),
    _refused("write --kv-cache-memory-bytes 4GiB", "--max-total-num-tokens", "--max-batch-total-tokens"),
    _refused("write --max-num-batched-tokens", "--max-batch-prefill-tokens"),
    _refused("write --max-model-len", "--max-input-tokens", "--max-input-length"),
    _refused("write --max-num-seqs and --max-num-queued-reqs", "--max-concurrent-requests"),
    _refused("write --max-num-queued-reqs", "--max-num-queued-tokens", harmless=("none",)),
    Foreign(("-dev", "--device"), "runner", {"cpu": "native", "none": "native", "CUDA0": "cuda", "cuda:0": "cuda"}),
    _refused(ONE_DEVICE, "-tp", "--tp-size", "--tensor-parallel-size", harmless=("1",)),
    _refused(ONE_DEVICE, "-pp", "--pp-size", "--pipeline-parallel-size", harmless=("1",)),
    _refused(ONE_DEVICE, "-dp", "--dp-size", "--data-parallel-size", harmless=("1",)),
    _refused(ONE_DEVICE, "--decode-context-parallel-size", harmless=("1",)),
    _refused(ONE_DEVICE, "-ep", "--enable-expert-parallel", switch=True, harmless=("false",)),
    *_each(_refused, ONE_DEVICE, "--prefill-context-parallel-size", "--nnodes", harmless=("1",)),
    *_each(_refused, ONE_DEVICE, "--data-parallel-rank", "--data-parallel-start-rank", "--node-rank", harmless=("none", "0")),
    _refused(ONE_DEVICE, "--data-parallel-size-local", harmless=("none", "1")),
    *_each(_refused, ONE_DEVICE, "--data-parallel-hybrid-lb", "--data-parallel-external-lb", switch=True, harmless=("false",)),
    *_each(_refused, ONE_DEVICE, "--enable-eplb", "--enable-dbo", "--fully-sharded-loras", switch=True, harmless=("false",)),
    *_each(_nothing, "a model runs on one device", "--master-addr", "--master-port", "--data-parallel-address", "--data-parallel-rpc-port"),
    *_each(
        _nothing,
        "a model runs on one device",
        "--data-parallel-backend",
        "--all2all-backend",
        "--eplb-config",
        "--expert-placement-strategy",
    ),
    *_each(_nothing, "a model runs on one device", "--dcp-kv-cache-interleave-size", "--cp-kv-cache-interleave-size"),
    *_each(_nothing, "a model runs on one device", "--dbo-decode-token-threshold", "--dbo-prefill-token-threshold"),
    _nothing("a model runs on one device", "--max-parallel-loading-workers"),
    _nothing("a model runs on one device", "--ray-workers-use-nsight", switch=True),
    _refused(ONE_DEVICE, "--distributed-executor-backend", harmless=("none", "mp", "uni")),
    _refused(ONE_DEVICE, "-sm", "--split-mode", harmless=("none",)),
    _refused(ONE_DEVICE, "-ts", "--tensor-split"),
    _refused(ONE_DEVICE, "-mg", "--main-gpu", harmless=("0",)),
    _refused("a model is wholly on one device; write --runner cuda or --runner native", "-ngl", "--gpu-layers", "--n-gpu-layers"),
    _refused("a model is wholly on one device; write --runner native", "--cpu-offload-gb", harmless=("0", "0.0")),
    _refused("a model is wholly on one device; leave it out", "-ncmoe", "--n-cpu-moe"),
    _refused("a model is wholly on one device; leave it out", "-ot", "--override-tensor"),
    _refused("a model is wholly on one device; leave it out", "--offload-group-size", harmless=("0",)),
    *_each(_nothing, "a model is wholly on one device", "--offload-num-in-group", "--offload-prefetch-step", "--offload-params"),
    _nothing("prompts are always cut into steps", "--enable-chunked-prefill", switch=True),
    _refused("prompts are always cut into steps; leave it out", "--no-enable-chunked-prefill", switch=True),
    _refused("--step-ms bounds what a prompt may take of a step", "--long-prefill-token-threshold", harmless=("0",)),
    *_each(
        _refused,
        "--step-ms bounds what prompts may take of a step",
        "--max-num-partial-prefills",
        "--max-long-partial-prefills",
        harmless=("1",),
    ),
    _refused("write --depth 2", "--num-scheduler-steps", harmless=("1",)),
    _nothing("--depth says how many steps are in flight, two by default", "--async-scheduling", switch=True),
    _refused("write --depth 1", "--no-async-scheduling", switch=True),
    _same("scheduling_policy", "--schedule-policy"),
    _refused("preempted sequences are computed again; leave it out", "--preemption-mode", harmless=("recompute", "none")),
    _nothing("sequences are always batched continuously", "-cb", "--cont-batching", switch=True),
    _refused("write --scheduling-policy static", "-nocb", "--no-cont-batching", switch=True),
    Foreign(("--no-cache-prompt",), "enable_prefix_caching", {SWITCH: "false"}, switch=True),
    Foreign(("--disable-radix-cache",), "enable_prefix_caching", {SWITCH: "false"}, switch=True),
    _nothing("the KV cache is always shared by prefix", "--cache-prompt", switch=True),
    _nothing("whole blocks of a prefix are reused", "--cache-reuse"),
    _refused("prefixes are found by SHA-256; leave it out", "--prefix-caching-hash-algo", harmless=("sha256", "builtin", "sha256_cbor")),
    _refused("a prompt that is too long is an error; leave it out", "--context-shift", switch=True),
    _nothing("contexts are never shifted", "--no-context-shift", switch=True),
    *_each(_refused, "write --kv-cache-dir or --kv-cache-redis", "--kv-transfer-config", "--ec-transfer-config", harmless=("none",)),
    _refused("a router asks servers for what they hold; leave it out", "--kv-events-config", harmless=("none",)),
    _nothing("--swap-space, --kv-cache-dir and --kv-cache-redis are the places of blocks", "--kv-offloading-backend"),
    *_each(
        _nothing,
        "every kind of layer has a table of its own",
        "--disable-hybrid-kv-cache-manager",
        "--kv-sharing-fast-prefill",
        switch=True,
    ),
    _nothing("attention never stores whole scores", "-fa", "--flash-attn"),
    *_each(_nothing, "there is one attention for a device", "--attention-backend", "--attention-config", "--kernel-config"),
    *_each(_nothing, "there is one attention for a device", "--disable-cascade-attn", "--enable-flashinfer-autotune", switch=True),
    _nothing("CUDA graphs are captured where they pay; answers are the same", "--enforce-eager", switch=True),
    _nothing("graphs are captured for all steps that need them", "--max-seq-len-to-capture", "--max-context-len-to-capture"),
    *_each(_nothing, "graphs are captured for all steps that need them", "--cudagraph-capture-sizes", "--max-cudagraph-capture-size"),
    _nothing("steps are compiled as they are", "-O", "--compilation-config"),
    *_each(_nothing, "steps are compiled as they are", "--optimization-level", "--performance-mode"),
    _nothing("outputs are told while the next step runs", "--disable-async-output-proc", switch=True),
    _nothing("products of several GPUs are not run", "--disable-custom-all-reduce", switch=True),
    _nothing("weights are packed into private memory", "--mlock", switch=True),
    _nothing("weights are packed into private memory", "--no-mmap", switch=True),
    _nothing("a model is always warm before the first request", "--no-warmup", switch=True),
    _nothing("threads are placed by the system", "--numa"),
    _nothing("threads have the priority of the process; use nice", "--prio"),
    # ── drafts, adapters, structure, tools ──
    _refused("write --speculative ngram --num-speculative-tokens 4", "--speculative-config", harmless=("none",)),
    _nothing("drafts take the blocks that they need", "--num-lookahead-slots"),
    _same("draft_model", "-md", "--model-draft", "--speculative-model"),
    _same("num_speculative_tokens", "--draft", "--draft-n", "--draft-max"),
    _refused("write --lora NAME=PATH for each", "--lora-modules", harmless=("none",)),
    _refused("adapters are computed in bf16; leave it out", "--lora-dtype", harmless=("auto", "bfloat16")),
    _nothing("how a model writes calls is found in its chat template", "--enable-auto-tool-choice", switch=True),
    _nothing("how a model writes calls is found in its chat template", "--tool-call-parser"),
    _nothing("how a model reasons is found in its chat template", "--reasoning-parser"),
    _refused("reasoning is always split off; leave it out", "--reasoning-format", harmless=("auto", "deepseek", "")),
    _nothing("structured output has one backend", "--guided-decoding-backend"),
    _nothing("structured output has one backend", "--structured-outputs-config"),
    _refused("each request says it, in response_format or structured_outputs; leave it out", "--grammar", "--grammar-file"),
    _refused("each request says it, in response_format or structured_outputs; leave it out", "-j", "--json-schema"),
    # ── chats and sampling ──
    _same("chat_template", "--chat-template-file"),
    _nothing("templates are always Jinja", "--jinja", switch=True),
    _refused("templates are always Jinja; leave it out", "--no-jinja", switch=True),
    _refused("templates get content as they ask for it; leave it out", "--chat-template-content-format", harmless=("auto",)),
    _refused("answers are the assistant's; leave it out", "--response-role", harmless=("assistant",)),
    _refused("at most 20 log-probabilities are given per token; leave it out", "--max-logprobs", harmless=tuple(map(str, range(21)))),
    _refused("log-probabilities are of the raw logits; leave it out", "--logprobs-mode", harmless=("raw_logprobs",)),
    _refused("which experts a token had is not told; leave it out", "--enable-return-routed-experts", switch=True, harmless=("false",)),
    _refused("an event has what its step brought; leave it out", "--stream-interval", harmless=("1",)),
    _refused("answers are text; leave it out", "--tokens-only", switch=True, harmless=("false",)),
    _refused(IN_REQUESTS, "--override-generation-config", "--default-chat-template-kwargs", harmless=("none", "{}")),
    _refused(IN_REQUESTS, "-n", "--predict", "--n-predict", harmless=("-1",)),
    _refused(IN_REQUESTS, "--temp", "--temperature"),
    _refused(IN_REQUESTS, "--top-k"),
    _refused(IN_REQUESTS, "--top-p"),
    _refused(IN_REQUESTS, "--min-p"),
    _refused(IN_REQUESTS, "--repeat-penalty"),
    # ── the server ──
    _same("host", "--hostname"),
    _same("ssl_certfile", "--ssl-cert-file"),
    _same("ssl_keyfile", "--ssl-key-file"),
    _refused("a proxy in front of Ridgeline checks clients' certificates", "--ssl-ca-certs", harmless=("none",)),
    _refused("keys are sent in headers, never in cookies; leave it out", "--allow-credentials", switch=True),
    _nothing("methods follow from the routes", "--allowed-methods"),
    _nothing("headers are answered as they are asked for", "--allowed-headers"),
    _refused("a proxy in front of Ridgeline does it", "--root-path", "--api-prefix", harmless=("", "none")),
    _refused("listen on --host and --port", "--uds", harmless=("none",)),
    _refused("no code is loaded; put it into a proxy", "--middleware"),
    *_each(
        _refused,
        NO_CODE,
        "--scheduler-cls",
        "--worker-cls",
        "--worker-extension-cls",
        "--io-processor-plugin",
        harmless=("none", "auto", ""),
    ),
    *_each(
        _refused, NO_CODE, "--logits-processors", "--logits-processor-pattern", "--reasoning-parser-plugin", harmless=("none", "[]", "")
    ),
    _refused("there are no plugins; leave it out", "--additional-config", harmless=("none", "{}")),
    _refused("weights are read when a model is loaded; leave it out", "--weight-transfer-config", harmless=("none",)),
    _refused(
        "--keep-alive of a server unloads what nobody asks for; leave it out", "--enable-sleep-mode", switch=True, harmless=("false",)
    ),
    _refused("one process serves HTTP; leave it out", "--api-server-count", harmless=("1",)),
    _nothing("one thread serves HTTP", "--threads-http"),
    _nothing("/metrics is always there", "--metrics", switch=True),
    _nothing("/metrics is always there", "--enable-metrics", switch=True),
    _refused("/metrics says what is running; leave it out", "--slots", "--props", switch=True),
    _refused("the page at / cannot be turned off; leave it out", "--no-webui", "--no-ui", switch=True),
    _nothing("the page at / is always there", "--webui", switch=True),
    _nothing("prompts are never logged", "--disable-log-requests", "--no-enable-log-requests", switch=True),
    _refused("prompts are never logged; leave it out", "--enable-log-requests", "--log-requests", switch=True),
    _nothing("prompts are never logged", "--max-log-len"),
    _same("log_level", "--uvicorn-log-level"),
    Foreign(("-v", "--verbose"), "log_level", {SWITCH: "debug"}, switch=True),
    Foreign(("--log-disable",), "log_level", {SWITCH: "error"}, switch=True),
    Foreign(("--disable-uvicorn-access-log",), "log_level", {SWITCH: "warning"}, switch=True),
    *_each(_nothing, "/metrics has the statistics", "--disable-log-stats", "--aggregate-engine-logging", "--kv-cache-metrics", switch=True),
    *_each(
        _nothing,
        "/metrics has the statistics",
        "--cudagraph-metrics",
        "--enable-mfu-metrics",
        "--enable-logging-iteration-details",
        switch=True,
    ),
    *_each(_nothing, "/metrics has the statistics", "--kv-cache-metrics-sample", "--show-hidden-metrics-for-version"),
    *_each(_nothing, "the verb profile looks into a running server", "--profiler-config", "--collect-detailed-traces"),
    _nothing("the verb profile looks into a running server", "--enable-layerwise-nvtx-tracing", switch=True),
    _nothing("usage tells cached tokens anyhow", "--enable-prompt-tokens-details", switch=True),
    _nothing("/openapi.json describes the API", "--disable-fastapi-docs", switch=True),
    _nothing("a start takes as long as it needs", "--load-timeout"),
    _nothing("a start says how far it is", "--use-tqdm-on-load", switch=True),
)
"""Ordered by subject. What is not here is an unknown flag, which is an error too."""

ARGUMENTS: Final[Mapping[str, Foreign]] = {
    name[2:].replace("-", "_"): each for each in FOREIGN if each.ours != "model" for name in each.names if name.startswith("--")
}
"""Name of a Python argument → its line."""
