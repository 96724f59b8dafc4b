"""How long prompts and answers are: distributions of token counts, drawn from a given source of chance."""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log, sqrt
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
