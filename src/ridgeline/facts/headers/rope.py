"""RoPE scaling: every kind becomes divisors of the angles and a scale. Reads no file.

Owns the choice between the short and the long rope of LongRoPE, made once, when the model is loaded.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, log, pi, sqrt

from ridgeline.errors import ModelFormatError
from ridgeline.facts.model import ModelFacts, Rope

DEFAULT_BASE = 10_000.0
MAX_BASE = 1e12
MAX_FACTOR = 1e6


@dataclass(frozen=True, slots=True)
class Ropes:
    """RoPE of a model. by_kind: `ModelFacts.rope`; long: `ModelFacts.long_rope`; context: positions, which YaRN may extend; scores:
    factor of YaRN on scores."""

    by_kind: Mapping[str, Rope]
    long: tuple[int, Rope] | None
    context: int
    scores: float = 1.0


def select_rope(facts: ModelFacts, max_model_len: int) -> tuple[ModelFacts, str | None]:
    """(facts with one rope, sentence that says which and why) for sequences of up to `max_model_len` positions.

    Only LongRoPE has a choice between a short and a long rope; other facts are returned unchanged, with None. The choice is made once and
    not per sequence: a sequence that crossed the border would have keys of both in its cache.
    """
    if facts.long_rope is None:
        return facts, None
    border, rope = facts.long_rope
    if max_model_len <= border:
        why = f"short RoPE factors, because max_model_len {max_model_len} stays within the {border} positions of the original training"
        return replace(facts, long_rope=None), why
    why = (
        f"long RoPE factors, because max_model_len {max_model_len} exceeds the {border} positions of the original training; "
        f"--max-model-len {border} takes the short ones, which answer short prompts better"
    )
    # Keys differ from those of the short rope, so prefix blocks may not be shared between the two.
    fingerprint = hashlib.sha256(facts.fingerprint + b"long rope").digest()
    return replace(facts, rope=dict.fromkeys(facts.rope, rope), long_rope=None, fingerprint=fingerprint), why


def linear(base: float, dim: int, factor: float) -> Rope:
    """Positions divided by `factor`. Chen et al. 2023, "Extending Context Window of Large Language Models via Position Interpolation"."""
    return Rope(base, dim) if factor == 1.0 else Rope(base, dim, (factor,) * (dim // 2))


def llama3(base: float, dim: int, factor: float, low: float, high: float, original: int) -> Rope:
    """Llama 3.1 scaling: slow pairs are divided by `factor`, fast ones are unchanged, with a ramp between.

    low, high  turns within the `original` context below which a pair is slow, above which it is fast
    """
    if not low < high:
        raise ModelFormatError(f"RoPE scaling: low_freq_factor {low} must be less than high_freq_factor {high}")
    divisors = []
    for i in range(dim // 2):
        turns = original / (2 * pi * base ** (2 * i / dim))
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
        divisors.append(1 / ((1 - smooth) / factor + smooth))
    return Rope(base, dim, tuple(divisors))


def yarn(
    base: float, dim: int, factor: float, original: int, *, fast: float, slow: float, scale: float | None = None, truncate: bool = True
) -> Rope:
    """Peng et al. 2023, "YaRN", equations 17 to 25: slow pairs are divided by `factor`, fast ones are unchanged, with a ramp over pairs.

    fast, slow  turns within the `original` context (beta) at the two ends of the ramp
    scale       None: 0.1 · ln(factor) + 1
    """

    if base <= 1.0:
        raise ModelFormatError(f"RoPE scaling yarn: the base is {base}, more than 1 was expected")

    def pair_with(turns: float) -> float:
        return dim * log(original / (turns * 2 * pi)) / (2 * log(base))

    first, last = pair_with(fast), pair_with(slow)
    if truncate:
        first, last = floor(first), ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    span = last - first or 0.001
    divisors = []
    for i in range(dim // 2):
        ramp = min(max((i - first) / span, 0.0), 1.0)
        divisors.append(1 / (ramp / factor + 1 - ramp))
    return Rope(base, dim, tuple(divisors), attention_scale(factor) if scale is None else scale)


def attention_scale(factor: float, mscale: float = 1.0) -> float:
    """YaRN's factor on cosine and sine for a context extended `factor` times."""
    return 1.0 if factor <= 1 else 0.1 * mscale * log(factor) + 1.0


def longrope(base: float, dim: int, factors: Sequence[float], scale: float) -> Rope:
    """Ding et al. 2024, "LongRoPE": one searched divisor per pair."""
    if len(factors) != dim // 2:
        raise ModelFormatError(
            f"RoPE scaling longrope has {len(factors)} factors, {dim // 2} were expected, one per two of the {dim} dimensions"
        )
    return Rope(base, dim, tuple(factors), scale)


def longrope_scale(factor: float, original: int) -> float:
    """LongRoPE's factor on cosine and sine where a file does not say: sqrt(1 + ln(factor) / ln(original context))."""
    return 1.0 if factor <= 1 else sqrt(1 + log(factor) / log(original))
