"""What a dry run takes in place of a model's shape and of the sizes that are measured."""

from pathlib import Path
from typing import Any

TINY_CONFIG = Path(__file__).with_name("tiny.json")

_DECODE: dict[str, Any] = {"batches": [1], "context": 4, "steps": 2}
TINY_SETTINGS: dict[str, dict[str, Any]] = {
    "ceilings": {},
    "decode": _DECODE,
    "invariant": _DECODE,
    "adapters": {"batches": [2], "context": 4, "steps": 2, "adapters": 2, "rank": 4},
    "prefill": {"prompts": [4], "repeats": 1},
    "kernels": {"tokens": [1], "contexts": [[1, 4]], "prompts": [4]},
    "serving": {"prompt_tokens": 2, "output_tokens": 4, "phases": [[1, 0.0]], "budget": 8, "memory_bytes": 1 << 20},
    "ttft": {"prompt_tokens": 3, "repeats": 1, "engine": {"max_num_seqs": 1, "kv_cache_memory_bytes": 1 << 20}},
    "soak": {
        "prompt_tokens": 4,
        "output_tokens": 3,
        "rows": 2,
        "budget": 8,
        "memory_bytes": 1 << 20,
        "seconds": 2.0,
        "every_seconds": 1.0,
        "swing_seconds": 1.0,
    },
    "transformers": {"batches": [1], "context": 8, "steps": 2, "modes": [None]},
}
"""Settings of parts of `ridgeline bench gpu`, by part."""
