"""The loads that servers are compared by, by name, and what a machine allows at most in each.

Every round has prompts of its own, so that no cache knows them. The ceiling comes from the machine's measured ceilings (the JSON of
`ridgeline bench roofline`) and the shape of a model: the planner's floors, turned round. Weights and KV are counted once per step and come
from memory: a model that the caches hold may be above its ceiling, others cannot.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from ridgeline.bench.session import Load
from ridgeline.errors import ConfigError
from ridgeline.facts.hardware.devices import Device
from ridgeline.planning.deployment import Deployment, Layout, Workload
from ridgeline.planning.shape import WEIGHT_FORMATS, ModelShape
from ridgeline.planning.speed import decode_work, prefill_work
from ridgeline.planning.step import IDEAL, StepWork, resource_seconds
from ridgeline.sim.fleet.traffic import Arrival, Traffic, parse_length, poisson

THROUGHPUT: Final = ("output_tokens_per_second", "ttft.p50", "ttft.p99", "itl.p50", "itl.p99")
DECODE: Final = ("decode_tokens_per_second", "ttft.p50", "itl.p50", "itl.p99")
PREFILL: Final = ("prefill_tokens_per_second", "ttft.p50")


@dataclass(frozen=True, slots=True)
class Scenario:
    """One load. figures: what of its report is compared, the first being what it is about.

    shared  leading tokens that all prompts of a round have in common        rate  of Poisson arrivals, None: a closed loop
    """

    name: str
    text: str
    streams: int
    requests: int
    prompt: str
    output: str
    figures: Sequence[str]
    shared: int = 0
    rate: float | None = None

    def load(self, number: int, seed: int) -> Load:
        """The load of round `number`: the same for every server."""
        prompt, output = parse_length("prompt", self.prompt), parse_length("output", self.output)
        prefix = number + 1 if self.shared else 0
        if self.rate is not None:
            arrivals = list(Traffic(poisson(self.rate), prompt, output).arrivals(seed + number, self.requests))
            return Load(self.name, arrivals, None, opened=True)
        rng = Random(seed + number)
        asked = [Arrival(0.0, prompt(rng), output(rng), prefix, self.shared) for _ in range(self.requests)]
        return Load(self.name, asked, self.streams)

    @property
    def mean_lengths(self) -> tuple[int, int]:
        """Tokens in and out of an average request."""
        prompt, output = (
            (int(low) + int(high or low)) // 2 for low, _, high in (text.partition("-") for text in (self.prompt, self.output))
        )
        return prompt, output

    @property
    def context(self) -> int:
        """Tokens of its longest request, prompt and output."""
        return sum(int(text.rpartition("-")[2]) for text in (self.prompt, self.output))


def _streams(count: int, requests: int) -> Scenario:
    text = f"{count} stream{'s' * (count > 1)}, 127 tokens in, 64 out, {requests} requests per round"
    return Scenario(f"streams-{count}", text, count, requests, "127", "64", THROUGHPUT if count > 1 else (*DECODE, THROUGHPUT[0]))


START: Final = "start"
"""Not a load: from the start of a server's process to its first token."""

SCENARIOS: Final[Mapping[str, Scenario]] = {
    each.name: each
    for each in (
        _streams(1, 2), _streams(4, 4), _streams(16, 16), _streams(32, 32),
        Scenario("prefill-512", "1 stream, prompts of 512 tokens, 1 out", 1, 2, "512", "1", PREFILL),
        Scenario("prefill-2048", "1 stream, prompts of 2,048 tokens, 1 out", 1, 1, "2048", "1", PREFILL),
        Scenario("shared-prefix", "16 streams, prompts of 1,024 shared and 32 own tokens, 64 out; not cached before", 16, 16,
                 "1056", "64", THROUGHPUT, shared=1024),
        Scenario("decode-2000", "1 stream, 2,000 tokens of context, 64 out", 1, 1, "2000", "64", DECODE),
        Scenario("mixed", "prompts of 20 to 1,000 tokens, 10 to 300 out, 24 requests, 2 per second on average (Poisson)", 24, 24, "20-1000",
                 "10-300", THROUGHPUT, rate=2.0),
    )
}  # fmt: skip


def parse_scenarios(text: str | None) -> tuple[bool, list[Scenario]]:
    """Names with commas, None: all. Whether the start is among them, and the loads in the order of the table. Raises ConfigError."""
    names = [START, *SCENARIOS] if text is None else [name.strip() for name in text.split(",")]
    for name in names:
        if name != START and name not in SCENARIOS:
            raise ConfigError(
                f"--scenarios: {name[:40]!r} is not known; known: {', '.join((START, *SCENARIOS))}", fix={"--scenarios": None}
            )
    return START in names, [each for name, each in SCENARIOS.items() if name in names]


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
    """The most tokens per second by figure: of one stream's decode, of a prompt, and of all output; for the scenario's mean lengths."""
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


def _seconds(deployment: Deployment, work: StepWork) -> float:
    return max(resource_seconds(deployment, work, IDEAL))
