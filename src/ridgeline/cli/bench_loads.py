"""Flags to loads: lengths, arrivals, traces, and lists of streams or rates that are measured one after the other. Owns their bounds."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import Final

from ridgeline.bench.session import Load
from ridgeline.errors import ConfigError
from ridgeline.sim.fleet.lengths import parse_length
from ridgeline.sim.fleet.traces import read_trace
from ridgeline.sim.fleet.traffic import Arrival, ClosedLoop, Traffic, parse_process

MOST_TOKENS: Final = 1 << 20
MOST_STREAMS: Final = 4096
MOST_REQUESTS: Final = 100_000
REQUESTS: Final = 100
BURST: Final = "burst"


@dataclass(frozen=True, slots=True)
class Asked:
    """The flags of `bench serve` that say what is sent and when; None where not given."""

    requests: int | None
    seconds: float | None
    streams: str | None
    rate: str | None
    arrivals: str
    input_len: str
    output_len: str
    shared_prefix: int
    prefixes: int
    trace: Path | None
    speed: float
    seed: int


def loads_of(asked: Asked) -> list[Load]:
    """One load for each number of streams or each rate. Raises ConfigError."""
    streams = _listed("--streams", asked.streams)
    rates = _listed("--rate", asked.rate)
    if any(each != int(each) or not 1 <= each <= MOST_STREAMS for each in streams):
        raise ConfigError(
            f"--streams {asked.streams} is not understood; write whole numbers of 1 … {MOST_STREAMS}", fix={"--streams": "16"}
        )
    opened = bool(rates) or asked.trace is not None or asked.arrivals == BURST
    if opened and len(streams) > 1:
        raise ConfigError(
            f"--streams {asked.streams} is a list; where requests come by themselves it is one limit", fix={"--streams": None}
        )
    most = int(streams[0]) if streams else None
    if asked.trace is not None:
        return [_trace(asked, most)]
    if asked.arrivals == BURST:
        return [Load(f"burst of {asked.requests or REQUESTS}", _burst(asked), most, opened=True)]
    if rates:
        return [Load(f"{rate:g}/s", _open(asked, rate), most, opened=True) for rate in rates]
    counts = [int(each) for each in streams or [1]]
    return [Load(f"{count} stream{'s' * (count > 1)}", _closed(asked), count, seconds=asked.seconds) for count in counts]


def _listed(flag: str, text: str | None) -> list[float]:
    try:
        return [] if text is None else [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{flag} {text!r:.40} is not understood; write a number, or several with commas", fix={flag: None}) from None


def _users(asked: Asked) -> ClosedLoop:
    prompt, output = parse_length("--input-len", asked.input_len), parse_length("--output-len", asked.output_len)
    return ClosedLoop(1, 0.0, prompt, output, MOST_TOKENS, asked.prefixes if asked.shared_prefix else 0, asked.shared_prefix)


def _closed(asked: Asked) -> Iterable[Arrival]:
    """Without end where seconds end it."""
    requests = asked.requests if asked.requests is not None else None if asked.seconds is not None else REQUESTS
    return _Again(_users(asked), asked.seed, requests)


@dataclass(frozen=True, slots=True)
class _Again:
    """Arrivals of a closed loop that begin anew whenever they are asked for."""

    users: ClosedLoop
    seed: int
    count: int | None

    def __iter__(self) -> "islice[Arrival]":
        return islice(self.users.requests(self.seed, 0), self.count)


def _open(asked: Asked, rate: float) -> list[Arrival]:
    users = _users(asked)
    traffic = Traffic(parse_process(asked.arrivals, rate), users.prompt, users.output, MOST_TOKENS, users.prefixes, users.shared)
    count = asked.requests or (MOST_REQUESTS if asked.seconds is not None else REQUESTS)
    found = list(takewhile(lambda each: asked.seconds is None or each.time < asked.seconds, traffic.arrivals(asked.seed, count)))
    if not found:
        raise ConfigError(f"no request comes within --seconds {asked.seconds:g} at --rate {rate:g}; give more of one of them")
    return found


def _burst(asked: Asked) -> list[Arrival]:
    return list(islice(_users(asked).requests(asked.seed, 0), asked.requests or REQUESTS))


def _trace(asked: Asked, most: int | None) -> Load:
    assert asked.trace is not None
    found = read_trace(asked.trace, asked.speed)[: asked.requests]
    longest = max(each.prompt + each.output for each in found)
    if len(found) > MOST_REQUESTS or longest > MOST_TOKENS:
        raise ConfigError(
            f"{asked.trace.name} has {len(found)} requests, the longest of {longest} tokens; "
            f"at most {MOST_REQUESTS} of {MOST_TOKENS} are sent",
            fix={"--requests": str(MOST_REQUESTS)},
        )
    seconds = asked.seconds
    return Load(asked.trace.name, [each for each in found if seconds is None or each.time < seconds], most, opened=True)
