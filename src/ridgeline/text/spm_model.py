"""Writes a vocabulary as a serialised SentencePiece model, which the sentencepiece library then runs.

Owns the protobuf bytes: deriving BPE merges from 262,144 scored pieces in Python would take seconds, this takes a quarter of one.
Format: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
"""

import struct
from collections.abc import Sequence
from functools import cache

from ridgeline.text.vocabulary import Kind, Vocabulary

_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
"""`ModelProto.SentencePiece.Type`."""

_TYPE = {
    Kind.UNDEFINED: _NORMAL,
    Kind.NORMAL: _NORMAL,
    Kind.UNUSED: _NORMAL,
    Kind.UNKNOWN: _CONTROL,
    Kind.CONTROL: _CONTROL,
    Kind.USER_DEFINED: _CONTROL,
    Kind.BYTE: _BYTE,
}
"""User-defined pieces are cut out before the library sees the text, so to it they are as inert as control tokens."""


def model_proto(vocabulary: Vocabulary) -> bytes:
    """The model whose ids are the vocabulary's. Without a token for each of the 256 bytes there is no byte fallback."""
    types = [_TYPE[Kind(kind)] for kind in range(len(Kind))]
    has_bytes = vocabulary.kinds.count(Kind.BYTE) == 256
    if not has_bytes:
        types[Kind.BYTE] = _CONTROL
    texts = _distinct(vocabulary.pieces)
    codes = [types[kind] for kind in vocabulary.kinds]
    codes[vocabulary.unknown] = _UNKNOWN
    score = struct.Struct("<cf").pack
    pieces = [
        _head(len(text), code) + text + score(b"\x15", value) for text, value, code in zip(texts, vocabulary.scores, codes, strict=True)
    ]
    return b"".join(pieces) + _trainer_spec(vocabulary.unknown, has_bytes) + _normalizer_spec()


@cache
def _head(length: int, code: int) -> bytes:
    """What stands before a piece's text: its size, field 3 (the type; normal is the default) and the start of field 1 (the text).
    Field 2 (the score) follows the text."""
    kind = b"" if code == _NORMAL else bytes((3 << 3, code))
    text = b"\x0a" + _varint(length)
    score_size = 5
    return b"\x0a" + _varint(len(kind) + len(text) + length + score_size) + kind + text


def _distinct(pieces: Sequence[str]) -> list[bytes]:
    """The pieces in UTF-8. The library wants them distinct and not empty: of equal ones the last keeps its text, as in
    llama.cpp, the others get bytes that are not UTF-8 and so never occur in a text."""
    last = {piece: token for token, piece in enumerate(pieces)}
    last.pop("", None)
    texts = [piece.encode() for piece in pieces]
    if len(last) < len(pieces):
        for token, piece in enumerate(pieces):
            if last.get(piece) != token:
                texts[token] = b"\xff%d" % token
    return texts


def _trainer_spec(unknown: int, byte_fallback: bool) -> bytes:
    bpe, no_id = 2, -1
    fields = _number(3, bpe) + _number(35, byte_fallback) + _number(40, unknown)
    return _message(2, fields + _number(41, no_id) + _number(42, no_id) + _number(43, no_id))


def _normalizer_spec() -> bytes:
    """Text is taken as it is, but for spaces that become U+2581: prefixes are the tokenizer's matter."""
    dummy_prefix, remove_extra_spaces, escape_spaces = 3, 4, 5
    return _message(3, _number(dummy_prefix, 0) + _number(remove_extra_spaces, 0) + _number(escape_spaces, 1))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value & 0xFFFF_FFFF_FFFF_FFFF)


def _message(field: int, payload: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    if value < 0x80:
        return value.to_bytes()
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
