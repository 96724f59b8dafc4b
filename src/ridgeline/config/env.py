"""Environment variables; read nowhere else. None changes a result, except the ISA override for tests."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_TRUE = ("1", "on", "yes", "true")
_OLLAMA_SERVICE = Path("/usr/share/ollama/.ollama/models")
"""Store of the service that Ollama's installer sets up on Linux."""


@dataclass(frozen=True, slots=True)
class ModelStores:
    """Places where models lie and come from.

    cache     packaged models, assembled, and records of the library
    hub       cache of Hugging Face hubs, shared with other programs: `$HF_HUB_CACHE`, else `$HF_HOME/hub`; None: none
    ollama    Ollama's stores: this user's and that of its service; read, never written
    llama     llama.cpp's cache of single files; read, never written
    endpoint  URL of the hub
    token     access token of the hub, never printed
    offline   the hub is not asked
    """

    cache: Path
    hub: Path | None = None
    ollama: tuple[Path, ...] = ()
    llama: Path | None = None
    endpoint: str = "https://huggingface.co"
    token: str | None = field(default=None, repr=False)
    offline: bool = False


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


def visible_gpu() -> str:
    """Number or UUID of the GPU that CUDA takes first: $CUDA_VISIBLE_DEVICES."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip() or "0"


def width_is_set() -> bool:
    """True where `$COLUMNS` says how wide the output shall be."""
    return os.environ.get("COLUMNS", "").isdecimal()


def model_stores(environment: Mapping[str, str] = os.environ) -> ModelStores:
    """Stores of this user, by the variables that the programs which own them read: HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN,
    HF_TOKEN_PATH, HF_HUB_OFFLINE, OLLAMA_MODELS, LLAMA_CACHE."""
    caches = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = Path(environment.get("HF_HOME") or caches / "huggingface").expanduser()
    ollama = environment.get("OLLAMA_MODELS")
    offline = environment.get("HF_HUB_OFFLINE") or environment.get("TRANSFORMERS_OFFLINE") or ""
    return ModelStores(
        cache=caches / "ridgeline",
        hub=Path(environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE") or home / "hub").expanduser(),
        ollama=(Path(ollama).expanduser(),) if ollama else (Path.home() / ".ollama" / "models", _OLLAMA_SERVICE),
        llama=Path(environment.get("LLAMA_CACHE") or caches / "llama.cpp").expanduser(),
        endpoint=(environment.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/"),
        token=_hub_token(environment, home),
        offline=offline.lower() in _TRUE,
    )


def _hub_token(environment: Mapping[str, str], home: Path) -> str | None:
    """The hub's token from the environment, else from the file that `hf auth login` writes; None without one."""
    token = environment.get("HF_TOKEN") or environment.get("HUGGING_FACE_HUB_TOKEN")
    if token is None and (environment.get("HF_HUB_DISABLE_IMPLICIT_TOKEN") or "").lower() not in _TRUE:
        try:
            token = Path(environment.get("HF_TOKEN_PATH") or home / "token").expanduser().read_text()
        except (OSError, UnicodeDecodeError):
            return None
    token = (token or "").strip()
    return token if token.isascii() and token.isprintable() and token else None


def state_directory() -> Path:
    """Folder of what runs now: `$XDG_RUNTIME_DIR/ridgeline`, else `$XDG_STATE_HOME/ridgeline`, else `~/.local/state/ridgeline`."""
    base = os.environ.get("XDG_RUNTIME_DIR") or os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "ridgeline"


def history_file() -> Path:
    """File of the messages typed into `ridgeline run`: `$XDG_STATE_HOME/ridgeline/history.jsonl`, else below `~/.local/state`."""
    return _lasting_directory() / "history.jsonl"


def responses_directory() -> Path:
    """Folder of stored answers: `$XDG_STATE_HOME/ridgeline/responses`, else below `~/.local/state`."""
    return _lasting_directory() / "responses"


def _lasting_directory() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "ridgeline"


def encode_in_callers_thread() -> None:
    """Sets `TOKENIZERS_PARALLELISM` where it is not set: the tokenizers library then has no threads of its own, which some text that takes
    long would occupy for all others. It reads the variable in each call."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
