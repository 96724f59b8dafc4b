"""Flags to the servers of a comparison, and to what the machine allows them."""

import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from ridgeline.bench.ceiling import ceilings, read_roofline
from ridgeline.bench.scenarios import SCENARIOS, Scenario
from ridgeline.bench.servers import RECIPES, Size, Spec, parse_spec
from ridgeline.config.env import cache_directory
from ridgeline.errors import ConfigError
from ridgeline.facts.hardware.machine import machine_facts
from ridgeline.facts.headers.read import describe_model
from ridgeline.planning.shape import shape_of

SPARE_TOKENS: Final = 64
"""Of a sequence's context beyond the longest request: a server's own special tokens."""

Limits = Mapping[str, Mapping[str, float]]
"""Scenario → figure → the most that the machine allows."""


def specs_of(texts: Sequence[str], scenarios: Sequence[Scenario], threads: int | None, programs: Sequence[str]) -> list[Spec]:
    """Servers with names of their own, large enough for the scenarios. Raises ConfigError."""
    if len(texts) < 2:
        raise ConfigError("one server is not compared with anything; give two or more, or use `ridgeline bench serve`")
    every = list(scenarios) or list(SCENARIOS.values())
    streams, context = max(each.streams for each in every), max(each.context for each in every) + SPARE_TOKENS
    size = Size(threads or machine_facts().processors, streams, context)
    paths = dict(_program(text) for text in programs)
    specs = [parse_spec(text, size, paths) for text in texts]
    for before, each in pairwise(sorted(spec.name for spec in specs)):
        if before == each:
            raise ConfigError(f"two servers are called {each[:60]!r}; name them: first={texts[0][:60]}")
    return specs


def _program(text: str) -> tuple[str, str]:
    kind, equals, path = text.partition("=")
    if not equals or kind not in RECIPES:
        raise ConfigError(f"--program {text[:60]!r} is not understood; write KIND=PATH, a kind of {', '.join(RECIPES)}")
    return kind, path


def ceilings_of(scenarios: Sequence[Scenario], roofline: Path | None, shape: str | None, first: str, threads: int | None) -> Limits:
    """What the machine of a roofline allows for a model; nothing without a roofline. Raises ConfigError."""
    if roofline is None:
        return {}
    kind, _, detail = first.rpartition("=")[2].partition(":")
    name = shape or (shlex.split(detail)[0] if kind in RECIPES else None)
    if name is None:
        raise ConfigError("--roofline needs the model's size, and the first server is not started here; name a file of it with --shape")
    model = shape_of(describe_model(name, cache_directory()))
    device = read_roofline(roofline, threads or machine_facts().processors, model)
    return {each.name: ceilings(each, model, device) for each in scenarios}
