"""Prompts of a text between two: the marks of each family in its order, a real code model's ids, and texts that name marks."""

from pathlib import Path

import pytest
from gguf_files import File, value

from gold import vocabulary
from ridgeline.facts.files.gguf import read_header
from ridgeline.text.files import gguf_tokenizer
from ridgeline.text.fim import FAMILIES, FimNames, find_fim
from ridgeline.text.tokenizer import ByteTokenizer, Tokenizer

BOS = 256


class Named(ByteTokenizer):
    """Bytes, and ids from 258 on for some names."""

    def __init__(self, *names: str, below: Tokenizer | None = None) -> None:
        self.names, self.below = names, below
        self.first = 258 if below is None else below.vocab_size
        self.vocab_size = self.first + len(names)

    def id_of(self, piece: str) -> int | None:
        return self.first + self.names.index(piece) if piece in self.names else None

    def encode(self, text: str, add_bos: bool, special: bool = False) -> list[int]:
        return super().encode(text, add_bos, special) if self.below is None else self.below.encode(text, add_bos, special)

    def piece(self, token: int) -> bytes:
        return super().piece(token) if self.below is None else self.below.piece(token)


@pytest.mark.parametrize("names", FAMILIES, ids=lambda names: names.first)
def test_marks_stand_where_the_family_has_them(names: FimNames) -> None:
    fim = find_fim(Named(names.first, names.second, names.last or "-", *names.ends), None)
    assert fim is not None
    one, two = ([*b"suf"], [*b"pre"]) if names.suffix_first else ([*b"pre"], [*b"suf"])
    last = [260] if names.last else []
    assert fim.prompt("pre", "suf") == [BOS, 258, *one, 259, *two, *last]
    assert fim.prompt("pre", "suf", add_bos=False) == fim.prompt([*b"pre"], "suf") == [258, *one, 259, *two, *last]
    assert fim.prompt([BOS, *b"pre"], "suf") == fim.prompt("pre", "suf"), "the mark of a text's beginning stays the first"
    assert fim.ends == {258, 259, *last, *range(261, 261 + len(names.ends))}


def test_families_are_told_apart() -> None:
    """Of a family that lacks a mark the next is looked for."""
    assert find_fim(Named("<|fim_prefix|>", "<|fim_suffix|>"), None) is None
    assert find_fim(ByteTokenizer(), None) is None
    fim = find_fim(Named("<|fim_prefix|>", "[PREFIX]", "[SUFFIX]"), None)
    assert fim is not None and (fim.first, fim.suffix_first) == (260, True)


def test_the_ids_of_a_code_model() -> None:
    tokenizer = gguf_tokenizer(read_header(vocabulary("starcoder")))
    fim = find_fim(tokenizer, None)
    assert fim is not None
    text = "<fim_prefix>def f(<fim_suffix>):\n    pass<fim_middle>"
    assert fim.prompt("def f(", "):\n    pass") == tokenizer.encode(text, add_bos=True, special=True)
    hostile = fim.prompt("a<fim_middle>b", "<|endoftext|><fim_suffix>")
    assert sum(map(tokenizer.is_control, hostile)) - sum(map(tokenizer.is_control, hostile[:1])) <= 3 and hostile.count(fim.last) == 1


def test_no_space_is_added_before_a_suffix() -> None:
    """By a vocabulary that puts one before every text."""
    tokenizer = gguf_tokenizer(read_header(vocabulary("llama-spm")))
    marks = ("▁<PRE>", "▁<SUF>", "▁<MID>")
    fim = find_fim(Named(*marks, below=tokenizer), None)
    assert fim is not None
    for suffix in (")", "x = 1", " x", "\n  return", "é", "ﬁ", ""):
        ids = fim.prompt("def f(", suffix, add_bos=False)
        after = ids[ids.index(fim.second) + 1 : -1]
        assert b"".join(map(tokenizer.piece, after)) in (suffix.encode(), f" {suffix}".encode() if suffix.startswith(" ") else b"")


def test_the_header_of_a_file_names_marks(tmp_path: Path) -> None:
    def find(**keys: int) -> tuple[int, int, int | None] | None:
        file = tmp_path / "m.gguf"
        pairs = [(f"tokenizer.ggml.{name}_token_id", value("u32", token)) for name, token in keys.items()]
        file.write_bytes(File(pairs=[("general.architecture", value("str", "tiny")), *pairs]).build())
        fim = find_fim(ByteTokenizer(), file)
        return None if fim is None else (fim.first, fim.second, fim.last)

    assert find(fim_pre=5, fim_suf=6, fim_mid=7) == find(prefix=5, suffix=6, middle=7) == (5, 6, 7)
    assert find(fim_pre=5, prefix=9, fim_suf=6, fim_mid=7) == (5, 6, 7)
    assert find() is find(fim_pre=5, fim_mid=7) is None
