"""Arrivals: when requests come and what they ask for, made up or recorded.

Made-up ones have processes, lengths and shared prefixes; all chance comes from one seed. Recorded ones are bounded, errors name their line.
Formats: Qin et al. 2024, "Mooncake" (timestamp in ms, input_length, output_length, hash_ids of 512-token blocks); Wang et al. 2024,
"BurstGPT" (Timestamp in s, Request tokens, Response tokens); Ridgeline's jsonl has time in s, prompt, output, and prefix and shared where
known.
"""

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from math import cos, exp, log, pi, sqrt
from pathlib import Path
from random import Random
from typing import Any, Final

from ridgeline.errors import ConfigError

MOST: Final = 1 << 24
"""Tokens beyond which a length is not believed."""


@dataclass(frozen=True, slots=True)
class Draw:
    """A distribution of lengths; called for one, which is at least 1 and at most `most`."""

    one: Callable[[Random], int]
    most: int = MOST

    def __call__(self, rng: Random) -> int:
        return self.one(rng)


def constant(mean: float) -> Draw:
    """Always the same."""
    value = max(1, round(mean))
    return Draw(lambda rng: value, value)


def uniform(mean: float) -> Draw:
    """1 … 2 · mean − 1, all equally likely."""
    most = max(1, round(2 * mean) - 1)
    return Draw(lambda rng: rng.randint(1, most), most)


def between(low: int, high: int) -> Draw:
    """`low` … `high`, all equally likely."""
    return Draw(lambda rng: rng.randint(low, high), high)


def exponential(mean: float) -> Draw:
    """Rounded up, so its mean lies half a token higher."""
    return Draw(lambda rng: min(MOST, 1 + int(rng.expovariate(1.0 / mean))))


def lognormal(mean: float, variation: float = 1.0) -> Draw:
    """Skewed as real traffic is; `variation` is standard deviation / mean."""
    sigma = sqrt(log(1.0 + variation * variation))
    scale = mean / exp(sigma * sigma / 2)
    return Draw(lambda rng: min(MOST, max(1, round(scale * exp(sigma * rng.gauss(0.0, 1.0))))))


SHAPES: Final[dict[str, Callable[[float], Draw]]] = {
    "constant": constant, "uniform": uniform, "exponential": exponential, "lognormal": lognormal,
}  # fmt: skip


def parse_length(flag: str, text: str) -> Draw:
    """`500`, `lognormal:500`, `uniform:200` …: a shape and its mean; `20-1000`: a range. Raises ConfigError."""
    low, dash, high = text.partition("-")
    if dash and low.isdecimal() and high.isdecimal() and max(len(low), len(high)) < 10 and 1 <= int(low) <= int(high) <= MOST:
        return between(int(low), int(high))
    shape, colon, mean = text.rpartition(":")
    try:
        value = float(mean)
    except ValueError:
        value = 0.0
    if not 1 <= value <= MOST or (colon and shape not in SHAPES):
        raise ConfigError(
            f"{flag} {text!r:.40} is not understood; write a mean of 1 … {MOST} tokens, a range as 20-1000, or "
            f"{':MEAN, '.join(SHAPES)}:MEAN"
        )
    return SHAPES[shape or "constant"](value)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request. `prefix` names what it shares with others, `shared` how many leading prompt tokens those are.

    time  seconds since the start; for a closed loop, seconds after its user's last answer
    user  of a closed loop; −1 where requests come whatever the answers
    level  0: what the objective is about; 1: work in the background, served after it where the policy is `priority`
    remaining  output tokens that another pool will give; ticket  under which the part before is known there
    blocks  names of what its leading blocks of `CONTENT_BLOCK` tokens hold, where a trace tells: requests begin alike as far as these agree
    """

    time: float
    prompt: int
    output: int
    prefix: int = 0
    shared: int = 0
    user: int = -1
    remaining: int = 0
    ticket: int = 0
    level: int = 0
    blocks: tuple[int, ...] = ()


CONTENT_BLOCK: Final = 512
"""Tokens, as Mooncake's traces have it."""

DAY: Final = 86_400.0
"""Seconds."""

Gaps = Callable[[Random, float], Iterator[float]]
"""Moments of arrival from a moment on, ascending, without end."""


def poisson(rate: float) -> Gaps:
    """Independent arrivals, `rate` a second."""

    def moments(rng: Random, now: float) -> Iterator[float]:
        while True:
            now += rng.expovariate(rate)
            yield now

    return moments


def bursty(rate: float, burst: float = 4.0, cycle: float = 60.0) -> Gaps:
    """Poisson arrivals: in a part 1 / (2 · burst) of every `cycle` seconds `burst` times the mean rate, in the rest the other half."""
    busy = cycle / (2 * burst)

    def at(now: float) -> float:
        return rate * burst if now % cycle < busy else rate * 0.5 / (1 - 1 / (2 * burst))

    return _thinned(rate * burst, at)


def diurnal(rate: float, peak: float = 2.0, period: float = DAY) -> Gaps:
    """A day: the rate follows a cosine between (2 − peak) and peak times the mean; 1 ≤ peak ≤ 2. It starts at its lowest."""

    def at(now: float) -> float:
        return rate * (1.0 - (peak - 1.0) * cos(2 * pi * now / period))

    return _thinned(rate * peak, at)


def _thinned(highest: float, at: Callable[[float], float]) -> Gaps:
    """A Poisson process of varying rate (Lewis and Shedler 1979)."""

    def moments(rng: Random, now: float) -> Iterator[float]:
        while True:
            now += rng.expovariate(highest)
            if rng.random() * highest < at(now):
                yield now

    return moments


PROCESSES: Final[dict[str, Callable[[float], Gaps]]] = {"poisson": poisson, "bursty": bursty, "diurnal": diurnal}


@dataclass(frozen=True, slots=True)
class Traffic:
    """An open stream: requests come whether or not earlier ones are answered.

    most        tokens of prompt and output together: what is drawn longer is cut
    prefixes    so many different shared beginnings of `shared` tokens each, equally likely; 0: nothing is shared
    background  share of requests of level 1
    """

    moments: Gaps
    prompt: Draw
    output: Draw
    most: int = 1 << 27
    prefixes: int = 0
    shared: int = 0
    background: float = 0.0

    @property
    def longest(self) -> int:
        """Tokens of prompt and output that no request exceeds."""
        return min(self.most, self.prompt.most + self.output.most)

    def arrivals(self, seed: int, count: int) -> Iterator[Arrival]:
        """The first `count` requests, in order of time."""
        return islice(self._asked(seed, 0.0), count)

    def within(self, seed: int, start: float, seconds: float) -> Iterator[Arrival]:
        """The requests of so many seconds from the moment `start` on, whose time is counted from there."""
        return takewhile(lambda arrival: arrival.time < seconds, self._asked(seed, start))

    def _asked(self, seed: int, start: float) -> Iterator[Arrival]:
        rng = Random(seed)
        for moment in self.moments(Random(rng.getrandbits(64)), start):
            yield _ask(moment - start, self, rng, -1)


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`users` who each wait for their answer and then think for an exponential time of mean `think` seconds."""

    users: int
    think: float
    prompt: Draw
    output: Draw
    most: int = 1 << 27
    prefixes: int = 0
    shared: int = 0
    background: float = 0.0

    @property
    def longest(self) -> int:
        """Tokens of prompt and output that no request exceeds."""
        return min(self.most, self.prompt.most + self.output.most)

    def requests(self, seed: int, user: int) -> Iterator[Arrival]:
        """Requests of one user, one after the other; `time` is the pause before it."""
        rng = Random(f"{seed}:{user}")
        while True:
            yield _ask(rng.expovariate(1.0 / self.think) if self.think else 0.0, self, rng, user)


def _ask(time: float, load: "Traffic | ClosedLoop", rng: Random, user: int) -> Arrival:
    prompt = min(load.prompt(rng), load.most - 1)
    prefix = rng.randrange(load.prefixes) + 1 if load.prefixes else 0
    output, shared = min(load.output(rng), load.most - prompt), min(load.shared, prompt) if prefix else 0
    level = int(rng.random() < load.background) if load.background else 0
    return Arrival(time, prompt, output, prefix, shared, user, level=level)


def parse_process(text: str, rate: float) -> Gaps:
    """`poisson`, `bursty` or `diurnal` at a mean rate. Raises ConfigError."""
    if text not in PROCESSES:
        raise ConfigError(f"--arrivals {text!r:.40} is not known; known: {', '.join(PROCESSES)}, closed")
    if not 1e-6 <= rate <= 1e6:
        raise ConfigError(f"--rate is {rate:g}, outside 1e-6 … 1e6 requests per second")
    return PROCESSES[text](rate)


LONGEST_LINE: Final = 1 << 20
MOST_SECONDS: Final = 1e9


def read_trace(path: Path, speed: float = 1.0) -> list[Arrival]:
    """All requests of a trace, in order of time, which starts at 0; `speed` 2 plays it twice as fast. Raises ConfigError."""
    if not 1e-3 <= speed <= 1e3:
        raise ConfigError(f"--speed is {speed:g}, outside 0.001 … 1000")
    try:
        with path.open(encoding="utf-8", newline="") as file:
            found = list(_csv(path, file) if path.suffix == ".csv" else _jsonl(path, file))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path.name} is not UTF-8 (byte {error.start}); give a jsonl or csv trace") from None
    if not found:
        raise ConfigError(f"{path.name} holds no request; give a trace with at least one")
    found.sort(key=lambda arrival: arrival.time)
    start = found[0].time
    return [replace(each, time=(each.time - start) / speed) for each in found]


def _jsonl(path: Path, lines: Iterator[str]) -> Iterator[Arrival]:
    seen: dict[int, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        entry = _object(path, number, line)
        yield _mooncake(path, number, entry, seen) if "input_length" in entry else _own(path, number, entry)


def _object(path: Path, number: int, line: str) -> dict[str, Any]:
    if len(line) > LONGEST_LINE:
        raise ConfigError(f"{path.name}, line {number} has more than {LONGEST_LINE} characters; is it a trace?")
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        raise ConfigError(f"{path.name}, line {number} is no JSON") from None
    if not isinstance(entry, dict):
        raise ConfigError(f"{path.name}, line {number} is no object")
    return entry


def _own(path: Path, number: int, entry: dict[str, Any]) -> Arrival:
    prompt = int(_number(path, number, entry, "prompt", 1, MOST))
    prefix = int(_number(path, number, entry, "prefix", 0, 2**31, 0))
    return Arrival(
        _number(path, number, entry, "time", 0, MOST_SECONDS),
        prompt,
        int(_number(path, number, entry, "output", 1, MOST)),
        prefix,
        int(_number(path, number, entry, "shared", 0, prompt, 0)) if prefix else 0,
        level=int(_number(path, number, entry, "level", 0, 1, 0)),
    )


def _mooncake(path: Path, number: int, entry: dict[str, Any], seen: dict[int, int]) -> Arrival:
    """Its blocks say all; `shared` is what an earlier prompt with the same first block had, too, as far as that is known from the ids."""
    prompt = int(_number(path, number, entry, "input_length", 1, MOST))
    hashes = entry.get("hash_ids", [])
    if not isinstance(hashes, list) or not all(type(each) is int for each in hashes):
        raise ConfigError(f"{path.name}, line {number}: hash_ids must be a list of integers")
    known = 0
    while known < len(hashes) and seen.get(hashes[known], hashes[0]) == hashes[0] and (known == 0 or hashes[known] in seen):
        known += 1
    for each in hashes:
        seen.setdefault(each, hashes[0])
    return Arrival(
        _number(path, number, entry, "timestamp", 0, MOST_SECONDS * 1e3) / 1e3,
        prompt,
        int(_number(path, number, entry, "output_length", 1, MOST)),
        hashes[0] % 2**31 + 1 if hashes else 0,
        min(prompt, known * CONTENT_BLOCK) if hashes else 0,
        blocks=tuple(hashes[: -(-prompt // CONTENT_BLOCK)]),
    )


def _csv(path: Path, lines: Iterator[str]) -> Iterator[Arrival]:
    for number, row in enumerate(csv.DictReader(lines), 2):
        prompt = _number(path, number, row, "Request tokens", 0, MOST)
        output = _number(path, number, row, "Response tokens", 0, MOST)
        if prompt and output:  # BurstGPT keeps failed requests, with an answer of no tokens
            yield Arrival(_number(path, number, row, "Timestamp", 0, MOST_SECONDS), int(prompt), int(output))


def _number(path: Path, number: int, entry: dict[str, Any], key: str, low: float, high: float, default: float | None = None) -> float:
    value = entry.get(key, default)
    try:
        found = float(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else float("nan")
    except (ValueError, OverflowError):
        found = float("nan")
    if not low <= found <= high:
        raise ConfigError(f"{path.name}, line {number}: {key} is {value!r:.40}; a number of {low:g} … {high:g} was expected")
    return found


def read_steps(path: Path) -> list[tuple[int, int, float]]:
    """(tokens computed, positions looked back at, seconds) of each step of a jsonl step log. Raises ConfigError."""
    found = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                entry = _object(path, number, line)
                found.append((
                    int(_number(path, number, entry, "tokens", 1, MOST)),
                    int(_number(path, number, entry, "cached", 0, MOST * 4096)),
                    _number(path, number, entry, "seconds", 0, 3600),
                ))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path.name} is not UTF-8 (byte {error.start}); give a jsonl step log") from None
    return found
