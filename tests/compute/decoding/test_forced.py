"""Text that a grammar forces: what is told of it, and when nothing is."""

from collections.abc import Iterator
from itertools import count

import pytest
from small_grammars import END, VOCAB, WORDS, grammar, ready

from ridgeline.compute.decoding import forced
from ridgeline.compute.decoding.forced import Pieces
from ridgeline.compute.decoding.grammar import GrammarCompiler, RowGrammar, Vocabulary

OTHERS = count()
AB, ABC, BC = WORDS.index(b"ab"), WORDS.index(b"abc"), WORDS.index(b"bc")


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(lambda: Vocabulary(WORDS, [END], [END]), VOCAB, tells_forced=True)
    yield made
    made.close()


def row(compiler: GrammarCompiler, text: str, ids: list[int]) -> RowGrammar:
    """A row behind `ids`, when its grammar has been compiled twice: the next one to be compiled comes after that."""
    assert ready(compiler, grammar(text)) is None and ready(compiler, grammar(f'start: "{next(OTHERS)}"')) is None
    return compiler.start(grammar(text), ids)


def test_forced_text_is_told_in_long_pieces_but_the_last(compiler: GrammarCompiler) -> None:
    found = row(compiler, 'start: "abcabc" /[0-9]/ "ab"', [])
    assert found.forced() == (ABC,), "the second might be longer, of text that is not forced yet"
    found.advance([AB])
    assert found.forced() == (ord("c"),)
    found.advance([ord("c"), ord("a")])
    assert found.forced() == (BC,), "a single one is told"
    found.advance([BC])
    assert found.forced() == (), "any figure may come"
    found.advance([ord("7")])
    assert found.forced() == (AB,)
    found.advance([AB])
    assert found.forced() == ()


def test_it_is_a_function_of_the_outputs(compiler: GrammarCompiler) -> None:
    assert row(compiler, 'start: "abcabc" /[0-9]/ "ab"', [AB, ord("c"), ABC, ord("1")]).forced() == (AB,)


def test_a_place_in_masks_is_not_moved(compiler: GrammarCompiler) -> None:
    found = row(compiler, 'start: "abc" | "b"', [])
    found.advance([ord("a")])
    found.forced()
    assert found.waiting == 1 and set(found.allowed()) == {ord("b"), BC}


def test_nothing_is_told_behind_what_it_cannot_read(compiler: GrammarCompiler) -> None:
    found = row(compiler, 'start: "abc"', [])
    found.advance([END])
    assert found.forced() == ()
    found.advance([ord("a")])
    assert found.forced() == ()


def test_a_dear_row_is_not_looked_at_again(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    found = row(compiler, 'start: "abcabc"', [])
    monkeypatch.setattr(forced, "DEAR_SECONDS", -1.0)
    assert found.forced() and found.forced() == ()


def test_nobody_asks_without_drafts() -> None:
    plain = GrammarCompiler(lambda: Vocabulary(WORDS, [END], [END]), VOCAB)
    assert row(plain, 'start: "abcabc"', []).forced() == ()
    plain.close()


def test_of_ids_with_the_same_text_the_last_is_told() -> None:
    pieces = Pieces([b"a", b"b", b"a", b"", b"<s>"], [4])
    assert pieces.split(b"ab<") == (2, 1) and pieces.split(b"") == ()
    assert pieces.text([0, 1, 2]) == b"aba" and pieces.text([0, 4]) is None
    assert len(pieces.split(b"ab" * 20)) == forced.MAX_IDS
