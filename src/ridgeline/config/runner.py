"""Resolution of runner, formats and sizes, with the reasons. Pure."""

from dataclasses import replace
from typing import Any, Final

from ridgeline.config.groups import EngineConfig
from ridgeline.config.resolve import Decision
from ridgeline.errors import ConfigError

KV_DTYPES: Final = {"cuda": ("bf16", "fp16", "f32", "fp8", "int8"), "native": ("bf16", "f32", "int8"), "numpy": ("f32",)}
"""Runner → formats of its KV cache, the default first."""

DTYPES: Final = ("bf16", "fp16", "f32", "fp8")
"""Compute types of a GPU, the default first."""

SIZES: Final = {
    "cuda": {
        "max_num_seqs": (256, "a decode step of so many rows is still memory-bound"),
        "max_num_batched_tokens": (8_192, "a GPU reaches its full rate at hundreds of tokens, and larger steps cost fewer launches"),
    },
    "cpu": {
        "max_num_seqs": (64, "beyond it a decode step on a CPU is compute-bound"),
        "max_num_batched_tokens": (512, "a CPU computes no faster in larger steps, and they delay new requests"),
    },
}
"""Default sizes of a step, with their reasons."""


def resolve_runner(
    config: EngineConfig, *, no_extension: str | None, no_gpu: str | None, cpu_cores: int
) -> tuple[EngineConfig, tuple[Decision, ...]]:
    """Resolves `runner`, `dtype`, `kv_dtype`, `threads`, `max_num_seqs` and `max_num_batched_tokens`.

    no_extension  why the native extension is unavailable; None where it is available
    no_gpu        why no GPU can be used; None where one can
    cpu_cores     that this process may use: affinity and cgroup quota
    Raises ConfigError where flags contradict each other or this machine.
    """
    decisions = [_runner(config, no_extension, no_gpu)]
    runner = str(decisions[0].value)
    if config.trace is not None and runner != "native":
        fix = {"--runner": "native"} if no_extension is None else {"--trace": None}
        raise ConfigError(f"--trace shows the threads of the native runner; the {runner} runner writes none", fix=fix)
    if config.expert_memory and runner != "native":
        fix = {"--runner": "native"} if no_extension is None else {"--expert-memory": None}
        raise ConfigError(f"--expert-memory is for the native runner; the {runner} runner keeps all experts in memory", fix=fix)
    decisions += _gpu_settings(config, runner)
    dtype = next((str(each.value) for each in decisions if each.name == "dtype"), "")
    decisions += [_kv_dtype(config, runner, dtype), _threads(config, cpu_cores)]
    for name, (size, reason) in SIZES["cuda" if runner == "cuda" else "cpu"].items():
        given = getattr(config, name)
        decisions.append(Decision(name, size, "default", reason) if given is None else Decision(name, given, "flag", _flag(name)))
    values: dict[str, Any] = {each.name: each.value for each in decisions}
    return replace(config, **values), tuple(decisions)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _choice(config: EngineConfig, name: str, options: tuple[str, ...], default: str, reason: str) -> Decision:
    """The flag's value, which must be one of `options`, or `default` where it is "auto"."""
    given: str = getattr(config, name)
    if given == "auto":
        return Decision(name, default, "default", reason)
    if given not in options:
        raise ConfigError(f"{_flag(name)} is {given[:40]!r}; it must be one of auto, {', '.join(options)}", fix={_flag(name): None})
    return Decision(name, given, "flag", _flag(name))


def _runner(config: EngineConfig, no_extension: str | None, no_gpu: str | None) -> Decision:
    if config.runner != "auto":
        unavailable = {"native": no_extension, "cuda": no_gpu}.get(config.runner)
        if unavailable is not None:
            raise ConfigError(f"--runner {config.runner}: {unavailable}", fix={"--runner": None})
        return _choice(config, "runner", tuple(KV_DTYPES), "", "")
    if no_gpu is None:
        return Decision("runner", "cuda", "machine", "there is a GPU, and torch and triton are installed")
    if no_extension is None:
        return Decision("runner", "native", "machine", "the extension is available")
    return Decision("runner", "numpy", "machine", f"much slower: {no_extension}")


def _gpu_settings(config: EngineConfig, runner: str) -> list[Decision]:
    """Compute type of a GPU. The CPU runners have no choice of it, and are always batch-invariant."""
    if runner == "cuda":
        return [_choice(config, "dtype", DTYPES, DTYPES[0], "the fastest on GPUs with the range of f32")]
    for name, default in (("dtype", "auto"), ("batch_invariant", False)):
        if getattr(config, name) != default:
            why = "is exact and computes with the file's own formats"
            raise ConfigError(f"{_flag(name)} is for --runner cuda; the {runner} runner {why}", fix={_flag(name): None})
    return []


def _kv_dtype(config: EngineConfig, runner: str, dtype: str) -> Decision:
    """Format of the KV cache: by default that of attention on a GPU, and the runner's first one elsewhere."""
    formats = KV_DTYPES[runner]
    if dtype:
        default = formats[0] if dtype == "fp8" else dtype
        return _choice(config, "kv_dtype", formats, default, f"the format of attention with --dtype {dtype}")
    return _choice(config, "kv_dtype", formats, formats[0], f"default of the {runner} runner")


def _threads(config: EngineConfig, cpu_cores: int) -> Decision:
    if config.threads is None:
        return Decision("threads", cpu_cores, "machine", "the CPU cores that this process may use")
    return Decision("threads", config.threads, "flag", "--threads")
