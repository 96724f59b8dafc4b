"""The time that one request would have taken alone: the real scheduler over steps of a server's own durations, fitted to its last steps.

Also the program of the process that answers `observe.alone`, nice to all others.
"""

import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from ridgeline.core.params import Limits
from ridgeline.engine.admit import ModelLimits
from ridgeline.engine.executor import ExecutorInfo
from ridgeline.errors import ConfigError, RequestError
from ridgeline.sim.fleet.durations import ObservedStep, fit_constant
from ridgeline.sim.fleet.fleet import make_request
from ridgeline.sim.fleet.measures import Tally
from ridgeline.sim.fleet.replica import VOCAB_SIZE, FinishedRequest, Replica, ReplicaConfig
from ridgeline.sim.fleet.traffic import Arrival
from ridgeline.text.sandbox_frames import frame, receive, send

MAX_OUTPUT: Final = 4_096
"""Tokens of an answer that are simulated."""
NICENESS: Final = 15


@dataclass(frozen=True, slots=True)
class Alone:
    """Seconds to the first token and to the last one, or to the last that is simulated."""

    ttft: float
    total: float


def simulate_alone(info: ExecutorInfo, steps: Sequence[ObservedStep], prompt: int, output: int, cached: int) -> Alone:
    """A request of so many tokens, the first `cached` of them in the prefix cache, and nothing beside it. Raises ConfigError where too few
    steps are known."""
    limits = Limits(rows=info.rows, token_budget=info.tokens, max_model_len=info.max_model_len)
    replica = Replica(0, ReplicaConfig(limits, info.kv, fit_constant(steps, info.seconds)), Tally())
    bounds = ModelLimits(VOCAB_SIZE, info.max_model_len, frozenset(), info.kv)
    size = info.kv.block_tokens
    shared, output = min(cached, prompt - 1) // size * size, max(1, min(output, MAX_OUTPUT))
    found: list[FinishedRequest] = []
    for number, arrival in enumerate((Arrival(0.0, shared + 1, 1, 1, shared), Arrival(0.0, prompt, output, 1, shared))):
        if number or shared:
            replica.send(make_request(arrival, number, bounds), arrival, replica.time, replica.time)
        while replica.has_work:
            found += replica.turn()
    return Alone(found[-1].first - found[-1].arrived, found[-1].time - found[-1].arrived)


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """The fields of `observe.alone.Counterfactual`, for a question of it; {} where too few steps are known."""
    info, prompt = msgspec.convert(asked["info"], ExecutorInfo), asked["prompt"]
    steps = [ObservedStep(*each) for each in asked["steps"]]
    try:
        as_it_was = simulate_alone(info, steps, prompt, asked["output"], asked["hit"])
        cached = simulate_alone(info, steps, prompt, 1, prompt)
    except (ConfigError, RequestError):
        return {}
    return {"ttft": as_it_was.ttft, "total": as_it_was.total, "cached_ttft": cached.ttft}


def main(descriptor: int) -> None:
    """Answers each frame until the server closes its side."""
    os.nice(NICENESS)
    stream = socket.socket(fileno=descriptor)
    if receive(stream) is None:
        return
    send(stream, frame({}))
    while (asked := receive(stream)) is not None:
        send(stream, frame(answer(asked)))


if __name__ == "__main__":
    main(int(sys.argv[1]))
