"""Stops and detokenisation over vocabularies of real families: random ids, in random steps, against a plain reading of the joined bytes."""

import random
from codecs import utf_8_decode
from collections.abc import Sequence
from functools import cache
from itertools import accumulate

import pytest

from gold import vocabulary
from ridgeline.text.files import load_tokenizer
from ridgeline.text.stream import OutputStream, StopAutomaton, Stopped
from ridgeline.text.tokenizer import Tokenizer

FAMILIES = ("gpt-2", "starcoder", "llama-spm", "phi-3")
TEXTS = ("Hello, world!\n", "a naïve café", "汉字かな", "🦙👩‍👧 ok", "<|end|></s>", "    def f(x):\n\n", "\ufffd e\u0301")


@cache
def tokenizer(family: str) -> Tokenizer:
    return load_tokenizer(vocabulary(family))


@cache
def lone_bytes(family: str) -> tuple[int, ...]:
    """Ids of pieces that are no whole characters."""
    found = tokenizer(family)
    return tuple(token for token in range(found.vocab_size) if "\ufffd" in found.piece(token).decode("utf-8", "replace"))


def random_ids(family: str, rng: random.Random) -> list[int]:
    found, ids = tokenizer(family), []
    for _ in range(rng.randrange(1, 5)):
        kind = rng.randrange(3)
        if kind == 0:
            ids += found.encode(rng.choice(TEXTS), False, special=rng.random() < 0.5)[: rng.randrange(1, 9)]
        elif kind == 1:
            ids += rng.choices(lone_bytes(family), k=rng.randrange(4))
        else:
            ids += rng.choices(range(found.vocab_size), k=rng.randrange(4))
    return ids or [0]


def random_stops(text: str, rng: random.Random) -> list[str]:
    """Parts of the text, some with another ending, so that many stop and many almost do."""
    stops = []
    for _ in range(rng.choice((0, 1, 1, 2, 3)) if text else 0):
        begin = rng.randrange(len(text))
        stops.append(text[begin : begin + rng.randrange(1, 7)] + rng.choice(("", "", "z")))
    return list(dict.fromkeys(stops))


def oracle(data: Sequence[bytes], stops: Sequence[str], min_tokens: int, include: bool) -> tuple[str, Stopped | None]:
    text = b"".join(data).decode("utf-8", "replace")
    complete = [len(utf_8_decode(part, "replace", False)[0]) for part in accumulate(data)]
    for end in range(1, len(text) + 1):
        token = next((index for index, length in enumerate(complete) if length >= end), len(data) - 1)
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending and token >= min_tokens:
            stop = max(ending, key=len)
            return text[: end if include else end - len(stop)], Stopped(stop, token + 1)
    return text, None


def check(family: str, rng: random.Random) -> bool:
    """One case; whether it stopped."""
    found, ids = tokenizer(family), random_ids(family, rng)
    data = [b"" if found.is_control(token) else found.piece(token) for token in ids]
    whole = b"".join(data).decode("utf-8", "replace")
    stops, min_tokens, include = random_stops(whole, rng), rng.choice((0, 0, 0, 1, 3)), rng.random() < 0.3
    stream = OutputStream(found, StopAutomaton(stops), min_tokens=min_tokens, include_stop=include)
    deltas, at = [], 0
    while at < len(ids):
        size = rng.randrange(1, 4)
        deltas.append(stream.push(ids[at : at + size]))
        at += size
    deltas.append(stream.finish())
    text, stopped = oracle(data, stops, min_tokens, include)
    assert "".join(release.text for release in deltas) == text, (ids, stops)
    assert stream.stopped == stopped, (ids, stops)
    shown = [token for release in deltas for token in release.ids]
    assert shown == ids[: stopped.keep if stopped else len(ids)]
    return stopped is not None


@pytest.mark.parametrize("family", FAMILIES)
def test_random_answers_of_real_vocabularies(family: str) -> None:
    rng = random.Random(family)
    assert 200 < sum(check(family, rng) for _ in range(750)) < 700


@pytest.mark.night
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("family", FAMILIES)
def test_random_answers_of_real_vocabularies_at_length(family: str) -> None:
    rng = random.Random(f"{family} at night")
    for _ in range(25_000):
        check(family, rng)
