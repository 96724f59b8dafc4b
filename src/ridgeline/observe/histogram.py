"""Histograms as plain numbers, and the bounds of their buckets."""

from bisect import bisect_left

SECONDS = (
    0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75,
    1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0,
)  # fmt: skip
"""Bounds from 1 ms on: the queue of a healthy server is that short. The usual objectives are among them."""
FEW_SECONDS = (0.01, 0.03, 0.1, 0.3, 0.5, 1.0, 2.0, 5.0, 20.0, 60.0)
"""Bounds where there is a histogram for each tenant."""
CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0)
TOKENS = tuple(float(1 << power) for power in range(21))


class Histogram:
    """Counts of observations in buckets; bucket i holds values ≤ `bounds[i]` that no earlier one holds, the last everything above."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Counts a value that occurred so many times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        """Observations so far."""
        return sum(self.counts)


class Histograms:
    """The histograms of a server; the documentation of each is its line of `observe.prometheus`."""

    def __init__(self) -> None:
        self.time_to_first_token = Histogram(SECONDS)
        self.inter_token = Histogram(SECONDS)
        self.time_per_output_token = Histogram(SECONDS)
        self.end_to_end = Histogram(SECONDS)
        self.tokenizer = Histogram(SECONDS)
        """Tokeniser times of requests, as the front end sees them."""
        self.queue = Histogram(SECONDS)
        self.prefill = Histogram(SECONDS)
        self.decode = Histogram(SECONDS)
        self.inference = Histogram(SECONDS)
        self.step_run = Histogram(SECONDS)
        self.step_tokens = Histogram(TOKENS)
        self.request_prompt = Histogram(TOKENS)
        self.request_generation = Histogram(TOKENS)
        self.request_max_tokens = Histogram(TOKENS)
        self.request_choices = Histogram(CHOICES)
        self.request_computed = Histogram(TOKENS)
        """Prompt tokens that were not taken from the prefix cache."""
        self.request_preemptions = Histogram((0.0, *CHOICES))
