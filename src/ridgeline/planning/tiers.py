"""The worth of tiers of KV blocks: the seconds in which each brings a prompt's blocks, beside those of computing them."""

from dataclasses import dataclass
from typing import Final

from ridgeline.planning.memory import HOST_LINK, host_copy_seconds

CHECKED_BYTES_PER_SECOND: Final = 1.5e9
"""HMAC-SHA256 of one core with SHA instructions: blocks from beyond the process are checked before they are used."""
RATES: Final = {"file": 2e9, "redis": 1e9, "peer": 1.25e9}
"""Bytes per second that a tier gives to one reader: a solid-state disk, a server on this machine, ten-gigabit Ethernet."""


@dataclass(frozen=True, slots=True)
class TierPrice:
    """One tier. `seconds` to bring a prompt's blocks; `of_computing`: as a part of computing them, above 1 it does not pay."""

    tier: str
    seconds: float
    of_computing: float


def tier_prices(prompt_bytes: float, computing_seconds: float) -> list[TierPrice]:
    """The tiers, host memory first, for a prompt whose blocks have so many bytes and take so long to compute."""
    seconds = {"host": host_copy_seconds(prompt_bytes, HOST_LINK)}
    seconds |= {tier: prompt_bytes * (1 / rate + 1 / CHECKED_BYTES_PER_SECOND) for tier, rate in RATES.items()}
    return [TierPrice(tier, each, each / computing_seconds) for tier, each in seconds.items()]
