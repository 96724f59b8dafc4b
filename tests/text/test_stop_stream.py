"""Streamed text by whole tokens: every split of the same ids gives the same answer, and a brute-force reading of the text agrees."""

import random
from codecs import utf_8_decode
from collections.abc import Sequence
from itertools import accumulate, product

import pytest

from ridgeline.core.plan import TokenLogprobs
from ridgeline.text.stream import OutputStream, StopAutomaton, Stopped, TextDelta
from ridgeline.text.tokenizer import ByteTokenizer

PIECES = (b"a", b"b", b"c", b"ab", b"bca", "é".encode(), b"\xc3", b"\xa9", b"\xe2\x82", b"\xac", "x€".encode(), b"a\xe2", b"", b"<end>")
CONTROL = len(PIECES) - 1
STOPS = ("a", "b", "ab", "aba", "abc", "bc", "bca", "cab", "caab", "é", "€", "aé", "\ufffd", "b\ufffd", "€a", "abab")


class Pieces(ByteTokenizer):
    """Tokens that overlap, end inside characters, or add nothing."""

    vocab_size = len(PIECES)
    control = (CONTROL,)

    def piece(self, token: int) -> bytes:
        return PIECES[token]

    def is_control(self, token: int) -> bool:
        return token == CONTROL


def oracle(ids: Sequence[int], stops: Sequence[str], min_tokens: int, include: bool) -> tuple[str, Stopped | None]:
    """The whole answer, read from the joined bytes alone."""
    data = [b"" if token == CONTROL else PIECES[token] for token in ids]
    text = b"".join(data).decode("utf-8", "replace")
    complete = [len(utf_8_decode(b"".join(data[:count]), "replace", False)[0]) for count in range(1, len(ids) + 1)]
    for end in range(1, len(text) + 1):
        token = next((index for index, length in enumerate(complete) if length >= end), len(ids) - 1)
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending and token >= min_tokens:
            stop = max(ending, key=len)
            return text[: end if include else end - len(stop)], Stopped(stop, token + 1)
    return text, None


def may_be_shown(ids: Sequence[int], stops: Sequence[str]) -> int:
    """Number of these ids that no continuation can change, when none of them completed a stop string."""
    data = [b"" if token == CONTROL else PIECES[token] for token in ids]
    text, consumed = utf_8_decode(b"".join(data), "replace", False)
    held = max((size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])), default=0)
    waiting = consumed < len(b"".join(data))
    for count, end in enumerate(accumulate(map(len, data))):
        length = len(utf_8_decode(b"".join(data[: count + 1]), "replace", False)[0])
        if length > len(text) - held or (waiting and end > consumed):
            return count
    return len(ids)


def run(stream: OutputStream, ids: Sequence[int], sizes: Sequence[int]) -> list[TextDelta]:
    deltas, position = [], 0
    for size in sizes:
        part = ids[position : position + size]
        deltas.append(stream.push(part, [TokenLogprobs(-float(position + i)) for i in range(len(part))]))
        position += size
    return [*deltas, stream.finish()]


def check(ids: Sequence[int], sizes: Sequence[int], stops: Sequence[str], min_tokens: int, include: bool) -> None:
    stream = OutputStream(Pieces(), StopAutomaton(stops), min_tokens=min_tokens, include_stop=include)
    deltas = run(stream, ids, sizes)
    text, stopped = oracle(ids, stops, min_tokens, include)
    shown = [token for release in deltas for token in release.ids]
    assert "".join(release.text for release in deltas) == text
    assert stream.stopped == stopped
    assert shown == list(ids[: stopped.keep if stopped else len(ids)])
    assert [p.logprob for release in deltas for p in release.logprobs] == [-float(i) for i in range(len(shown))]
    offsets = [offset for release in deltas for offset in release.offsets]
    assert offsets == list(accumulate((len(t) for r in deltas for t in r.texts), initial=0))[: len(shown)]


def random_case(rng: random.Random) -> tuple[list[int], list[str], int, bool]:
    ids = rng.choices(range(len(PIECES)), k=rng.randrange(1, 9))
    stops = rng.sample(STOPS, rng.choice((0, 1, 1, 2, 3)))
    return ids, stops, rng.choice((0, 0, 0, 1, 3)), rng.random() < 0.3


def random_sizes(rng: random.Random, total: int) -> list[int]:
    sizes: list[int] = []
    while (left := total - sum(sizes)) > 0:
        sizes.append(rng.randrange(min(left, 3) + 1))
    return sizes


def test_random_streams_equal_the_oracle() -> None:
    rng = random.Random(1)
    for _ in range(40_000):
        ids, stops, min_tokens, include = random_case(rng)
        check(ids, random_sizes(rng, len(ids)), stops, min_tokens, include)


def test_every_split_gives_the_same_answer() -> None:
    rng = random.Random(2)
    for _ in range(60):
        ids, stops, min_tokens, include = random_case(rng)
        for cuts in product((False, True), repeat=len(ids) - 1):
            sizes = [1]
            for cut in cuts:
                if cut:
                    sizes.append(1)
                else:
                    sizes[-1] += 1
            check(ids, sizes, stops, min_tokens, include)


def test_nothing_is_held_longer_than_it_must_be() -> None:
    rng = random.Random(3)
    for _ in range(10_000):
        ids, stops, *_ = random_case(rng)
        stream = OutputStream(Pieces(), StopAutomaton(stops))
        shown = 0
        for count, token in enumerate(ids, 1):
            shown += len(stream.push([token]).ids)
            if stream.stopped:
                break
            assert shown == may_be_shown(ids[:count], stops)


@pytest.mark.parametrize(("include", "text"), [(False, "say "), (True, "say stop")])
def test_the_token_that_completes_the_stop_counts(include: bool, text: str) -> None:
    tokenizer = ByteTokenizer()
    stream = OutputStream(tokenizer, StopAutomaton(["stop"]), include_stop=include)
    release = stream.push(tokenizer.encode("say stop now", add_bos=False))
    assert (release.text, release.stopped) == (text, Stopped("stop", 8))
    assert len(release.ids) == len(release.texts) == 8
    assert stream.push([65]).ids == () == stream.finish().ids


def test_a_stop_that_begins_before_min_tokens_and_ends_after_counts() -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode("xx.yyyx", add_bos=False)
    stream = OutputStream(tokenizer, StopAutomaton(["xx", ".yy"]), min_tokens=4)
    assert stream.push(ids).stopped == Stopped(".yy", 5)


def test_a_stop_id_counts_but_shows_no_text() -> None:
    tokenizer = ByteTokenizer()
    for include, text in ((False, "a"), (True, "ab")):
        stream = OutputStream(tokenizer, StopAutomaton([]), include_stop=include)
        deltas = [stream.push([97, 98], ends_with_stop_id=True), stream.finish()]
        assert sum((release.ids for release in deltas), ()) == (97, 98)
        assert "".join(release.text for release in deltas) == text


def test_a_character_cut_off_by_the_end_belongs_to_the_last_token() -> None:
    stream = OutputStream(ByteTokenizer(), StopAutomaton(["é"]))
    assert stream.push([97, 0xC3]).ids == (97,)
    release = stream.finish()
    assert (release.ids, release.texts, release.offsets) == ((0xC3,), ("\ufffd",), (1,))


def test_time_is_linear() -> None:
    """50,000 tokens that almost stop at every place: quadratic work would take minutes."""
    tokenizer = ByteTokenizer()
    stream = OutputStream(tokenizer, StopAutomaton(["a" * 64 + "b", "a" * 63 + "c"]))
    shown = sum(len(stream.push([97]).ids) for _ in range(50_000))
    assert shown == 50_000 - 64
