"""Reader of a model's generation defaults: ids that end an answer, and default sampling parameters."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ridgeline.errors import ModelFormatError
from ridgeline.facts.files.gguf import read_header
from ridgeline.facts.files.json_file import read_object
from ridgeline.facts.files.values import bounded_integer, bounded_number

FILE = "generation_config.json"
MAX_STOP_IDS = 256
MAX_ID = (4 << 20) - 1

_RANGES: dict[str, tuple[str, float, float]] = {
    "temperature": ("temperature", 0.0, 10.0),
    "top_p": ("top_p", 1e-6, 1.0),
    "top_k": ("top_k", -1, MAX_ID),
    "min_p": ("min_p", 0.0, 1.0),
    "repetition_penalty": ("repetition_penalty", 1e-3, 100.0),
    "max_new_tokens": ("max_tokens", 1, 1 << 27),
}
"""Key of generation_config.json → (name in `SamplingParams`, minimum, maximum). The same keys as vLLM."""

_GGUF_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_p": "top_p",
    "general.sampling.top_k": "top_k",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Defaults that a request may override.

    eos_ids   ids that end an answer, besides those of the tokenizer
    sampling  by the names of `core.params.SamplingParams`: temperature, top_p, top_k, min_p, repetition_penalty, max_tokens
    """

    eos_ids: frozenset[int] = frozenset()
    sampling: Mapping[str, int | float] = field(default_factory=dict)


def read_generation(path: Path) -> GenerationDefaults:
    """Defaults of the model at `path`: of a directory's generation_config.json, or of a GGUF file's `general.sampling` keys.

    Empty where there are none. Raises ModelFormatError where a value is of the wrong type or out of its range.
    """
    if path.is_dir():
        return _read_directory(path / FILE) if (path / FILE).exists() else GenerationDefaults()
    metadata = read_header(path).metadata
    return GenerationDefaults(sampling=_sampling({name: metadata.get(key) for key, name in _GGUF_KEYS.items()}, "general.sampling"))


def _read_directory(path: Path) -> GenerationDefaults:
    values = read_object(path)
    return GenerationDefaults(_eos_ids(values.get("eos_token_id")), _sampling(values, FILE))


def _eos_ids(value: object) -> frozenset[int]:
    listed = [] if value is None else value if isinstance(value, list) else [value]
    if len(listed) > MAX_STOP_IDS or not all(type(each) is int and 0 <= each <= MAX_ID for each in listed):
        raise ModelFormatError(f"{FILE}: eos_token_id is {value!r:.60}, at most {MAX_STOP_IDS} ids in 0 … {MAX_ID} were expected")
    return frozenset(listed)


def _sampling(values: Mapping[str, object], source: str) -> dict[str, int | float]:
    found: dict[str, int | float] = {}
    for key, (name, low, high) in _RANGES.items():
        value = values.get(key)
        if value is None:
            continue
        if isinstance(low, int):
            found[name] = bounded_integer(value, f"{source}: {key}", low, int(high))
        else:
            found[name] = bounded_number(value, f"{source}: {key}", low, high)
    return found
