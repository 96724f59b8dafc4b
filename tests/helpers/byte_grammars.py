"""Grammars over a vocabulary of bytes: which texts follow one."""

import select

import numpy as np

from ridgeline.compute.decoding.grammar import GrammarCompiler, Vocabulary
from ridgeline.core.params import Grammar

END = 256
"""The id behind those of bytes that ends an output."""


def byte_compiler() -> GrammarCompiler:
    """Close it."""
    pieces = [bytes((token,)) for token in range(END)] + [b"<end>"]
    return GrammarCompiler(lambda: Vocabulary(pieces, [END], [END]), len(pieces))


def takes(matching: GrammarCompiler, grammar: Grammar, text: str) -> bool:
    """True if every byte of the text is allowed behind those before it, and the end behind them all."""
    matching.compile(grammar)
    while matching.pending:
        assert select.select([matching], [], [], 20)[0]
        assert all(error is None for _, error in matching.take())
    ids = [*text.encode(), END]
    masks = np.zeros((1 + len(ids), matching.words), np.uint32)
    matching.start(grammar, ()).masks(ids, masks)
    return all(masks[place, token // 32] >> np.uint32(token % 32) & 1 for place, token in enumerate(ids))
