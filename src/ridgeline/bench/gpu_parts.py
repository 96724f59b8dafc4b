"""The parts of `ridgeline bench gpu`: which there are, what each is asked to measure, and its share of the ten minutes. Pure.

Owns settings and shares; runs nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ridgeline.errors import ConfigError

DTYPES: Final[Mapping[str, str]] = {"bf16": "bf16", "fp8": "fp8"}
"""Of weights → of the KV cache."""

WITHOUT_DTYPE: Final = ("ceilings", "kernels")
"""Parts that cover both types in one run."""

FIRST_DTYPE: Final = ("ttft", "invariant", "host", "soak")
"""Parts that run for the first type alone."""

PLAIN: Final = "bf16"
"""What transformers computes with, and what of ours stands beside it."""

ASKED: Final = ("ceilings", "host", "soak")
"""Parts that run only where --only names them: `kernels` begins with the ceilings, `decode` and `serving` tell the host's time beside a
device, and a soak takes longer than all others together."""

WITHOUT_GPU: Final = ("host",)
"""Parts that need no GPU."""

MOST_SECONDS: Final = 590.0
"""Of all parts together, but for those of `ASKED`."""

CONTEXT: Final = 1024
SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "decode": {"share": 50.0, "batches": [1, 32, 64, 128, 256], "context": CONTEXT, "steps": 128},
    "prefill": {"share": 30.0, "prompts": [512, 1024, 2048, 4096, 8192], "repeats": 7},
    "serving": {
        "share": 80.0, "prompt_tokens": 1000, "output_tokens": 1000, "phases": [[32, 4.0], [256, 30.0]], "budget": 2048,
        "memory_bytes": None,
    },
    "ttft": {"share": 40.0, "prompt_tokens": 2048, "repeats": 12},
    "transformers": {"share": 95.0, "batches": [1, 32], "context": CONTEXT, "steps": 64, "modes": ["reduce-overhead"]},
    "invariant": {"share": 35.0, "batches": [1, 32, 256], "context": CONTEXT, "steps": 48},
    "kernels": {
        "share": 60.0, "tokens": [1, 32, 256, 2048], "contexts": [[1, 1024], [32, 1024], [128, 1024], [256, 1024], [1, 8192]],
        "prompts": [2048, 8192],
    },
    "ceilings": {"share": 20.0},
    "host": {"share": 60.0, "batches": [1, 32, 256], "context": CONTEXT, "steps": 200},
    "soak": {
        "share": 120.0, "prompt_tokens": 1500, "output_tokens": 512, "rows": 256, "budget": 2048, "memory_bytes": 24 << 30,
        "every_seconds": 2.0, "swing_seconds": 30.0,
    },
}  # fmt: skip
"""Of each part; `share` is its seconds, a start with compilation included, to which a soak's own minutes come."""

PARTS: Final = tuple(SETTINGS)
"""In the order in which they run: what matters most comes first, should time run out."""

COLD_SECONDS: Final = 40.0
"""That the first part has beside its share: libraries come from the disk, and most kernels are compiled in it."""

ALL_MODES: Final = ("reduce-overhead", "max-autotune")
"""Of torch.compile, where transformers is measured by itself: tuning takes minutes."""

SOAK_MINUTES: Final = 8.0
MOST_MINUTES: Final = 24 * 60.0


@dataclass(frozen=True, slots=True)
class Job:
    """One part for one type of weights. `settings` are those of its process; `share` the seconds that are kept for it."""

    part: str
    dtype: str
    share: float
    settings: Mapping[str, Any]

    @property
    def name(self) -> str:
        """For people."""
        return self.part if self.part in WITHOUT_DTYPE else f"{self.part} {self.dtype}"


def jobs(only: Sequence[str], dtypes: Sequence[str], config: Path, minutes: float = SOAK_MINUTES) -> list[Job]:
    """What is to be run; no `only`: everything but the parts of `ASKED`. Beside transformers our own decoding runs too, for the ratio.

    minutes  of a soak. Raises ConfigError for words that name nothing.
    """
    for flag, words, known in (("--only", only, PARTS), ("--dtype", dtypes, tuple(DTYPES))):
        wrong = next((word for word in words if word not in known), None)
        if wrong is not None:
            raise ConfigError(f"{flag} has {wrong!r:.40}; {', '.join(known)} are possible", fix={flag: known[0]})
    if not 0 < minutes <= MOST_MINUTES:
        raise ConfigError(f"--minutes is {minutes:g}; more than 0 and at most {MOST_MINUTES:g} are possible", fix={"--minutes": None})
    wanted = [part for part in PARTS if (part in only if only else part not in ASKED)]
    found = [_job(part, dtype, config, minutes, bool(only)) for part in PARTS for dtype in _types(part, wanted, dtypes)]
    return [replace(job, share=job.share + COLD_SECONDS) for job in found[:1]] + found[1:]


def _types(part: str, wanted: Sequence[str], dtypes: Sequence[str]) -> Sequence[str]:
    """The types that a part runs for."""
    if part == "transformers":
        return [PLAIN] if part in wanted else []
    types = [] if part not in wanted else dtypes[:1] if part in (*WITHOUT_DTYPE, *FIRST_DTYPE) else list(dtypes)
    beside = part == "decode" and "transformers" in wanted and PLAIN not in types
    return [PLAIN, *types] if beside else types


def _job(part: str, dtype: str, config: Path, minutes: float, alone: bool) -> Job:
    own = {key: value for key, value in SETTINGS[part].items() if key != "share"}
    share = SETTINGS[part]["share"]
    if part == "soak":
        own["seconds"] = 60 * minutes
        share += 60 * minutes
    if part == "transformers" and alone:
        own["modes"] = list(ALL_MODES)
    common = {"part": part, "model": str(config), "dtype": dtype, "kv_dtype": DTYPES[dtype]}
    common["device"] = "cpu" if part in WITHOUT_GPU else "cuda"
    return Job(part, dtype, share, {**common, "invariant": part == "invariant", **own})
