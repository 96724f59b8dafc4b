"""The vocabulary of a SentencePiece model file (tokenizer.model). Owns the reading of its protobuf, field by field, each length bounded.

Format: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
"""

import struct
from collections.abc import Iterator
from pathlib import Path

from ridgeline.errors import ModelFormatError
from ridgeline.text.vocabulary import Kind, Vocabulary

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
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        length = {1: 8, 5: 4}.get(kind)
        if length is None:
            if kind != 2:
                raise ValueError(f"wire type {kind}")
            length, at = _varint(data, at)
        part = data[at : at + length]
        if len(part) != length:
            raise ValueError("truncated")
        yield key >> 3, part if kind == 2 else int.from_bytes(part, "little")
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
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
