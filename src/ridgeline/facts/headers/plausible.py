"""Plausibility of a header's numbers: what a supported architecture may say and no published model does. Reads no weights.

Numbers that cannot be are errors of the readers beside this file. Here is what a wrong conversion leaves: it runs, and answers worse.
"""

from math import pi
from typing import Final

from ridgeline.errors import Finding
from ridgeline.facts.model import ModelFacts, Rope
from ridgeline.models.table import RUNNABLE

CHECK: Final = "header"
FIX: Final = "compare it with the config.json of the original model, and use another conversion"

EPS: Final = (1e-13, 1e-2)
"""Bounds on the epsilon of norms: models have 1e-12 to 1e-5."""
LEAST_NAMED_SHARE: Final = 0.8
"""Rows of the embedding whose id names a token. The padding of real models leaves 0.98 and more."""


def check_header(facts: ModelFacts) -> tuple[Finding, ...]:
    """Implausible numbers among the facts for runners."""
    found = []
    if facts.eps and not EPS[0] <= facts.eps <= EPS[1]:
        found.append(f"the epsilon of its norms is {facts.eps:g}; models have {EPS[0]:g} to {EPS[1]:g}")
    if facts.tokens < LEAST_NAMED_SHARE * facts.vocab:
        found.append(f"the tokenizer names {facts.tokens} ids, the embedding has {facts.vocab} rows: they may not belong together")
    rope = facts.rope.get("full")
    if rope is not None and "full" in facts.layer_kinds:
        found += _check_rope(facts, rope)
    return tuple(Finding("warning", CHECK, cause, FIX) for cause in found)


def _check_rope(facts: ModelFacts, rope: Rope) -> list[str]:
    for context, rows, base in RUNNABLE[facts.architecture].least_rope_bases:
        if facts.context >= context and facts.vocab >= rows and rope.base < base:
            return [f"the RoPE base is {rope.base:g}; {facts.architecture} models with a context of {facts.context} have {base:g} or more"]
    slowest = 2 * pi * rope.base ** ((rope.dim - 2) / rope.dim) * (rope.divisors[-1] if rope.divisors else 1.0)
    if facts.context > slowest and facts.long_rope is None:
        return [f"its context of {facts.context} is more than one turn of RoPE's slowest pair, {slowest:.0f}; a base or scaling is missing"]
    return []
