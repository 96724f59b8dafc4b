"""SentencePiece-style BPE over a scored vocabulary with byte fallback; gives llama.cpp's ids.

Owns the cutting at user-defined tokens and the meaning of each id, and the protobuf of SentencePiece models: a vocabulary is written as
one, which the sentencepiece library then runs, since deriving BPE merges from 262,144 scored pieces in Python would take seconds; and a
tokenizer.model is read field by field, each length bounded.
Format: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
"""

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path

from sentencepiece import SentencePieceProcessor

from ridgeline.errors import ModelFormatError
from ridgeline.text.tokenizer import MASK, longest_of
from ridgeline.text.vocabulary import Kind, Vocabulary

_SPACE_MARK = "\u2581"
_SILENT = frozenset({Kind.CONTROL, Kind.UNKNOWN})


class SpmTokenizer:
    """A `Tokenizer` (see `text.tokenizer`). Building one takes some 0.4 s for 262,144 pieces."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._pieces = vocabulary.pieces
        self._kinds = vocabulary.kinds
        self._space_prefix = vocabulary.space_prefix
        self.bos = vocabulary.bos
        self.eos_ids = vocabulary.eos_ids
        self.vocab_size = len(vocabulary.pieces)
        cut = int(Kind.USER_DEFINED)
        self._user_defined = {piece: token for token, piece in enumerate(self._pieces) if self._kinds[token] == cut and piece}
        self._cuts = _cutter(self._user_defined)
        named = {piece: token for token, piece in enumerate(self._pieces) if self._kinds[token] in _SILENT and piece}
        self._special = {**named, **self._user_defined}
        self._special_cuts = _cutter(self._special)
        self._bpe = SentencePieceProcessor()
        try:
            self._bpe.LoadFromSerializedProto(model_proto(vocabulary))
        except RuntimeError as error:
            raise ModelFormatError(
                f"the tokenizer's {self.vocab_size} pieces cannot be used ({error}): use another conversion of the model"
            ) from error

    def encode(self, text: str, add_bos: bool, special: bool = False) -> list[int]:
        """Ids of `text`. Tokens that stand by themselves are cut out first, the longest at the leftmost place; merges never cross them.
        A surrogate without its partner is no character and becomes U+FFFD."""
        if not text.isascii():
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        ids = self._cut(text, self._special_cuts, self._special) if special else self._ordinary(text)
        first = self.bos if add_bos else None
        return ids if first is None or (special and ids[:1] == [first]) else [first, *ids]

    def _ordinary(self, text: str) -> list[int]:
        return self._cut(text.replace(MASK, ""), self._cuts, self._user_defined)

    def _cut(self, text: str, cuts: re.Pattern[str] | None, tokens: Mapping[str, int]) -> list[int]:
        """Ids with `tokens` cut out by `cuts`; text between them that is masked is read without them."""
        ids: list[int] = []
        prefix = " " if self._space_prefix else ""
        for index, fragment in enumerate(cuts.split(text) if cuts else (text,)):
            if index % 2:
                ids.append(tokens[fragment])
            elif MASK in fragment:
                ids += self._ordinary(fragment)
            elif fragment:
                ids += self._bpe.encode(prefix + fragment)
        return ids

    def id_of(self, piece: str) -> int | None:
        """See `Tokenizer.id_of`."""
        return self._ids.get(piece)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {piece: token for token, piece in enumerate(self._pieces) if piece}

    def piece(self, token: int) -> bytes:
        """See `Tokenizer.piece`. An id that only pads the vocabulary stands for nothing."""
        if token >= self.vocab_size:
            return b""
        kind, piece = self._kinds[token], self._pieces[token]
        if kind == Kind.BYTE:
            return bytes((int(piece[3:5], 16),))
        if kind == Kind.USER_DEFINED or kind in _SILENT:
            return piece.encode()
        return piece.replace(_SPACE_MARK, " ").encode()

    def is_control(self, token: int) -> bool:
        """See `Tokenizer.is_control`."""
        return token >= self.vocab_size or self._kinds[token] in _SILENT

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        """See `Tokenizer.decode`. The space that `encode` puts first is taken away again."""
        shown = [token for token in ids if not (skip_special and self.is_control(token))]
        text = b"".join(map(self.piece, shown)).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._space_prefix else text


def _cutter(tokens: Mapping[str, int]) -> re.Pattern[str] | None:
    return re.compile(f"({longest_of(tokens)})") if tokens else None


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
    """The bytes before a piece's text: its size, field 3 (the type; normal is the default) and the start of field 1 (the text).
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


MAX_BYTES = 64 << 20
_BPE = 2
_KINDS = {1: Kind.NORMAL, 2: Kind.UNKNOWN, 3: Kind.CONTROL, 4: Kind.USER_DEFINED, 5: Kind.UNUSED, 6: Kind.BYTE}


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
                kinds.append(_KINDS[int(fields.get(3, 1))])
            elif number == 2 and isinstance(value, bytes):
                trainer = {key: each for key, each in _fields(value) if isinstance(each, int)}
            elif number == 3 and isinstance(value, bytes):
                prefix = bool(dict(_fields(value)).get(3, 1))
    except (IndexError, KeyError, ValueError, TypeError, struct.error):
        raise ModelFormatError(f"{path.name} is no SentencePiece model that can be read; download it again") from None
    if not pieces or trainer.get(3, 1) != _BPE:
        raise ModelFormatError(f"{path.name} holds {len(pieces)} pieces of model type {trainer.get(3, 1)}; type 2 (BPE) is supported")
    bos, eos = _signed(trainer.get(41, 1)), _signed(trainer.get(42, 2))
    return Vocabulary(pieces, scores, kinds, bos if bos >= 0 else None, frozenset({eos} if eos >= 0 else ()), trainer.get(40, 0), prefix)


def _signed(value: int) -> int:
    """Negative numbers are written as 64-bit complements."""
    return value - (1 << 64) if value >> 63 else value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field of a message. Raises ValueError or IndexError for what is no message."""
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
