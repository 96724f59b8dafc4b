"""The choice of runner, formats and threads: one pure function that says why."""

from dataclasses import replace
from typing import Final

from ridgeline.config.groups import EngineConfig
from ridgeline.config.resolve import Decision
from ridgeline.errors import ConfigError

KV_DTYPES: Final = {"cuda": ("bf16", "fp16", "f32", "fp8", "int8"), "native": ("bf16", "f32", "int8"), "numpy": ("f32",)}
"""Runner → formats of its KV cache, the default first."""

DTYPES: Final = ("bf16", "fp16", "f32", "fp8")
"""What a GPU computes with, the default first."""

ATTENTION_BACKENDS: Final = ("triton", "flash-attention", "flashinfer")
"""What computes attention on a GPU, the default first; the others are packages that need not be there."""

ROWS: Final = {"cuda": (256, "a step of so many rows still reads its weights once and waits for memory")}
"""Runner → sequences at once, and why."""
ROWS_ELSEWHERE: Final = (64, "beyond them a CPU core computes for longer than it reads weights")

TOKENS: Final = {"cuda": (8_192, "a GPU computes at its full rate from some hundreds of tokens on, and launching a step costs the same")}
"""Runner → tokens of a step, and why."""
TOKENS_ELSEWHERE: Final = (512, "a CPU core computes no faster in larger steps, and whoever comes next waits for them")

THREADS: Final = 1_024
"""More than any machine of today has CPU cores."""


def resolve_runner(
    config: EngineConfig, *, missing: str | None, no_gpu: str | None, processors: int
) -> tuple[EngineConfig, tuple[Decision, ...]]:
    """Settles `runner`, `dtype`, `kv_dtype`, `attention_backend`, `threads`, `max_num_seqs` and `max_num_batched_tokens`.

    missing     why the native extension is not there; None where it is
    no_gpu      why no GPU can be used; None where one can
    processors  that this process may use: affinity and cgroup quota
    Raises ConfigError where flags contradict each other or this machine.
    """
    runner = _runner(config, missing, no_gpu)
    dtype = _dtype(config, str(runner.value))
    kv_dtype = _kv_dtype(config, str(runner.value), "" if dtype is None else str(dtype.value))
    attention = _attention(config, str(runner.value))
    threads = _threads(config, processors)
    rows = _size("max_num_seqs", config.max_num_seqs, ROWS.get(str(runner.value), ROWS_ELSEWHERE))
    tokens = _size("max_num_batched_tokens", config.max_num_batched_tokens, TOKENS.get(str(runner.value), TOKENS_ELSEWHERE))
    settled = replace(config, runner=str(runner.value), kv_dtype=str(kv_dtype.value), threads=int(threads.value))
    settled = replace(settled, max_num_seqs=int(rows.value), max_num_batched_tokens=int(tokens.value))
    if dtype is None or attention is None:
        return settled, (runner, kv_dtype, threads, rows, tokens)
    settled = replace(settled, dtype=str(dtype.value), attention_backend=str(attention.value))
    return settled, (runner, dtype, kv_dtype, attention, threads, rows, tokens)


def _size(name: str, asked: int | None, suits: tuple[int, str]) -> Decision:
    if asked is not None:
        return Decision(name, asked, "flag", f"--{name.replace('_', '-')}")
    return Decision(name, suits[0], "default", suits[1])


def _runner(config: EngineConfig, missing: str | None, no_gpu: str | None) -> Decision:
    if config.runner not in ("auto", *KV_DTYPES):
        raise ConfigError(f"--runner is {config.runner[:40]!r}; auto, {', '.join(KV_DTYPES)} are possible", fix={"--runner": None})
    lost = {"native": missing, "cuda": no_gpu}.get(config.runner)
    if lost is not None:
        raise ConfigError(f"--runner {config.runner}: {lost}", fix={"--runner": None})
    if config.runner != "auto":
        return Decision("runner", config.runner, "flag", "--runner")
    if no_gpu is None:
        return Decision("runner", "cuda", "machine", "a GPU is there, and torch and triton are installed")
    if missing is not None:
        return Decision("runner", "numpy", "machine", f"many times slower: {missing}")
    return Decision("runner", "native", "machine", "the extension is there")


def _dtype(config: EngineConfig, runner: str) -> Decision | None:
    """None where runners compute with what a model's file has."""
    if runner != "cuda":
        if config.dtype != "auto" or config.batch_invariant:
            flag = "--dtype" if config.dtype != "auto" else "--batch-invariant"
            raise ConfigError(f"{flag} is for --runner cuda; the {runner} runner is exact and computes with the file's own formats",
                              fix={flag: None})  # fmt: skip
        return None
    if config.dtype == "auto":
        return Decision("dtype", DTYPES[0], "default", "what GPUs multiply fastest without a loss of range")
    if config.dtype not in DTYPES:
        raise ConfigError(f"--dtype is {config.dtype[:40]!r}; auto, {', '.join(DTYPES)} are possible", fix={"--dtype": None})
    return Decision("dtype", config.dtype, "flag", "--dtype")


def _kv_dtype(config: EngineConfig, runner: str, dtype: str) -> Decision:
    possible = KV_DTYPES[runner]
    if config.kv_dtype == "auto" and dtype in possible:
        own = dtype if dtype != "fp8" else possible[0]
        return Decision("kv_dtype", own, "default", f"what --dtype {dtype} computes attention with, unless --kv-dtype says otherwise")
    if config.kv_dtype == "auto":
        return Decision("kv_dtype", possible[0], "default", f"what the {runner} runner keeps unless --kv-dtype says otherwise")
    if config.kv_dtype not in possible:
        raise ConfigError(
            f"--kv-dtype is {config.kv_dtype[:40]!r}; the {runner} runner keeps {', '.join(possible)}", fix={"--kv-dtype": None}
        )
    return Decision("kv_dtype", config.kv_dtype, "flag", "--kv-dtype")


def _attention(config: EngineConfig, runner: str) -> Decision | None:
    """None where there is no choice. Whether a package is there, and computes the model, is seen when the model is loaded."""
    asked = config.attention_backend
    if asked not in ("auto", *ATTENTION_BACKENDS):
        raise ConfigError(
            f"--attention-backend is {asked[:40]!r}; auto, {', '.join(ATTENTION_BACKENDS)} are possible", fix={"--attention-backend": None}
        )
    if runner != "cuda":
        if asked != "auto":
            raise ConfigError(
                f"--attention-backend is for --runner cuda; the {runner} runner has one attention", fix={"--attention-backend": None}
            )
        return None
    if asked == "auto":
        return Decision("attention_backend", ATTENTION_BACKENDS[0], "default", "no other has been compared with the reference on hardware")
    return Decision("attention_backend", asked, "flag", "--attention-backend")


def _threads(config: EngineConfig, processors: int) -> Decision:
    if config.threads is None:
        return Decision("threads", processors, "machine", "the CPU cores that this process may use")
    if not 1 <= config.threads <= THREADS:
        raise ConfigError(f"--threads is {config.threads}, outside 1 … {THREADS}", fix={"--threads": None})
    return Decision("threads", config.threads, "flag", "--threads")
