"""A SentencePiece vocabulary as a GGUF header states it: checked columns, and the type of each id.

Owns the validation of what the header claims; never splits text.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from math import isfinite

from ridgeline.errors import ModelFormatError
from ridgeline.facts.files.gguf import Header

_END_NAMES = frozenset({"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>"})
"""Control tokens that end a turn in chat models although headers rarely say so (the names that llama.cpp looks for)."""
_CHANNEL_ENDS = frozenset({"<|call|>", "<|return|>"})
"""Tokens that end an answer in channels; there `<|end|>` ends one message of several."""


def end_names(names: Collection[str]) -> frozenset[str]:
    """Those of the `names` of control tokens that end a turn."""
    found = _END_NAMES.intersection(names)
    return (found | _CHANNEL_ENDS) - {"<|end|>"} if {*names} >= _CHANNEL_ENDS else found


MAX_USER_DEFINED_CHARACTERS = 1 << 18
"""Characters of all user-defined tokens together (Gemma 3 has 2,900): the pattern that finds them must stay cheap to build."""

_BYTE_NAME = re.compile("<0x[0-9A-F]{2}>")


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`. Undefined and unused pieces take part in merges like normal ones, as in llama.cpp."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Columns indexed by token id, all of the same length.

    bos           None: prompts start without one
    eos_ids       ids that end a generation
    text_end      the id behind a text whose vector is wanted
    unknown       the id for text that has neither a piece nor byte tokens
    space_prefix  a space is put before the text and after each user-defined token
    """

    pieces: Sequence[str]
    scores: Sequence[float]
    kinds: Sequence[int]
    bos: int | None
    eos_ids: frozenset[int]
    unknown: int
    space_prefix: bool
    text_end: int | None = None

    @classmethod
    def from_header(cls, header: Header) -> "Vocabulary":
        """Reads `tokenizer.ggml.*`; ids that are absent are those of the original LLaMA vocabulary. Raises `ModelFormatError`."""
        pieces = list(header.strings("tokenizer.ggml.tokens"))
        scores = header.numbers("tokenizer.ggml.scores", "f")
        size, stored = len(pieces), header.numbers("tokenizer.ggml.token_type", "iI")
        _check_columns(size, scores, stored)
        kinds = stored.tobytes()[:: stored.itemsize]  # the low bytes, which hold all of these types
        _check_pieces(pieces, kinds)

        def token_id(name: str, default: int) -> int:
            return header.integer(f"tokenizer.ggml.{name}_token_id", 0, size - 1, default=default)

        eos = token_id("eos", 2)
        control = {pieces[token]: token for token in tokens_of(kinds, TokenType.CONTROL)}
        return cls(
            pieces=pieces,
            scores=scores,
            kinds=kinds,
            bos=token_id("bos", 1) if header.flag("tokenizer.ggml.add_bos_token", default=True) else None,
            eos_ids=frozenset({eos, token_id("eot", eos), token_id("eom", eos)} | {control[name] for name in end_names(control)}),
            unknown=token_id("unknown", 0),
            space_prefix=header.flag("tokenizer.ggml.add_space_prefix", default=True),
            text_end=eos if header.flag("tokenizer.ggml.add_eos_token", default=False) else None,
        )

    def with_eos_ids(self, ids: frozenset[int]) -> "Vocabulary":
        """A copy with further ids that end a generation; ids that it does not have are left out."""
        return replace(self, eos_ids=self.eos_ids | {token for token in ids if token < len(self.pieces)})


def tokens_of(kinds: Sequence[int], *wanted: TokenType) -> list[int]:
    """Ids of these types, ascending, without a step of Python for each id: every start looks for some."""
    return [found.start() for found in re.finditer(b"[%b]" % bytes(wanted), bytes(kinds))]


def _check_columns(size: int, scores: Sequence[float], kinds: Sequence[float]) -> None:
    if size == 0 or size != len(scores) or size != len(kinds):
        raise ModelFormatError(
            f"the tokenizer has {size} tokens, {len(scores)} scores and {len(kinds)} types, but needs as many of each: "
            "download the file again"
        )
    if unknown := set(kinds) - set(TokenType):
        raise ModelFormatError(f"the tokenizer has tokens of type {min(unknown)}; types 0 … 6 are known: download the file again")
    if not all(map(isfinite, scores)):
        raise ModelFormatError(f"some of the tokenizer's {size} scores are not finite numbers: download the file again")


def _check_pieces(pieces: Sequence[str], kinds: Sequence[int]) -> None:
    total = sum(len(pieces[token]) for token in tokens_of(kinds, TokenType.USER_DEFINED))
    if total > MAX_USER_DEFINED_CHARACTERS:
        limit = MAX_USER_DEFINED_CHARACTERS
        raise ModelFormatError(f"the tokenizer's user-defined tokens have {total} characters, at most {limit} are supported")
    names = [pieces[token] for token in tokens_of(kinds, TokenType.BYTE)]
    if len(set(filter(_BYTE_NAME.fullmatch, names))) < len(names):
        raise ModelFormatError(
            f"the tokenizer's {len(names)} byte tokens are not distinct names among <0x00> … <0xFF>: download the file again"
        )
