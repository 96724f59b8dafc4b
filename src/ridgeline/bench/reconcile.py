"""A server's own metrics of a load, against what the client saw: time to first token, and requests.

A client that is short of processor time reads late, and blames the server for it. The server's clock does not know the client: where both
means differ, network or client are slow. Metrics are read in Prometheus' text format, under vLLM's names, which several servers have.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ridgeline.bench.client import RequestOutcome
from ridgeline.bench.http import HttpClient, HttpError

METRICS_PATH: Final = "/metrics"
_SAMPLE: Final = re.compile(r"^vllm:time_to_first_token_seconds_(sum|count)(?:\{[^}\n]*\})? ([0-9.eE+-]+)$", re.MULTILINE)
MOST_DIFFERENCE: Final = (0.010, 0.10)
"""Seconds, and share of the server's figure, by which the client's may be longer: the way there and back."""


@dataclass(frozen=True, slots=True)
class ServerTtft:
    """Times to first token, as the server counts them: their number and sum in seconds."""

    count: float = 0.0
    sum: float = 0.0

    @classmethod
    async def read(cls, http: HttpClient) -> "ServerTtft | None":
        """Counts of the server since its start; None where it does not tell."""
        try:
            text = await http.get_text(METRICS_PATH)
        except HttpError:
            return None
        found = {"sum": 0.0, "count": 0.0}
        for name, value in _SAMPLE.findall(text):
            found[name] += float(value)
        return cls(found["count"], found["sum"]) if found["count"] else None

    def since(self, before: "ServerTtft | None") -> "ServerTtft":
        """The difference to earlier counts."""
        return self if before is None else ServerTtft(self.count - before.count, self.sum - before.sum)

    @property
    def mean(self) -> float:
        """Seconds."""
        return self.sum / self.count if self.count else 0.0


def compare(server: ServerTtft, outcomes: Sequence[RequestOutcome]) -> str:
    """A note where the server's mean and that of the client differ; "" where they agree."""
    done = [each.first - each.sent for each in outcomes if each.error is None]
    if not done or not server.count:
        return ""
    if server.count < len(done):
        return f"the server counts {server.count:.0f} first tokens, this client {len(done)}: several servers, or one that has started anew"
    if server.count > len(outcomes):
        return f"the server counts {server.count:.0f} first tokens, this client asked for {len(outcomes)}: others use it too"
    mean, (seconds, share) = sum(done) / len(done), MOST_DIFFERENCE
    if mean - server.mean > max(seconds, share * server.mean):
        return (
            f"TTFT from sending is {mean * 1e3:.1f} ms here, {server.mean * 1e3:.1f} ms by the server's metrics: the way between them, or "
            "this client, takes the rest"
        )
    return ""
