"""Limits of a key: requests and tokens per minute and day, as token buckets, and the headers that tell of them.

A bucket holds its limit at most and fills evenly. A request is charged when it comes, its prompts when they are known, its outputs when
it ends: a bucket may then owe, and what it owes is paid before the next request is taken. So over a long time no key has more than its
limit, and no request is too large for its bucket. Clocks are passed in.
"""

from collections.abc import Sequence
from math import ceil
from types import MappingProxyType
from typing import Final

from ridgeline.server.errors import ApiError

MINUTE, DAY = 60.0, 86_400.0
RATES: Final = MappingProxyType({"rpm": ("requests", MINUTE), "rpd": ("requests", DAY), "tpm": ("tokens", MINUTE), "tpd": ("tokens", DAY)})
"""Option of a key → what it limits, and the seconds for which it does; the names are OpenAI's."""
MAX_RATE: Final = 10**12


class Bucket:
    """A token bucket, full at first."""

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.limit = limit
        self.unit, self._seconds = RATES[name]
        self.level = float(limit)
        self._at: float | None = None

    def advance(self, now: float) -> None:
        """Fills the bucket up to `now`, seconds of a monotonic clock."""
        if self._at is not None:
            self.level = min(float(self.limit), self.level + (now - self._at) * self.limit / self._seconds)
        self._at = now

    def seconds_until(self, level: float) -> float:
        """Seconds until the bucket has so much, at most its limit; 0 where it has."""
        return max(0.0, (min(level, self.limit) - self.level) * self._seconds / self.limit)


class Quota:
    """The buckets of one key."""

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self._buckets = tuple(buckets)

    @staticmethod
    def of(rates: Sequence[tuple[str, int]]) -> "Quota | None":
        """The quota of a key's limits; None where it has none."""
        return Quota([Bucket(name, limit) for name, limit in rates]) if rates else None

    def check_request(self, now: float) -> None:
        """Raises what `take_request` would, and charges nothing."""
        self._check("tokens", 1, now)
        self._check("requests", 1, now)

    def take_request(self, now: float) -> None:
        """Charges a request. Raises ApiError, and charges nothing, where a bucket lacks it or owes tokens."""
        self._check("tokens", 1, now)
        self._take("requests", 1, now)

    def take_tokens(self, tokens: int, now: float) -> None:
        """Charges the tokens of prompts. Raises ApiError, and charges nothing, where a bucket lacks them."""
        self._take("tokens", tokens, now)

    def settle(self, tokens: int, now: float) -> None:
        """Charges outputs that have been made: a bucket may owe them."""
        for bucket in self._of("tokens"):
            bucket.advance(now)
            bucket.level -= tokens

    def headers(self, now: float) -> dict[str, str]:
        """OpenAI's headers: limit, what is left, and the time until all is, of that bucket of each unit which has the least left."""
        found = {}
        for unit in ("requests", "tokens"):
            buckets = self._of(unit)
            for bucket in buckets:
                bucket.advance(now)
            if buckets:
                tight = min(buckets, key=lambda bucket: bucket.level)
                found[f"x-ratelimit-limit-{unit}"] = str(tight.limit)
                found[f"x-ratelimit-remaining-{unit}"] = str(max(0, int(tight.level)))
                found[f"x-ratelimit-reset-{unit}"] = _duration(tight.seconds_until(tight.limit))
        return found

    def _of(self, unit: str) -> list[Bucket]:
        return [bucket for bucket in self._buckets if bucket.unit == unit]

    def _take(self, unit: str, amount: int, now: float) -> None:
        self._check(unit, amount, now)
        for bucket in self._of(unit):
            bucket.level -= amount

    def _check(self, unit: str, amount: int, now: float) -> None:
        buckets = self._of(unit)
        for bucket in buckets:
            bucket.advance(now)
        lacking = [bucket for bucket in buckets if bucket.seconds_until(amount) > 0]
        if lacking:
            bucket = max(lacking, key=lambda each: each.seconds_until(amount))
            seconds = bucket.seconds_until(amount)
            message = (
                f"this key may have {bucket.limit} {unit} per {'day' if bucket.name.endswith('d') else 'minute'} ({bucket.name}); it has "
                f"{max(0, int(bucket.level))} left and this needs {amount}. Try again in {ceil(seconds)} s."
            )
            raise ApiError("rate_limit_exceeded", message, headers={"Retry-After": str(ceil(seconds)), **self.headers(now)})


def _duration(seconds: float) -> str:
    """Seconds as OpenAI writes them: `6m0s`, `1.5s`, `20ms`."""
    if seconds < 1:
        return f"{ceil(seconds * 1e3)}ms"
    if seconds < MINUTE:
        return f"{ceil(seconds * 10) / 10:g}s"
    minutes, rest = divmod(ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"
