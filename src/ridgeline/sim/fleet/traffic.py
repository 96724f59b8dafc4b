"""Arrivals: when requests come and what they ask for (processes, lengths, shared prefixes). All chance comes from one seed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, takewhile
from math import cos, exp, log, pi, sqrt
from random import Random
from typing import Final

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
