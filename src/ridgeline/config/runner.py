"""What computes a step on a CPU, in which format it keeps K and V, and with how many threads: one pure function that says why."""

from dataclasses import replace
from typing import Final

from ridgeline.config.groups import EngineConfig
from ridgeline.config.resolve import Decision
from ridgeline.errors import ConfigError

KV_DTYPES: Final = {"native": ("bf16", "f32", "int8"), "numpy": ("f32",)}
"""Runner → formats of its KV cache, the default first."""

THREADS: Final = 1_024
"""More than any machine of today has processors."""


def resolve_runner(config: EngineConfig, *, missing: str | None, processors: int) -> tuple[EngineConfig, tuple[Decision, ...]]:
    """Settles `runner`, `kv_dtype` and `threads`.

    missing     why the native extension is not there; None where it is
    processors  that this process may use: affinity and cgroup quota
    Raises ConfigError where flags contradict each other or this machine.
    """
    runner = _runner(config, missing)
    dtype = _kv_dtype(config, str(runner.value))
    threads = _threads(config, processors)
    settled = replace(config, runner=str(runner.value), kv_dtype=str(dtype.value), threads=int(threads.value))
    return settled, (runner, dtype, threads)


def _runner(config: EngineConfig, missing: str | None) -> Decision:
    if config.runner not in ("auto", *KV_DTYPES):
        raise ConfigError(f"--runner is {config.runner[:40]!r}; auto, native and numpy are possible", fix={"--runner": None})
    if config.runner == "native" and missing is not None:
        raise ConfigError(f"--runner native: {missing}", fix={"--runner": None})
    if config.runner != "auto":
        return Decision("runner", config.runner, "flag", "--runner")
    if missing is not None:
        return Decision("runner", "numpy", "machine", f"many times slower: {missing}")
    return Decision("runner", "native", "machine", "the extension is there")


def _kv_dtype(config: EngineConfig, runner: str) -> Decision:
    possible = KV_DTYPES[runner]
    if config.kv_dtype == "auto":
        return Decision("kv_dtype", possible[0], "default", f"what the {runner} runner keeps unless --kv-dtype says otherwise")
    if config.kv_dtype not in possible:
        raise ConfigError(
            f"--kv-dtype is {config.kv_dtype[:40]!r}; the {runner} runner keeps {', '.join(possible)}", fix={"--kv-dtype": None}
        )
    return Decision("kv_dtype", config.kv_dtype, "flag", "--kv-dtype")


def _threads(config: EngineConfig, processors: int) -> Decision:
    if config.threads is None:
        return Decision("threads", processors, "machine", "the processors that this process may use")
    if not 1 <= config.threads <= THREADS:
        raise ConfigError(f"--threads is {config.threads}, outside 1 … {THREADS}", fix={"--threads": None})
    return Decision("threads", config.threads, "flag", "--threads")
