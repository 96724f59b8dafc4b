"""Environment variables; read nowhere else. None changes a result, except the ISA override for tests."""

import os
from pathlib import Path
from typing import Final


def isa_override() -> str | None:
    """`RIDGELINE_ISA`: run the native kernels at this ISA level instead of the fastest. For tests."""
    return os.environ.get("RIDGELINE_ISA") or None


def cache_directory() -> Path:
    """Folder of assembled models: `$XDG_CACHE_HOME/ridgeline`, else `~/.cache/ridgeline`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base) / "ridgeline" if base else Path.home() / ".cache" / "ridgeline"


def setting_variables() -> dict[str, str]:
    """The variables that begin with RIDGELINE_; `config.sources` reads settings from them."""
    return {name: value for name, value in os.environ.items() if name.startswith("RIDGELINE_")}


CHILD_NAMES: Final = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM", "NO_COLOR", "VIRTUAL_ENV", "RIDGELINE_ISA",
    "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_OFFLINE", "OLLAMA_MODELS", "LLAMA_CACHE",
    "TOKENIZERS_PARALLELISM", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CUDA_VISIBLE_DEVICES",
})  # fmt: skip
CHILD_PREFIXES: Final = (
    "LC_", "XDG_", "PYTHON", "LD_", "DYLD_", "MALLOC_", "GLIBC_", "ASAN_", "UBSAN_", "LSAN_", "TSAN_",
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "CUDA", "NVIDIA", "NCCL_", "TORCH", "PYTORCH_", "TRITON_", "CONDA_", "COVERAGE_",
)  # fmt: skip


def child_environment() -> dict[str, str]:
    """The environment of child processes: what finds programs, libraries and caches, and what tunes them. All else stays here, so that
    neither a key of this server nor a token of another service is in a process that reads model files."""
    return {name: value for name, value in os.environ.items() if name in CHILD_NAMES or name.startswith(CHILD_PREFIXES)}
