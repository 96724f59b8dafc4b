"""Traffic like Mooncake's trace of conversations (Qin et al. 2024): long prompts, each of which begins with all that was said before.

Synthetic, as traces hold no text: sessions come at random, share one of a few system prompts of unequal popularity, and every turn
appends blocks of 512 tokens to its own session's. Half of all prompt tokens and more have been sent before, as in the recorded traffic.
"""

from bisect import bisect
from itertools import accumulate, count
from random import Random

from ridgeline.sim.fleet.traffic import CONTENT_BLOCK, Arrival

SYSTEM_PROMPTS = 16
MEAN_TURNS = 6


def conversations(seed: int, requests: int, rate: float, pause: float = 30.0, longest: int = 32_768) -> tuple[Arrival, ...]:
    """`requests` arrivals at about `rate` per second, in order of time.

    pause    mean seconds between an answer's question and the session's next one
    longest  tokens of prompt and output at most: the session ends there
    """
    rng, ids = Random(seed), count(1)
    systems = [tuple(next(ids) for _ in range(rng.randint(1, 6))) for _ in range(SYSTEM_PROMPTS)]
    popular = list(accumulate(1 / (rank + 1) for rank in range(SYSTEM_PROMPTS)))
    found: list[Arrival] = []
    begins = 0.0
    while len(found) < 2 * requests:
        begins += rng.expovariate(rate / MEAN_TURNS)
        time, blocks = begins, systems[bisect(popular, rng.random() * popular[-1])]
        while True:
            blocks += tuple(next(ids) for _ in range(rng.randint(1, 8)))
            prompt, output = len(blocks) * CONTENT_BLOCK + rng.randrange(1, CONTENT_BLOCK), 1 + int(rng.expovariate(1 / 180))
            if prompt + output > longest:
                break
            found.append(Arrival(time, prompt, output, blocks=blocks))
            if rng.random() < 1 / MEAN_TURNS:
                break
            time += rng.expovariate(1 / pause)
    # Sessions begin at a constant rate, so the first few minutes are thinner than the rest: they fill the caches.
    return tuple(sorted(found, key=lambda arrival: arrival.time)[:requests])
