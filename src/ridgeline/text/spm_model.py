"""The protobuf of SentencePiece models: written for the sentencepiece library, read from a tokenizer.model.

Owns the format. A vocabulary of any source is written as a model that the library runs; a file is read field by field, each length bounded.
Format: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
"""

import struct
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from ridgeline.errors import ModelFormatError
from ridgeline.text.vocabulary import TokenType, Vocabulary

_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
"""`ModelProto.SentencePiece.Type`."""

_TYPE = {
    TokenType.UNDEFINED: _NORMAL,
    TokenType.NORMAL: _NORMAL,
    TokenType.UNKNOWN: _CONTROL,
    TokenType.CONTROL: _CONTROL,
    TokenType.USER_DEFINED: _CONTROL,
    TokenType.UNUSED: _NORMAL,
    TokenType.BYTE: _BYTE,
}
"""The library's type of each token type, in order. Text is split at user-defined pieces before the library sees it, which takes
them for control."""


def model_proto(vocabulary: Vocabulary) -> bytes:
    """A serialised model whose ids are the vocabulary's. Without a token for each of the 256 bytes there is no byte fallback."""
    kinds = bytes(vocabulary.kinds)
    has_bytes = kinds.count(TokenType.BYTE) == 256
    types = bytes(_CONTROL if kind == TokenType.BYTE and not has_bytes else code for kind, code in _TYPE.items())
    texts = _distinct(vocabulary.pieces)
    codes = bytearray(kinds.translate(types.ljust(256)))
    codes[vocabulary.unknown] = _UNKNOWN
    written, score = bytearray(), struct.Struct("<cf").pack
    for text, value, code in zip(texts, vocabulary.scores, codes, strict=True):
        written += _head(len(text), code)
        written += text
        written += score(b"\x15", value)
    return bytes(written + _trainer_spec(vocabulary.unknown, has_bytes) + _normalizer_spec())


@cache
def _head(length: int, code: int) -> bytes:
    """The bytes before a piece's text: its size, field 3 (the type; normal is the default) and the start of field 1 (the text).
    Field 2 (the score) follows the text."""
    kind = b"" if code == _NORMAL else bytes((3 << 3, code))
    text = b"\x0a" + _varint(length)
    score_size = 5
    return b"\x0a" + _varint(len(kind) + len(text) + length + score_size) + kind + text


def _distinct(pieces: Sequence[str]) -> list[bytes]:
    """The pieces in UTF-8. The library wants them distinct and not empty: of equal ones the last keeps its text, as in
    llama.cpp, the others get bytes that are not UTF-8 and so never occur in a text."""
    texts, different = list(map(str.encode, pieces)), set(pieces)
    if len(different) < len(pieces) or "" in different:
        last = {piece: token for token, piece in enumerate(pieces)}
        for token, piece in enumerate(pieces):
            if last[piece] != token or not piece:
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


MAX_BYTES = 64 << 20
_BPE = 2
_TYPES = {
    1: TokenType.NORMAL, 2: TokenType.UNKNOWN, 3: TokenType.CONTROL, 4: TokenType.USER_DEFINED, 5: TokenType.UNUSED, 6: TokenType.BYTE
}  # fmt: skip
"""`ModelProto.SentencePiece.Type` → token type."""


def read_vocabulary(path: Path) -> Vocabulary:
    """Pieces, scores and kinds of a BPE model; prompts begin with its BOS. Raises ModelFormatError."""
    data = path.read_bytes() if path.stat().st_size <= MAX_BYTES else b""
    pieces: list[str] = []
    scores: list[float] = []
    kinds: list[int] = []
    trainer: dict[int, int] = {}
    prefix = True
    try:
        for number, value in _fields(data):
            if number == 1 and isinstance(value, bytes):
                fields = dict(_fields(value))
                pieces.append(bytes(fields.get(1, b"")).decode())
                scores.append(struct.unpack("<f", struct.pack("<I", int(fields.get(2, 0))))[0])
                kinds.append(_TYPES[int(fields.get(3, 1))])
            elif number == 2 and isinstance(value, bytes):
                trainer = {key: each for key, each in _fields(value) if isinstance(each, int)}
            elif number == 3 and isinstance(value, bytes):
                prefix = bool(dict(_fields(value)).get(3, 1))
    except (IndexError, KeyError, ValueError, TypeError, struct.error):
        raise ModelFormatError(f"{path.name} cannot be read as a SentencePiece model; download it again") from None
    if not pieces or trainer.get(3, 1) != _BPE:
        raise ModelFormatError(f"{path.name} holds {len(pieces)} pieces of model type {trainer.get(3, 1)}; type 2 (BPE) is supported")
    bos, eos = _signed(trainer.get(41, 1)), _signed(trainer.get(42, 2))
    return Vocabulary(pieces, scores, kinds, bos if bos >= 0 else None, frozenset({eos} if eos >= 0 else ()), trainer.get(40, 0), prefix)


def _signed(value: int) -> int:
    """Negative numbers are written as 64-bit complements."""
    return value - (1 << 64) if value >> 63 else value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field of a message. Raises ValueError or IndexError for other data."""
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _read_varint(data, at)
            yield key >> 3, value
            continue
        length = {1: 8, 5: 4}.get(kind)
        if length is None:
            if kind != 2:
                raise ValueError(f"wire type {kind}")
            length, at = _read_varint(data, at)
        part = data[at : at + length]
        if len(part) != length:
            raise ValueError("truncated")
        yield key >> 3, part if kind == 2 else int.from_bytes(part, "little")
        at += length


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number without end")
