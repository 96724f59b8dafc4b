"""What a machine allows at most in a scenario, from its measured ceilings and the shape of a model: the planner's floors, turned round.

Owns the reading of the JSON of `ridgeline bench roofline`. Weights and KV are counted once a step and come from memory: a model that the
caches hold may be above its ceiling, others cannot.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ridgeline.bench.scenarios import Scenario
from ridgeline.errors import ConfigError
from ridgeline.facts.hardware.devices import Device
from ridgeline.planning.deployment import Deployment, Layout, Workload
from ridgeline.planning.shape import WEIGHT_FORMATS, ModelShape
from ridgeline.planning.speed import decode_work, prefill_work
from ridgeline.planning.step import IDEAL, Work, resource_seconds

FLOATS: Final = ("f32_flops_per_second", "bf16_flops_per_second")
INTEGERS: Final = tuple(f"int{bits}_ops_per_second" for bits in (4, 5, 6, 8))
MOST_BYTES: Final = 1 << 20


def read_roofline(path: Path, threads: int, shape: ModelShape) -> Device:
    """The machine of a roofline, with one thread or with all. Raises ConfigError.

    Where the model's weights have 8 bits or fewer, the fastest products of integers count for all of its operations: no product is faster.
    """
    try:
        text = path.expanduser().read_bytes()[: MOST_BYTES + 1]
        found = json.loads(text) if len(text) <= MOST_BYTES else None
    except (ValueError, RecursionError):
        found = None
    except OSError as error:
        raise ConfigError(f"--roofline {str(path)!r:.200} cannot be read: {error.strerror}", fix={"--roofline": None}) from None
    if not isinstance(found, dict):
        raise ConfigError(f"--roofline {str(path)!r:.200} is no JSON of `ridgeline bench roofline --json`", fix={"--roofline": None})
    which = "one" if threads == 1 else "all"
    keys = (*FLOATS, *INTEGERS) if WEIGHT_FORMATS[shape.dtype].layer_bits < 16 else FLOATS
    peak = max((_rate(found, key, which) for key in keys), default=0.0)
    bandwidth = _rate(found, "dram_bytes_per_second", which)
    if not bandwidth or not peak:
        missing = "dram_bytes_per_second" if not bandwidth else "f32_flops_per_second"
        raise ConfigError(f"{path.name} has no {missing}; write it with `ridgeline bench roofline --json`")
    # Neither its size nor its links are asked about: one machine holds the model.
    return Device("this machine", 1 << 60, bandwidth, {"f32": peak}, 1.0, 0.0, 0)


def _rate(found: Mapping[str, Any], key: str, which: str) -> float:
    """0 for what the machine lacks."""
    entry = found.get(key)
    value = entry.get(which) if isinstance(entry, dict) else None
    return float(value) if isinstance(value, (int, float)) and 0 < value < 1e18 else 0.0


def ceilings(scenario: Scenario, shape: ModelShape, device: Device) -> dict[str, float]:
    """The most tokens a second by figure: of one stream's decode, of a prompt, and of all output; for the scenario's mean lengths."""
    prompt, output = scenario.mean_lengths
    load = Workload(prompt, output, reused=scenario.shared / prompt * (1 - 1 / scenario.requests) if scenario.shared else 0.0)
    whole = Deployment(shape, device, Layout(), None, "f16", prompt + output, scenario.streams, load)
    prefill, alone = _seconds(whole, prefill_work(whole)), _seconds(whole, decode_work(whole, 1))
    together = _seconds(whole, decode_work(whole, scenario.streams))
    waves = scenario.requests / scenario.streams
    seconds = scenario.requests * prefill + waves * (output - 1) * together
    return {
        "decode_tokens_per_second": 1 / alone,
        "prefill_tokens_per_second": prompt / prefill,
        "output_tokens_per_second": scenario.requests * output / seconds,
    }


def _seconds(deployment: Deployment, work: Work) -> float:
    return max(resource_seconds(deployment, work, IDEAL))
