"""The least time that a GPU could take, of a model's sizes and of ceilings that were measured in the same run. Pure functions.

A step reads every weight and the keys and values that its rows look at, and multiplies every token with every weight. Products overlap
their reading with their arithmetic; attention follows them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ridgeline.facts.model import ModelFacts

BYTES: Final[Mapping[str, int]] = {"bf16": 2, "fp8": 1}
"""Bytes of a number, in weights, the head's too, and cache."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Bytes per second of a copy in the device's memory, read and written; operations per second of large products in bf16 and fp8."""

    copy: float
    bf16: float
    fp8: float


def read_ceilings(rows: Iterable[Mapping[str, Any]]) -> Ceilings | None:
    """Ceilings of rows of `bench gpu`, the last of each; None where one is missing."""
    found = {row["ceiling"]: row["per_second"] for row in rows if "ceiling" in row and row.get("per_second")}
    return Ceilings(found["copy"], found["bf16"], found["fp8"]) if {"copy", "bf16", "fp8"} <= found.keys() else None


def decode_seconds(facts: ModelFacts, ceilings: Ceilings, dtype: str, rows: int, context: int, prompt_tokens: int = 0) -> float:
    """Seconds of a step that gives each of `rows` sequences of `context` positions a token, beside `prompt_tokens` tokens of prompts."""
    size, peak = BYTES[dtype], _peak(ceilings, dtype)
    layers, head = _layer_weights(facts), facts.vocab * facts.hidden
    reading = size * (layers + head) / ceilings.copy
    multiplying = 2 * ((rows + prompt_tokens) * layers + rows * head) / peak
    cached = rows * context * 2 * facts.layers * facts.kv_heads * facts.head_dim * size
    return max(reading, multiplying) + cached / ceilings.copy


def prefill_seconds(facts: ModelFacts, ceilings: Ceilings, dtype: str, tokens: int) -> float:
    """Seconds of a prompt in one step; a token looks at those before it."""
    layers = _layer_weights(facts)
    reading, multiplying = BYTES[dtype] * layers / ceilings.copy, 2 * tokens * layers / _peak(ceilings, dtype)
    return max(reading, multiplying) + 2 * facts.layers * facts.heads * facts.head_dim * tokens * (tokens + 1) / ceilings.bf16


def _peak(ceilings: Ceilings, dtype: str) -> float:
    return ceilings.fp8 if dtype == "fp8" else ceilings.bf16


def _layer_weights(facts: ModelFacts) -> int:
    """Numbers in the matrices of all layers."""
    queries, keys = facts.heads * facts.head_dim, facts.kv_heads * facts.head_dim
    return facts.layers * facts.hidden * (2 * queries + 2 * keys + 3 * facts.ffn)
