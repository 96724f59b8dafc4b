"""What a machine allows at most in a scenario, from its measured ceilings and the shape of a model: the planner's floors, turned round.

Owns the reading of the JSON of `ridgeline bench roofline`. A ceiling counts every byte and operation once; no server can be above it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ridgeline.bench.scenarios import Scenario
from ridgeline.errors import ConfigError
from ridgeline.facts.devices import Device
from ridgeline.facts.shape import ModelShape
from ridgeline.planning.deployment import Deployment, Layout, Workload
from ridgeline.planning.speed import decode_work, prefill_work
from ridgeline.planning.step import IDEAL, Work, resource_seconds

KINDS: Final = {"f32": "f32_flops_per_second", "f16": "bf16_flops_per_second", "int8": "int8_ops_per_second"}
MOST_BYTES: Final = 1 << 20


def read_roofline(path: Path, threads: int) -> Device:
    """The machine of a roofline, with one thread or with all. Raises ConfigError."""
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
    peaks = {kind: rate for kind, key in KINDS.items() if (rate := _rate(found, key, which)) is not None}
    bandwidth = _rate(found, "dram_bytes_per_second", which)
    if bandwidth is None or "f32" not in peaks:
        raise ConfigError(
            f"{path.name} lacks dram_bytes_per_second or f32_flops_per_second; write it with `ridgeline bench roofline --json`"
        )
    # Neither memory nor links are asked about: one machine holds the model.
    return Device("this machine", 1 << 60, bandwidth, peaks, 1.0, 0.0, 0)


def _rate(found: Mapping[str, Any], key: str, which: str) -> float | None:
    entry = found.get(key)
    value = entry.get(which) if isinstance(entry, dict) else None
    return float(value) if isinstance(value, (int, float)) and 0 < value < 1e18 else None


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
