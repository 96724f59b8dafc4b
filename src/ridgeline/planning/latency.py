"""What a user waits for: first token, gaps between tokens, the whole answer; and the floors under them. Seconds, bytes, tokens.

Definitions kept apart: ITL is one gap, TPOT the mean of a request's gaps, TPS its inverse.
"""

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from ridgeline.errors import ConfigError


def weight_read_seconds(weights: float, bytes_per_second: float) -> float:
    """Least time of a decode step: every weight is read once. 14 GB: 7 ms on an A100, 140 ms from server DDR5.

    Notes on inference, part 1, sections 1 and 3.
    """
    return weights / bytes_per_second


def single_stream_rate(weights: float, bytes_per_second: float) -> float:
    """Ceiling of one stream in tokens/s, whatever the number of cores. Notes on inference, part 1, section 1."""
    return bytes_per_second / weights


def sharded_stream_rate(weights: float, device_memory: float, bytes_per_second: float, devices: int) -> float:
    """Ideal tokens/s of one stream over tensor-parallel shards, after asking whether a shard fits. 140 GB on 4 H100: 95.7.

    Omits communication, KV reads and losses. Notes on inference, part 2, `ideal_weight_stream_tps`.
    Raises ConfigError where a shard exceeds a device.
    """
    if weights / devices > device_memory:
        least = -int(-weights // device_memory)
        raise ConfigError(f"{weights / 1e9:.1f} GB of weights do not fit {devices} × {device_memory / 1e9:.0f} GB; take {least} devices")
    return devices * bytes_per_second / weights


def end_to_end_seconds(ttft: float, output_tokens: int, tpot: float) -> float:
    """TTFT + tokens · TPOT: 300 ms + 200 · 20 ms = 4,300 ms. Strictly the first token is in TTFT, which makes it n − 1 gaps.

    Notes on inference, part 1, section 2; part 4, section 1.
    """
    return ttft + output_tokens * tpot


def gaps(token_times: Sequence[float]) -> list[float]:
    """Inter-token latencies (ITL) of one request. Notes on inference, part 2, the timeline exercise."""
    return [later - earlier for earlier, later in pairwise(token_times)]


def tpot(token_times: Sequence[float]) -> float:
    """Time per output token after the first: the mean of the gaps. Notes on inference, part 2. Needs two tokens or more."""
    return fmean(gaps(token_times))


def queued_ttft(position: int, prefill_seconds: float) -> float:
    """TTFT of the request at `position` (1 is first) where one prompt is computed at a time: all before it come first.

    Notes on inference, part 1, section 2: the 50th waits for 49.
    """
    return position * prefill_seconds


def first_token_seconds(tokenise: float, embed: float, prefill: float, decode: float) -> float:
    """TTFT of an idle server as the sum of its parts: 0.5 + 1 + 40 + 3.5 ms is about 45 ms. Notes on inference, part 5, section 14."""
    return tokenise + embed + prefill + decode


def saving(before: float, after: float) -> float:
    """Share of a time that was saved: 753 → 367 ms is 51 %. Notes on inference, part 5, "Prefix Caching: Free Speedups"."""
    return 1.0 - after / before
