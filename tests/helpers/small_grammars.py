"""Grammars over a small vocabulary: bytes, and some words of several, of which texts have more than one split."""

import hashlib
import select

from ridgeline.compute.decoding.grammar import GrammarCompiler
from ridgeline.core.params import Grammar

VOCAB, END = 300, 256
WORDS = [bytes((token,)) for token in range(256)] + [b"<end>", b"ab", b"abc", b"bc", b'"}', b'{"']


def grammar(text: str) -> Grammar:
    return Grammar(hashlib.sha256(text.encode()).digest(), text)


def ready(compiler: GrammarCompiler, asked: Grammar) -> str | None:
    """Compiles a grammar; its error."""
    compiler.compile(asked)
    assert select.select([compiler], [], [], 20)[0]
    ((digest, error),) = compiler.take()
    assert digest == asked.digest and not compiler.pending
    return error
