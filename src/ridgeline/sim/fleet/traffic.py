"""Arrivals of requests: generated or recorded.

Generated traffic has an arrival process, lengths and shared prefixes; all randomness comes from one seed. Recorded traffic is validated,
errors name the line.
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
from shlex import quote
from typing import Any, Final

from ridgeline.errors import ConfigError, nearest

MAX_TOKENS: Final = 1 << 24
"""Longest accepted length."""


@dataclass(frozen=True, slots=True)
class LengthDistribution:
    """A distribution of lengths of 1 … `max_tokens` tokens; calling it draws one."""

    sample: Callable[[Random], int]
    max_tokens: int = MAX_TOKENS

    def __call__(self, rng: Random) -> int:
        return self.sample(rng)


def constant(mean: float) -> LengthDistribution:
    """Always the same."""
    value = max(1, round(mean))
    return LengthDistribution(lambda rng: value, value)


def uniform(mean: float) -> LengthDistribution:
    """1 … 2 · mean − 1, all equally likely."""
    max_tokens = max(1, round(2 * mean) - 1)
    return LengthDistribution(lambda rng: rng.randint(1, max_tokens), max_tokens)


def between(low: int, high: int) -> LengthDistribution:
    """`low` … `high`, all equally likely."""
    return LengthDistribution(lambda rng: rng.randint(low, high), high)


def exponential(mean: float) -> LengthDistribution:
    """Exponential, rounded up: the mean is half a token higher."""
    return LengthDistribution(lambda rng: min(MAX_TOKENS, 1 + int(rng.expovariate(1.0 / mean))))


def lognormal(mean: float, variation: float = 1.0) -> LengthDistribution:
    """Skewed as real traffic is; `variation` is standard deviation / mean."""
    sigma = sqrt(log(1.0 + variation * variation))
    scale = mean / exp(sigma * sigma / 2)
    return LengthDistribution(lambda rng: min(MAX_TOKENS, max(1, round(scale * exp(sigma * rng.gauss(0.0, 1.0))))))


DISTRIBUTIONS: Final[dict[str, Callable[[float], LengthDistribution]]] = {
    "constant": constant, "uniform": uniform, "exponential": exponential, "lognormal": lognormal,
}  # fmt: skip


def parse_length(flag: str, text: str) -> LengthDistribution:
    """`500`, `lognormal:500`, `uniform:200` …: a shape and its mean; `20-1000`: a range. Raises ConfigError."""
    low, dash, high = text.partition("-")
    if dash and low.isdecimal() and high.isdecimal() and max(len(low), len(high)) < 10 and 1 <= int(low) <= int(high) <= MAX_TOKENS:
        return between(int(low), int(high))
    shape, colon, mean = text.rpartition(":")
    try:
        value = float(mean)
    except ValueError:
        value = 0.0
    if not 1 <= value <= MAX_TOKENS or (colon and shape not in DISTRIBUTIONS):
        raise ConfigError(
            f"{flag} {text!r:.40} is not understood; write a mean of 1 … {MAX_TOKENS} tokens, a range as 20-1000, or "
            f"{':MEAN, '.join(DISTRIBUTIONS)}:MEAN",
            fix={f"--{flag.lstrip('-')}": None},
        )
    return DISTRIBUTIONS[shape or "constant"](value)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request.

    prefix  id of the prefix that it shares with others, 0 for none; shared  its length in tokens

    time  seconds since the start; for a closed loop, seconds after its user's last answer
    user  of a closed loop; −1 in an open stream
    level  0: the objective applies; 1: background work, served after level 0 where the policy is `priority`
    decode_tokens  output tokens left to a decode pool; prefill_id  identifies the prefill there
    blocks  content ids of its leading blocks of `CONTENT_BLOCK` tokens, where a trace has them: equal ids are equal prefixes
    """

    time: float
    prompt: int
    output: int
    prefix: int = 0
    shared: int = 0
    user: int = -1
    decode_tokens: int = 0
    prefill_id: int = 0
    level: int = 0
    blocks: tuple[int, ...] = ()


CONTENT_BLOCK: Final = 512
"""Tokens per hashed block in Mooncake's traces."""

DAY_SECONDS: Final = 86_400.0
"""Seconds."""

ArrivalProcess = Callable[[Random, float], Iterator[float]]
"""(rng, start) → endless ascending arrival times from `start` on."""


def poisson(rate: float) -> ArrivalProcess:
    """Independent arrivals, `rate` per second."""

    def process(rng: Random, now: float) -> Iterator[float]:
        while True:
            now += rng.expovariate(rate)
            yield now

    return process


def bursty(rate: float, burst: float = 4.0, cycle: float = 60.0) -> ArrivalProcess:
    """Poisson arrivals in bursts: for 1 / (2 · burst) of every `cycle` seconds at `burst` times the mean rate, else at a lower rate."""
    busy = cycle / (2 * burst)

    def rate_at(now: float) -> float:
        return rate * burst if now % cycle < busy else rate * 0.5 / (1 - 1 / (2 * burst))

    return _thinned(rate * burst, rate_at)


def diurnal(rate: float, peak: float = 2.0, period: float = DAY_SECONDS) -> ArrivalProcess:
    """Daily cycle: the rate follows a cosine between (2 − peak) and peak times the mean, 1 ≤ peak ≤ 2, starting at its lowest."""

    def rate_at(now: float) -> float:
        return rate * (1.0 - (peak - 1.0) * cos(2 * pi * now / period))

    return _thinned(rate * peak, rate_at)


def _thinned(highest: float, rate_at: Callable[[float], float]) -> ArrivalProcess:
    """A Poisson process of varying rate (Lewis and Shedler 1979)."""

    def process(rng: Random, now: float) -> Iterator[float]:
        while True:
            now += rng.expovariate(highest)
            if rng.random() * highest < rate_at(now):
                yield now

    return process


PROCESSES: Final[dict[str, Callable[[float], ArrivalProcess]]] = {"poisson": poisson, "bursty": bursty, "diurnal": diurnal}


@dataclass(frozen=True, slots=True)
class Traffic:
    """An open stream: requests come whether or not earlier ones are answered.

    max_tokens  of prompt and output together: longer requests are truncated
    prefixes    number of different shared prefixes of `shared` tokens each, equally likely; 0: none
    background  share of requests of level 1
    """

    process: ArrivalProcess
    prompt: LengthDistribution
    output: LengthDistribution
    max_tokens: int = 1 << 27
    prefixes: int = 0
    shared: int = 0
    background: float = 0.0

    @property
    def max_length(self) -> int:
        """Upper bound of prompt and output tokens of a request."""
        return min(self.max_tokens, self.prompt.max_tokens + self.output.max_tokens)

    def arrivals(self, seed: int, count: int) -> Iterator[Arrival]:
        """The first `count` requests, in order of time."""
        return islice(self._generate(seed, 0.0), count)

    def arrivals_within(self, seed: int, start: float, seconds: float) -> Iterator[Arrival]:
        """The requests of `seconds` from `start` on; their times count from `start`."""
        return takewhile(lambda arrival: arrival.time < seconds, self._generate(seed, start))

    def _generate(self, seed: int, start: float) -> Iterator[Arrival]:
        rng = Random(seed)
        for moment in self.process(Random(rng.getrandbits(64)), start):
            yield _draw_arrival(moment - start, self, rng, -1)


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Closed loop: each of `users` waits for its answer, then for an exponential time of mean `think` seconds."""

    users: int
    think: float
    prompt: LengthDistribution
    output: LengthDistribution
    max_tokens: int = 1 << 27
    prefixes: int = 0
    shared: int = 0
    background: float = 0.0

    @property
    def max_length(self) -> int:
        """Upper bound of prompt and output tokens of a request."""
        return min(self.max_tokens, self.prompt.max_tokens + self.output.max_tokens)

    def requests(self, seed: int, user: int) -> Iterator[Arrival]:
        """Requests of one user, one after the other; `time` is the pause before it."""
        rng = Random(f"{seed}:{user}")
        while True:
            yield _draw_arrival(rng.expovariate(1.0 / self.think) if self.think else 0.0, self, rng, user)


def _draw_arrival(time: float, load: "Traffic | ClosedLoop", rng: Random, user: int) -> Arrival:
    prompt = min(load.prompt(rng), load.max_tokens - 1)
    prefix = rng.randrange(load.prefixes) + 1 if load.prefixes else 0
    output, shared = min(load.output(rng), load.max_tokens - prompt), min(load.shared, prompt) if prefix else 0
    level = int(rng.random() < load.background) if load.background else 0
    return Arrival(time, prompt, output, prefix, shared, user, level=level)


def parse_arrival_process(text: str, rate: float) -> ArrivalProcess:
    """`poisson`, `bursty` or `diurnal` at a mean rate. Raises ConfigError."""
    if text not in PROCESSES:
        raise ConfigError(
            f"--arrivals {text!r:.40} is not known; known: {', '.join(PROCESSES)}, closed", fix={"--arrivals": nearest(text, PROCESSES)}
        )
    if not 1e-6 <= rate <= 1e6:
        raise ConfigError(f"--rate is {rate:g}, outside 1e-6 … 1e6 requests per second", fix={"--rate": None})
    return PROCESSES[text](rate)


MAX_LINE_CHARACTERS: Final = 1 << 20
RECORDING: Final = b"ridgeline recording "
"""The first bytes of a recording of any version (`engine.record`)."""
MAX_SECONDS: Final = 1e9


def read_trace(path: Path, speed: float = 1.0) -> list[Arrival]:
    """All requests of a trace, in order of time, which starts at 0; `speed` 2 plays it twice as fast. Raises ConfigError, which says how to
    get a trace where there is none."""
    if not 1e-3 <= speed <= 1e3:
        raise ConfigError(f"--speed is {speed:g}, outside 0.001 … 1000", fix={"--speed": None})
    if path.is_dir():  # an incident of the flight recorder
        path /= "trace.jsonl"
    try:
        with path.open("rb") as binary:
            is_recording = binary.read(len(RECORDING)) == RECORDING
        if is_recording:
            raise ConfigError(f"{path.name} is a recording; make a trace of it: ridgeline replay {quote(str(path))} --trace trace.jsonl")
        with path.open(encoding="utf-8", newline="") as file:
            found = list(_read_csv(path, file) if path.suffix == ".csv" else _read_jsonl(path, file))
    except FileNotFoundError:
        raise ConfigError(
            f"there is no trace {str(path)!r:.200}; record one: ridgeline serve MODEL --record FILE, then ridgeline replay FILE "
            "--trace trace.jsonl"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path.name} is not UTF-8 (byte {error.start}); give a jsonl or csv trace") from None
    if not found:
        raise ConfigError(f"{path.name} holds no request; give a trace with at least one")
    found.sort(key=lambda arrival: arrival.time)
    start = found[0].time
    return [replace(each, time=(each.time - start) / speed) for each in found]


def _read_jsonl(path: Path, lines: Iterator[str]) -> Iterator[Arrival]:
    seen: dict[int, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        entry = _parse_object(path, number, line)
        yield _parse_mooncake(path, number, entry, seen) if "input_length" in entry else _parse_ridgeline(path, number, entry)


def _parse_object(path: Path, number: int, line: str) -> dict[str, Any]:
    if len(line) > MAX_LINE_CHARACTERS:
        raise ConfigError(f"{path.name}, line {number} has more than {MAX_LINE_CHARACTERS} characters; is it a trace?")
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        raise ConfigError(f"{path.name}, line {number} is no JSON") from None
    if not isinstance(entry, dict):
        raise ConfigError(f"{path.name}, line {number} is no object")
    return entry


def _parse_ridgeline(path: Path, number: int, entry: dict[str, Any]) -> Arrival:
    prompt = int(_parse_number(path, number, entry, "prompt", 1, MAX_TOKENS))
    prefix = int(_parse_number(path, number, entry, "prefix", 0, 2**31, 0))
    return Arrival(
        _parse_number(path, number, entry, "time", 0, MAX_SECONDS),
        prompt,
        int(_parse_number(path, number, entry, "output", 1, MAX_TOKENS)),
        prefix,
        int(_parse_number(path, number, entry, "shared", 0, prompt, 0)) if prefix else 0,
        level=int(_parse_number(path, number, entry, "level", 0, 1, 0)),
    )


def _parse_mooncake(path: Path, number: int, entry: dict[str, Any], seen: dict[int, int]) -> Arrival:
    """A line of Mooncake's trace; `shared` is the prefix that an earlier prompt with the same first block had, by block ids."""
    prompt = int(_parse_number(path, number, entry, "input_length", 1, MAX_TOKENS))
    hashes = entry.get("hash_ids", [])
    if not isinstance(hashes, list) or not all(type(each) is int for each in hashes):
        raise ConfigError(f"{path.name}, line {number}: hash_ids must be a list of integers")
    known = 0
    while known < len(hashes) and seen.get(hashes[known], hashes[0]) == hashes[0] and (known == 0 or hashes[known] in seen):
        known += 1
    for each in hashes:
        seen.setdefault(each, hashes[0])
    return Arrival(
        _parse_number(path, number, entry, "timestamp", 0, MAX_SECONDS * 1e3) / 1e3,
        prompt,
        int(_parse_number(path, number, entry, "output_length", 1, MAX_TOKENS)),
        hashes[0] % 2**31 + 1 if hashes else 0,
        min(prompt, known * CONTENT_BLOCK) if hashes else 0,
        blocks=tuple(hashes[: -(-prompt // CONTENT_BLOCK)]),
    )


def _read_csv(path: Path, lines: Iterator[str]) -> Iterator[Arrival]:
    for number, row in enumerate(csv.DictReader(lines), 2):
        prompt = _parse_number(path, number, row, "Request tokens", 0, MAX_TOKENS)
        output = _parse_number(path, number, row, "Response tokens", 0, MAX_TOKENS)
        if prompt and output:  # BurstGPT keeps failed requests, with an answer of no tokens
            yield Arrival(_parse_number(path, number, row, "Timestamp", 0, MAX_SECONDS), int(prompt), int(output))


def _parse_number(path: Path, number: int, entry: dict[str, Any], key: str, low: float, high: float, default: float | None = None) -> float:
    value = entry.get(key, default)
    try:
        found = float(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else float("nan")
    except (ValueError, OverflowError):
        found = float("nan")
    if not low <= found <= high:
        raise ConfigError(f"{path.name}, line {number}: {key} is {value!r:.40}; write a number of {low:g} … {high:g}")
    return found


def read_steps(path: Path) -> list[tuple[int, int, float, int]]:
    """(tokens computed, positions that attention reads, seconds, rows or 0) of each step of a jsonl step log. Raises ConfigError."""
    found = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                entry = _parse_object(path, number, line)
                found.append(
                    (
                        int(_parse_number(path, number, entry, "tokens", 1, MAX_TOKENS)),
                        int(_parse_number(path, number, entry, "cached", 0, MAX_TOKENS * 4096)),
                        _parse_number(path, number, entry, "seconds", 0, 3600),
                        int(_parse_number(path, number, entry, "rows", 0, MAX_TOKENS, 0)),
                    )
                )
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path.name} is not UTF-8 (byte {error.start}); give a jsonl step log") from None
    return found
