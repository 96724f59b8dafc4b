"""The loads that servers are compared by, by name. Every round has prompts of its own, so that no cache knows them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from ridgeline.bench.session import Load
from ridgeline.errors import ConfigError
from ridgeline.sim.fleet.lengths import parse_length
from ridgeline.sim.fleet.traffic import Arrival, Traffic, poisson

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
    text = f"{count} stream{'s' * (count > 1)}, 127 tokens in, 64 out, {requests} requests a round"
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
        Scenario("mixed", "prompts of 20 to 1,000 tokens, 10 to 300 out, 24 requests, 2 a second on average (Poisson)", 24, 24, "20-1000",
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
