"""Ids against llama.cpp's on recorded strings, and against its algorithm written out plainly on vocabularies made here."""

import random
import re
import struct
import time
from array import array
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from gold import demo_lines, tokenizer_lines
from ridgeline.errors import ModelFormatError
from ridgeline.facts.files.gguf import Header
from ridgeline.facts.files.gguf_values import StringArray
from ridgeline.text.files import load_tokenizer
from ridgeline.text.spm import SpmTokenizer
from ridgeline.text.stream import Detokenizer
from ridgeline.text.tokenizer import Tokenizer, longest_match_pattern
from ridgeline.text.vocabulary import MAX_USER_DEFINED_CHARACTERS, TokenType, Vocabulary


@pytest.fixture(scope="module")
def demo(demo_file: Path) -> Tokenizer:
    return load_tokenizer(demo_file)


def test_demo_gives_the_recorded_ids(demo: Tokenizer) -> None:
    lines = tokenizer_lines()
    wrong = [line["text"] for line in lines if demo.encode(line["text"], add_bos=False) != line["ids"]]
    assert len(lines) == 3000
    assert not wrong


def test_demo_continues_prompts_with_the_recorded_text(demo: Tokenizer) -> None:
    lines = demo_lines()
    assert lines
    for line in lines:
        assert demo.encode(line["prompt"], add_bos=True) == line["prompt_ids"]
        detokenizer = Detokenizer(demo, True, line["prompt_ids"])
        assert "".join(map(detokenizer.push, line["ids"])) + detokenizer.finish() == line["text"]


def test_demo_specials(demo: Tokenizer) -> None:
    assert (demo.bos, demo.eos_ids, demo.vocab_size) == (2, {1, 106}, 262_144)
    assert demo.encode("", add_bos=True) == [2]
    assert demo.encode("a", add_bos=True) == [2, *demo.encode("a", add_bos=False)]
    assert [demo.is_control(token) for token in (1, 2, 5, 107, 238, 600)] == [True, True, False, False, False, False]
    assert [demo.piece(token) for token in (2, 107, 238, 236743)] == [b"<bos>", b"\n", b"\0", b" "]
    assert demo.decode([2, 107, 236743, 1], skip_special=True) == "\n "
    assert demo.decode([2, 107], skip_special=False) == "<bos>\n"


def test_long_texts_take_linear_time(demo: Tokenizer) -> None:
    for unit in ("a", " \n", "<", "hello world foo bar ", "汉字", "<unused1>", "\n\t  "):
        text = unit * (100_000 // len(unit))
        start = time.perf_counter()
        ids = demo.encode(text, add_bos=False)
        assert time.perf_counter() - start < 2.0, unit
        assert demo.decode(ids, skip_special=True) == text


def vocabulary(entries: Sequence[tuple[str, float, TokenType]], **changes: object) -> Vocabulary:
    pieces, scores, kinds = zip(*entries, strict=True)
    values = {"bos": 1, "eos_ids": frozenset({2}), "unknown": 0, "space_prefix": False} | changes
    return Vocabulary(pieces=pieces, scores=scores, kinds=[int(kind) for kind in kinds], **values)  # type: ignore[arg-type]


SPECIALS = [("<unk>", 0.0, TokenType.UNKNOWN), ("<s>", 0.0, TokenType.CONTROL), ("</s>", 0.0, TokenType.CONTROL)]
BYTES = [(f"<0x{value:02X}>", 0.0, TokenType.BYTE) for value in range(256)]


def plain_merges(text: str, scores: dict[str, float], ids: dict[str, int]) -> list[int]:
    """llama.cpp's rule: of all neighbours that form a piece merge the best score, the leftmost of equals; rest as bytes."""
    symbols = list(text.replace(" ", "▁"))
    while True:
        pairs = [(-scores[a + b], index) for index, (a, b) in enumerate(pairwise(symbols)) if a + b in scores]
        if not pairs:
            break
        index = min(pairs)[1]
        symbols[index : index + 2] = [symbols[index] + symbols[index + 1]]
    return [token for symbol in symbols for token in ([ids[symbol]] if symbol in ids else [3 + byte for byte in symbol.encode()])]


def test_merges_follow_the_plain_rule() -> None:
    rng = random.Random(7)
    for _ in range(60):
        words = {"".join(rng.choices("ab▁é", k=rng.randrange(1, 5))) for _ in range(rng.randrange(1, 25))}
        merges = [(word, float(rng.randrange(-8, 0)), TokenType.NORMAL) for word in sorted(words)]
        cuts = [(piece, -1000.0, TokenType.USER_DEFINED) for piece in ("a  b", "\n\n", "\n")]
        entries = [*SPECIALS, *BYTES, *merges, *cuts]
        ids = {piece: token for token, (piece, _, kind) in enumerate(entries) if kind == TokenType.NORMAL}
        scores = {piece: score for piece, score, _ in merges}
        prefix = rng.choice((False, True))
        tokenizer = SpmTokenizer(vocabulary(entries, space_prefix=prefix))
        for _ in range(50):
            fragments = ["".join(rng.choices("ab é▁x\0", k=rng.randrange(5))) for _ in range(3)]
            expected = []
            for fragment, cut in zip(fragments, (len(entries) - 2, len(entries) - 1, None), strict=True):
                if fragment:
                    expected += plain_merges(" " * prefix + fragment, scores, ids)
                expected += [] if cut is None else [cut]
            text = "\n\n".join(fragments[:2]) + "\n" + fragments[2]
            if "a  b" not in text:
                assert tokenizer.encode(text, add_bos=False) == expected


def test_user_defined_tokens_match_longest_first_and_control_tokens_never() -> None:
    cuts = ["<b>", "<b><b>", "  ", "    ", "</s>x", "▁▁", *("\n" * length for length in range(1, 80))]
    entries = [*SPECIALS, *BYTES, *((cut, 0.0, TokenType.USER_DEFINED) for cut in cuts)]
    tokenizer = SpmTokenizer(vocabulary(entries))
    first = len(entries) - len(cuts)
    newline = first + cuts.index("\n")
    assert tokenizer.encode("<b><b><b>", add_bos=False) == [first + 1, first]
    assert tokenizer.encode(" " * 6, add_bos=False) == [first + 3, first + 2]
    assert tokenizer.encode("</s>x", add_bos=True) == [1, first + 4]
    assert tokenizer.encode("</s>", add_bos=False) == [3 + byte for byte in b"</s>"]
    assert tokenizer.encode("\n" * 150, add_bos=False) == [newline + 78, newline + 70]
    assert tokenizer.encode("▁▁", add_bos=False) == [first + 5]
    assert tokenizer.encode(" ▁", add_bos=False) == [3 + byte for byte in "▁▁".encode()]


def test_lone_surrogates_become_replacement_characters_and_pairs_join() -> None:
    tokenizer = SpmTokenizer(vocabulary([*SPECIALS, *BYTES]))
    ids = tokenizer.encode("\ud800x\ud83d\ude00", add_bos=False)
    assert ids == [3 + byte for byte in "\ufffdx😀".encode()]


def test_duplicates_empty_pieces_and_missing_bytes_are_survived() -> None:
    plain, unused = TokenType.NORMAL, TokenType.UNUSED
    odd = [("ab", -1.0, plain), ("", 0.0, plain), ("ab", -2.0, plain), ("a", -3.0, unused), ("b", -3.0, plain)]
    tokenizer = SpmTokenizer(vocabulary([*SPECIALS, *odd]))
    assert tokenizer.encode("abaz", add_bos=False) == [5, 6, 0]
    assert [tokenizer.id_of(name) for name in ("ab", "<s>", "<unk>", "", "ba", "\ud800", "\ufffd")] == [5, 1, 0, None, None, None, None]
    assert tokenizer.control == [0, 1, 2]


def test_patterns_match_the_longest_word_and_numbered_names_are_few_branches() -> None:
    draw, letters = random.Random(3), "ab[]-^\\&~| <>01#\n"
    for _ in range(300):
        words = {"".join(draw.choices(letters, k=draw.randint(1, 4))) for _ in range(draw.randint(1, 20))}
        text, longest_first = "".join(draw.choices(letters, k=60)), sorted(map(re.escape, words), key=len, reverse=True)
        assert re.findall(longest_match_pattern(words), text) == re.findall("|".join(longest_first), text), words
    assert len(longest_match_pattern(f"<unused{number}>" for number in range(6242))) < 500


def header(**changes: object) -> Header:
    """A header of ten entries; the columns are made the way the reader makes them."""
    pieces = changes.pop("pieces", ["<unk>", "<s>", "</s>", *"abcdefg"])
    assert isinstance(pieces, list)
    data = b"".join(struct.pack("<Q", len(piece.encode())) + piece.encode() for piece in pieces)
    values: dict[str, object] = {
        "model": "llama",
        "tokens": StringArray(data, len(pieces)),
        "scores": array("f", changes.pop("scores", [0.0] * 10)),  # type: ignore[call-overload]
        "token_type": array("i", changes.pop("kinds", [2, 3, 3] + [1] * 7)),  # type: ignore[call-overload]
    }
    return Header({f"tokenizer.ggml.{key}": value for key, value in (values | changes).items()}, {}, ())  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": [0.0] * 9}, "10 tokens, 9 scores and 10 types"),
        ({"kinds": [1] * 11}, "11 types"),
        ({"pieces": [], "scores": [], "kinds": []}, "0 tokens"),
        ({"scores": [float("nan")] * 10}, "not finite"),
        ({"kinds": [7] * 10}, "type 7"),
        ({"kinds": [2, 3, 3, 6] + [1] * 6}, "1 byte tokens are not distinct"),
        ({"pieces": ["<0x41>"] * 10, "kinds": [6] * 10}, "10 byte tokens are not distinct"),
        ({"bos_token_id": 10}, "outside 0 … 9"),
        ({"pieces": ["x" * MAX_USER_DEFINED_CHARACTERS] * 10, "kinds": [4] * 10}, "user-defined"),
    ],
)
def test_malformed_vocabularies_are_typed_errors(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        Vocabulary.from_header(header(**changes))


def test_header_defaults_are_those_of_llama() -> None:
    plain = Vocabulary.from_header(header())
    assert (plain.bos, plain.eos_ids, plain.unknown, plain.space_prefix) == (1, {2}, 0, True)
    asked = Vocabulary.from_header(header(add_bos_token=False, add_space_prefix=False, eot_token_id=4, eom_token_id=5))
    assert (asked.bos, asked.eos_ids, asked.space_prefix) == (None, {2, 4, 5}, False)


def test_a_vocabulary_the_library_refuses_is_a_typed_error() -> None:
    with pytest.raises(ModelFormatError, match="cannot be used"):
        SpmTokenizer(vocabulary([*SPECIALS, *BYTES], unknown=3))
