"""Requests to the tiny model whose answers show every bit of the logits."""

from dataclasses import replace

import numpy as np
from tiny import Tiny

from ridgeline.core.params import Admitted, Sampling

SIZE = Tiny()


def request(number: int, **fields: object) -> Admitted:
    """Prompts of 1 … 45 ids, some sharing 32; sampled with a temperature, so that every bit of the logits counts."""
    rng = np.random.default_rng(number)
    shared = np.random.default_rng(99).integers(4, SIZE.vocab, 32)
    own = rng.integers(4, SIZE.vocab, int(rng.integers(1, 14)))
    prompt = np.concatenate([shared, own]) if number % 2 else own
    made = Admitted(f"r{number}", tuple(prompt.tolist()), max_tokens=12, seed=number, sampling=Sampling(temperature=4.0, logprobs=3))
    return replace(made, **fields)  # type: ignore[arg-type]


REQUESTS = [request(number) for number in range(8)]
