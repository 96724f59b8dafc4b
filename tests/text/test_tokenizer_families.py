"""Vocabularies of real families: llama.cpp's ids from GGUF headers, transformers' ids from tokenizer.json files made of the same pieces."""

import json
import random
import time
from array import array
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from gold import tokenizer_lines, vocabulary, vocabulary_cases
from ridgeline.errors import ModelFormatError, ModelNotFoundError, RequestError
from ridgeline.facts.files.gguf import Header, read_header
from ridgeline.facts.files.gguf_values import StringArray
from ridgeline.text.bpe import PRE_TOKENIZERS, FastTokenizer
from ridgeline.text.files import gguf_tokenizer, load_tokenizer
from ridgeline.text.spm import SpmTokenizer
from ridgeline.text.tokenizer import MASK, Tokenizer, markup_among
from ridgeline.text.vocabulary import TokenType, Vocabulary

BYTE_LEVEL = ("llama-bpe", "qwen2", "gpt-2", "deepseek-llm", "falcon", "starcoder", "mpt")
SPM = ("llama-spm", "phi-3")


@cache
def tokenizer(family: str) -> Tokenizer:
    return gguf_tokenizer(read_header(vocabulary(family)))


@cache
def strings() -> tuple[str, ...]:
    """Recorded strings of many languages, and random ones: any code point, runs, mixtures."""
    recorded = [str(line["text"]) for line in tokenizer_lines()[::6]]
    rng = random.Random(4)
    points = [*range(0x20, 0x7F), *range(0xA0, 0x250), 0x3B1, 0x4E2D, 0x1F999, 0x200D, 0x0A, 0x0D, 0x09, 0x3000, 0x301]
    made = ["".join(map(chr, rng.choices(points, k=rng.randint(1, 40)))) for _ in range(200)]
    return (*recorded[:400], *made)


@pytest.mark.parametrize("family", [*BYTE_LEVEL, *SPM])
def test_ids_are_llama_cpps(family: str) -> None:
    cases = vocabulary_cases(family)
    assert len(cases) == 47
    for text, expected in cases:
        ids = tokenizer(family).encode(text, add_bos=False)
        assert ids == expected, text
        assert tokenizer(family).decode(ids, skip_special=True) == text


def as_json(family: str, directory: Path) -> Path:
    """tokenizer.json of the family's pieces."""
    found = tokenizer(family)
    directory.mkdir(exist_ok=True)
    if isinstance(found, FastTokenizer):
        found._library.save(str(directory / "tokenizer.json"))
    else:
        (directory / "tokenizer.json").write_text(json.dumps(sentencepiece_json(read_header(vocabulary(family)))), encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": False}))
    return directory


def sentencepiece_json(header: Header) -> dict[str, object]:
    """BPE with byte fallback as transformers converts SentencePiece: merges are all cuts of a piece in two, best scores first."""
    pieces, scores = list(header.strings("tokenizer.ggml.tokens")), header.numbers("tokenizer.ggml.scores", "f")
    kinds = list(map(int, header.numbers("tokenizer.ggml.token_type", "iI")))
    ids = {piece: token for token, piece in enumerate(pieces)}
    normal = {piece for piece, kind in zip(pieces, kinds, strict=True) if kind == TokenType.NORMAL}
    cuts = []
    for piece in normal:
        local = [(piece[:at], piece[at:]) for at in range(1, len(piece)) if piece[:at] in normal and piece[at:] in normal]
        cuts += [(-scores[ids[piece]], ids[left], ids[right], left, right) for left, right in local]
    added = [
        {"id": token, "content": piece, "special": kind != TokenType.USER_DEFINED, "normalized": False,
         "single_word": False, "lstrip": False, "rstrip": False}
        for token, (piece, kind) in enumerate(zip(pieces, kinds, strict=True))
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
    ]  # fmt: skip
    steps = [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    decode = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
              {"type": "Strip", "content": " ", "start": 1, "stop": 0}]  # fmt: skip
    model = {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": True, "byte_fallback": True, "ignore_merges": False, "vocab": ids,
             "merges": [[left, right] for *_, left, right in sorted(cuts)]}  # fmt: skip
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "pre_tokenizer": None, "post_processor": None,
            "normalizer": {"type": "Sequence", "normalizers": steps}, "decoder": {"type": "Sequence", "decoders": decode},
            "model": model}  # fmt: skip


@pytest.mark.parametrize("family", [*BYTE_LEVEL, *SPM])
def test_ids_of_a_tokenizer_json_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    """And of the header, which for SentencePiece is another library: two ways through different code."""
    from transformers import PreTrainedTokenizerFast

    directory = as_json(family, tmp_path / "model")
    ours = load_tokenizer(directory)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"), clean_up_tokenization_spaces=False)
    expected = theirs(list(strings()), add_special_tokens=False).input_ids
    assert len(strings()) == 600
    for number, (text, ids) in enumerate(zip(strings(), expected, strict=True)):
        assert ours.encode(text, add_bos=False, special=True) == ids, text
        if not any(map(ours.is_control, ids)):  # beside a control token SentencePiece drops a space
            assert ours.decode(ids, skip_special=False) == (text.replace("▁", " ") if family in SPM else text)
        if number % 4 == 0:
            assert ours.encode(text, add_bos=False) == tokenizer(family).encode(text, add_bos=False), text


def specials(found: Tokenizer) -> Iterator[int]:
    return (token for token in range(found.vocab_size) if found.is_control(token) and found.piece(token))


@pytest.mark.parametrize("family", ["llama-bpe", "qwen2", "llama-spm", "phi-3"])
def test_names_become_control_tokens_only_where_asked(family: str) -> None:
    found = tokenizer(family)
    token = next(token for token in specials(found) if len(found.piece(token)) > 3 and token != found.bos)
    name = found.piece(token).decode()
    assert token in found.encode(f"a {name} b", add_bos=False, special=True)
    assert token not in found.encode(f"a {name} b", add_bos=False)
    masked = f"a {name[0]}{MASK}{name[1:]} b{name}"
    ids = found.encode(masked, add_bos=False, special=True)
    assert ids.count(token) == 1 and ids[-1] == token
    assert ids[:-1] == found.encode(f"a {name} b", add_bos=False)
    assert found.encode(f"x{MASK}y", add_bos=False) == found.encode("xy", add_bos=False)
    assert found.id_of(name) == token and found.id_of("no such piece") is None


@pytest.mark.parametrize("family", ["qwen2", "gpt-2", *SPM])
def test_a_mask_inside_no_name_changes_nothing(family: str, tmp_path: Path) -> None:
    """Nor where tokens take the spaces beside them, and only the first word of a text gets a space."""
    stated = json.loads((as_json(family, tmp_path / "model") / "tokenizer.json").read_text(encoding="utf-8"))
    for added in stated["added_tokens"]:
        added["rstrip"] = True
    if family in SPM:
        stated["normalizer"] = None
        stated["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    (tmp_path / "model" / "tokenizer.json").write_text(json.dumps(stated), encoding="utf-8")
    rng = random.Random(family)
    for found in (tokenizer(family), load_tokenizer(tmp_path / "model")):
        names = [found.piece(token).decode() for token in list(specials(found))[-5:]]
        for text in strings()[::12]:
            parts = [text, rng.choice(names), "  more\n", rng.choice(names), " \ufdd1end"]
            plain, masked = "".join(parts), MASK + MASK.join(parts) + MASK
            assert found.encode(masked, True, special=True) == found.encode(plain, True, special=True), plain
            forged = found.encode(f"{text}\ufdd1{names[0][0]}{MASK}{names[0][1:]}", False, special=True)
            token = found.id_of(names[0])
            assert forged.count(token) == found.encode(text, False, special=True).count(token)


MARKUP = ("<start_of_image>", "[multimodal]", "<tool_call>", "</tool_call>", "<img>", "]~b]")
TEXTS = ("<table>", "</td>", "<h1>", "\n\n\n", "\t\t\t", "Zürich")
"""User-defined tokens that are text."""


def with_user_defined(family: str, path: Path) -> Tokenizer:
    """The family's tokenizer with further user-defined tokens, as real vocabularies have them: of a tokenizer.json, or of a header."""
    if family.startswith("header of "):
        header = read_header(vocabulary(family.removeprefix("header of ")))
        known, names = Vocabulary.from_header(header), [*MARKUP, *TEXTS]
        kinds = [*known.kinds, *[int(TokenType.USER_DEFINED)] * len(names)]
        return SpmTokenizer(replace(known, pieces=[*known.pieces, *names], scores=[*known.scores, *[0.0] * len(names)], kinds=kinds))
    file = str(as_json(family, path) / "tokenizer.json")
    library = Library.from_file(file)
    library.add_tokens([AddedToken(name, normalized=False) for name in [*MARKUP, *TEXTS]])
    library.save(file)
    return load_tokenizer(path)


@pytest.mark.parametrize("family", ["qwen2", "llama-spm", "header of llama-spm", "header of phi-3"])
def test_masked_markup_is_text_and_all_else_keeps_its_ids(family: str, tmp_path: Path) -> None:
    plain, found = tokenizer(family.removeprefix("header of ")), with_user_defined(family, tmp_path / "model")
    assert found.markup - plain.markup == set(MARKUP) and not found.markup & set(TEXTS)
    for name in MARKUP:
        token, masked = found.id_of(name), f"{name[0]}{MASK}{name[1:]}"
        for special in (True, False):
            assert token in found.encode(f"a {name} b", False, special=special), "in a raw prompt it is a token"
        assert found.encode(f"a {masked} b", False, special=True) == plain.encode(f"a {name} b", False), name
        ids = found.encode(f"x{masked}y<table>\n\n\nZürich{name}", False, special=True)
        assert ids.count(token) == 1 and ids[-1] == token
        assert [token for token in ids if token in map(found.id_of, TEXTS)] == list(map(found.id_of, ("<table>", "\n\n\n", "Zürich")))


def test_a_tag_whose_opening_is_a_control_token_is_no_html() -> None:
    assert "</s>" in tokenizer("phi-3").markup
    assert markup_among(["<s>", "</s>", "<think>", "a b", "<|x|>", "ø", "  ", "<a", "[]"], {"<s>"}) == {"<s>", "</s>", "<think>", "<|x|>"}
    assert markup_among(["<s>", "</s>", "<h2>", "</code>"], {"<bos>"}) == frozenset()


def test_bos_is_never_doubled() -> None:
    found = tokenizer("llama-bpe")
    assert found.encode("<|begin_of_text|>hi", add_bos=True, special=True) == found.encode("hi", add_bos=True)
    assert found.encode("hi", add_bos=True)[0] == 128_000
    assert tokenizer("qwen2").bos is None and tokenizer("gpt-2").bos is None


def test_ends_come_from_header_and_names() -> None:
    assert {128_001, 128_009} <= tokenizer("llama-bpe").eos_ids
    assert {151_643, 151_645} <= tokenizer("qwen2").eos_ids
    assert {32_000, 32_007} <= tokenizer("phi-3").eos_ids


@pytest.mark.night
@pytest.mark.parametrize("unit", ["a", " ", "7", "!", "\n", "🦙", "ab ", "👨‍👩‍👧"])
def test_a_long_run_takes_linear_time(unit: str) -> None:
    """A megabyte of UTF-8; some 1.5 s at worst on an idle machine."""
    text = unit * ((1 << 20) // len(unit.encode()))
    for family in ("llama-bpe", "qwen2", "gpt-2", "llama-spm"):
        began = time.process_time()
        assert tokenizer(family).encode(text, add_bos=False)
        assert time.process_time() - began < 4, family


def changed(family: str, **metadata: object) -> Header:
    header = read_header(vocabulary(family))
    values = {**header.metadata, **{f"tokenizer.ggml.{key}": value for key, value in metadata.items()}}
    return Header(**{**{name: getattr(header, name) for name in header.__dataclass_fields__}, "metadata": values})


@pytest.mark.parametrize(
    ("metadata", "why"),
    [({"pre": "newest"}, "'newest'.*known: llama3"), ({"pre": ""}, "not known"), ({"model": "t5"}, "'t5'"), ({"token_type": []}, "type")],
)
def test_a_header_that_cannot_be_right_is_refused(metadata: dict[str, object], why: str) -> None:
    with pytest.raises(ModelFormatError, match=why):
        gguf_tokenizer(changed("gpt-2", **metadata))


def test_a_directory_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model": {"type": "BPE"}}', "[" * 100_000])
def test_a_tokenizer_json_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ModelFormatError):
        load_tokenizer(tmp_path)


def test_a_sentencepiece_file_is_read(tmp_path: Path) -> None:
    """Written by our own writer of the format, read back, and the same ids."""
    from ridgeline.text.spm_model import model_proto
    from ridgeline.text.vocabulary import Vocabulary

    stated = Vocabulary.from_header(read_header(vocabulary("llama-spm")))
    (tmp_path / "tokenizer.model").write_bytes(model_proto(stated))
    found = load_tokenizer(tmp_path)
    assert isinstance(found, SpmTokenizer)
    ids = found.encode("Hello, world!", add_bos=False)
    assert found.decode(ids, skip_special=True) == "Hello, world!"
    for damage in (b"", b"\x00", b"\x0a\xff", model_proto(stated)[:-1]):
        (tmp_path / "tokenizer.model").write_bytes(damage)
        with pytest.raises(ModelFormatError):
            load_tokenizer(tmp_path)


def bytes_alone(pre: str) -> Header:
    """GPT-2's 256 pieces of a byte each: how text is cut does not depend on what is merged behind it."""
    whole = read_header(vocabulary("gpt-2")).metadata
    tokens, kinds = whole["tokenizer.ggml.tokens"], whole["tokenizer.ggml.token_type"]
    assert isinstance(tokens, StringArray) and isinstance(kinds, array)
    few = {"tokens": StringArray(tokens.data, 256), "merges": StringArray(b"", 0), "token_type": kinds[:256]}
    return changed("gpt-2", pre=pre, **few, bos_token_id=0, eos_token_id=0)


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
def test_every_way_to_cut_keeps_the_text(pre: str) -> None:
    found = gguf_tokenizer(bytes_alone(pre))
    for text in strings()[::6]:
        assert found.decode(found.encode(text, add_bos=False), skip_special=True) == text


@pytest.mark.parametrize(
    ("pre", "text", "parts"),
    [
        ("tekken", "HelloWorld 12don't", ["Hello", "World", " ", "1", "2", "don", "'t"]),
        ("default", "a 12345!b", ["a", " ", "123", "45", "!", "b"]),
        ("deepseek-llm", " ab\U0001d400c\n1", [" ab", "\U0001d400", "c", "\n", "1"]),
        ("llama-bpe", "I'LL 12345", ["I", "'LL", " ", "123", "45"]),
        ("qwen2", "a12\n\n b", ["a", "1", "2", "\n\n", " b"]),
        ("starcoder", "a 12", ["a", " ", "1", "2"]),
    ],
)
def test_parts_into_which_text_is_cut(pre: str, text: str, parts: list[str]) -> None:
    found = gguf_tokenizer(bytes_alone(pre))
    assert isinstance(found, FastTokenizer)
    cutter = found._library.pre_tokenizer
    assert cutter is not None
    assert [text[begin:end] for _, (begin, end) in cutter.pre_tokenize_str(text)] == parts


EMPTY = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None}
SPLIT = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}


def written(directory: Path, model: dict[str, object], **steps: object) -> Path:
    bpe = {"type": "BPE", "unk_token": None, "vocab": {"a": 0, "b": 1}, "merges": []}
    (directory / "tokenizer.json").write_text(json.dumps(EMPTY | {"model": bpe | model} | steps))
    return directory


@pytest.mark.parametrize(
    ("model", "steps", "why"),
    [
        ({"type": "WordLevel", "vocab": {"<unk>": 0}, "unk_token": "<unk>"}, {}, "WordLevel"),
        ({"type": "Unigram", "unk_id": 0, "vocab": [["a", -1.0]], "merges": None}, {}, "Unigram"),
        ({"vocab": {"a": 0, "b": 4_000_000_000}}, {}, "ids up to"),
        ({"merges": [["a", "c"]]}, {}, "cannot be used"),
        ({"vocab": {"b": 0}, "unk_token": "<none>"}, {}, "one letter"),
        ({}, {"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}}, "1000 times longer"),
        ({}, {"pre_tokenizer": SPLIT | {"pattern": {"Regex": "(" * 5000 + ")" * 5000}}}, "cannot be used"),
    ],
)
def test_a_hostile_tokenizer_json_is_refused(tmp_path: Path, model: dict[str, object], steps: dict[str, object], why: str) -> None:
    with pytest.raises(ModelFormatError, match=why):
        load_tokenizer(written(tmp_path, model, **steps))


def test_a_pattern_that_never_ends_is_given_up(tmp_path: Path) -> None:
    found = load_tokenizer(written(tmp_path, {}, pre_tokenizer=SPLIT))
    with pytest.raises(RequestError, match="fails on these 30 characters"):
        found.encode("a" * 28 + "bb", add_bos=False)
