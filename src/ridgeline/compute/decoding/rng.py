"""Noise as a pure function of (seed, choice, position, token id): no state, so neither batch nor order nor restart can change it.

Owns Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") and its way to Gumbel noise. Integer
arithmetic on 32-bit words, so that any device can compute the same words.
"""

from math import log

import numpy as np
from numpy.typing import NDArray

_WORD = 1 << 32
_LOW, _HIGH = np.uint64(_WORD - 1), np.uint64(32)
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
_WEYL = np.arange(10, dtype=np.uint64)[:, None] * np.array([0x9E3779B9, 0xBB67AE85], dtype=np.uint64)
"""Numbers that the ten rounds add to the two words of the key."""
_PART = 1 << 15
"""Ids at a time, so that what lies between the rounds stays in the cache."""

GUMBEL_MAX = -log(-log(1.0 - 0.5 / _WORD))
"""The largest noise, about 22.87; the smallest is about −3.13."""


def philox(counter: NDArray[np.uint64], key: int) -> NDArray[np.uint64]:
    """Philox4x32-10: counter [4, N] and 64-bit key (low word first) → four random words [4, N], each below 2**32."""
    even, odd = counter[::2], counter[1::2]
    for round_key in (np.array([key % _WORD, key >> 32], dtype=np.uint64) + _WEYL) & _LOW:
        product = (even * _MULTIPLIERS)[::-1]
        even, odd = (product >> _HIGH) ^ odd ^ round_key[:, None], product & _LOW
    words = np.empty_like(counter)
    words[::2], words[1::2] = even, odd
    return words


def random_words(seed: int, choice: int, position: int, ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """One word below 2**32 per token id. `ids` ascending; 0 ≤ seed < 2**64; choice, position and ids below 2**32.

    A block of the generator has the counter (id // 4, position, choice, 0); its four words belong to four neighbouring ids.
    """
    quads = ids >> 2
    first = np.empty(len(ids), dtype=bool)
    first[:1] = True
    np.not_equal(quads[1:], quads[:-1], out=first[1:])
    blocks = quads[first]
    counter = np.empty((4, len(blocks)), dtype=np.uint64)
    counter[0] = blocks
    counter[1], counter[2], counter[3] = position, choice, 0
    words: NDArray[np.uint64] = philox(counter, seed)[ids & 3, np.cumsum(first) - 1]
    return words


def gumbel(seed: int, choice: int, position: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard Gumbel noise per token id (`ids` ascending): −log(−log u) with u = (word + ½) / 2**32, never 0 or 1."""
    noise = np.empty(len(ids))
    for start in range(0, len(ids), _PART):
        part = slice(start, start + _PART)
        noise[part] = (random_words(seed, choice, position, ids[part]) + 0.5) / _WORD
        noise[part] = -np.log(-np.log(noise[part]))
    return noise
