"""The noise: published vectors, a plain reading of the algorithm, and the distribution."""

from math import log

import numpy as np
import pytest

from ridgeline.compute.decoding.rng import GUMBEL_MAX, gumbel, philox, random_words

WORD = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((WORD,) * 4, (WORD,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers_of_random123(counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]) -> None:
    """`kat_vectors` of Random123 1.14, philox4x32 with 10 rounds; in one column of several, so that lanes cannot mix."""
    columns = np.array([(1, 2, 3, 4), counter, (5, 6, 7, 8)], dtype=np.uint64).T
    assert tuple(philox(columns, key[0] | key[1] << 32)[:, 1].tolist()) == expected


def plain_word(seed: int, choice: int, position: int, token: int) -> int:
    """Salmon et al. 2011, figure 2 and section 3.2, on Python integers."""
    words, keys = [token // 4, position, choice, 0], [seed & WORD, seed >> 32]
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * words[0], 1 << 32)
        high1, low1 = divmod(0xCD9E8D57 * words[2], 1 << 32)
        words = [high1 ^ words[1] ^ keys[0], low1, high0 ^ words[3] ^ keys[1], low0]
        keys = [(keys[0] + 0x9E3779B9) & WORD, (keys[1] + 0xBB67AE85) & WORD]
    return words[token % 4]


def test_each_word_depends_on_its_key_alone() -> None:
    rng = np.random.default_rng(1)
    for _ in range(100):
        seed, choice, position = int(rng.integers(2**63)), int(rng.integers(9)), int(rng.integers(2**32))
        ids = np.unique(rng.integers(0, 300_000, size=rng.integers(1, 12)))
        expected = [plain_word(seed, choice, position, int(token)) for token in ids]
        assert random_words(seed, choice, position, ids).tolist() == expected


def test_noise_is_the_same_in_any_company() -> None:
    everyone = gumbel(2**62 + 5, 3, 77, np.arange(100_001))
    some = np.sort(np.random.default_rng(2).choice(100_001, size=5_000, replace=False))
    assert np.array_equal(gumbel(2**62 + 5, 3, 77, some), everyone[some])
    for token in (0, 1, 32_767, 32_768, 100_000):
        assert gumbel(2**62 + 5, 3, 77, np.array([token]))[0] == everyone[token]
        assert everyone[token] == pytest.approx(-log(-log((plain_word(2**62 + 5, 3, 77, token) + 0.5) / 2**32)), rel=1e-14)


def test_noise_is_gumbel() -> None:
    """Kolmogorov and Smirnov at n = 200,000: the largest distance is below 1.95 / √n with probability 0.999."""
    noise = np.sort(gumbel(7, 0, 0, np.arange(200_000)))
    distance = np.abs(np.exp(-np.exp(-noise)) - (np.arange(200_000) + 0.5) / 200_000).max()
    assert distance < 1.95 / 200_000**0.5
    assert -log(-log(0.5 / 2**32)) < noise[0] and noise[-1] < GUMBEL_MAX


@pytest.mark.parametrize("other", [(8, 0, 0), (7 + 2**32, 0, 0), (7, 1, 0), (7, 0, 1)])
def test_neighbouring_keys_are_unrelated(other: tuple[int, int, int]) -> None:
    ids = np.arange(100_000)
    first, second = random_words(7, 0, 0, ids) / 2**32, random_words(*other, ids) / 2**32
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.011
    assert abs(np.corrcoef(first[1:], second[:-1])[0, 1]) < 0.011
