"""A tokenizer that the tokenizers library runs: byte-level BPE or SentencePiece-style BPE with added tokens.

Owns what each id stands for, and which names in a text become control tokens; the cutting and merging are the library's.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

from tokenizers import Tokenizer as Library

from ridgeline.errors import RequestError
from ridgeline.text.tokenizer import MASK

_SPACE_MARK = "\u2581"
_BYTE_NAME = re.compile("<0x([0-9A-F]{2})>")


@dataclass(frozen=True, slots=True)
class Meanings:
    """What ids stand for. `pieces` are the names in the library's vocabulary, "" where it has none.

    byte_level   pieces spell bytes in GPT-2's alphabet; else U+2581 is a space and <0x0A> a byte
    added        ids whose pieces are literal text; of these `control` stand for no text
    space_prefix the space that encoding puts in front is taken away when a whole text is decoded
    """

    pieces: Sequence[str]
    byte_level: bool
    added: frozenset[int]
    control: frozenset[int]
    bos: int | None
    eos_ids: frozenset[int]
    space_prefix: bool = False


class FastTokenizer:
    """A `Tokenizer` (see `text.tokenizer`)."""

    def __init__(self, library: Library, meanings: Meanings) -> None:
        self._library = library
        self._meanings = meanings
        self._literal: Library | None = None
        """The same, with names of control tokens as ordinary text; made when a text first holds such a name."""
        self._making = Lock()
        self.bos = meanings.bos
        self.eos_ids = meanings.eos_ids
        self.vocab_size = len(meanings.pieces)
        self._ids = {piece: token for token, piece in enumerate(meanings.pieces) if piece}
        names = sorted((meanings.pieces[token] for token in meanings.control if meanings.pieces[token]), key=len, reverse=True)
        self._names = re.compile("|".join(map(re.escape, names))) if names else None
        self._bytes = [self._piece(token, piece) for token, piece in enumerate(meanings.pieces)]

    def encode(self, text: str, add_bos: bool, special: bool = False) -> list[int]:
        """See `Tokenizer.encode`. A surrogate without its partner is no character and becomes U+FFFD."""
        if not text.isascii():
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        ids = self._parsed(text) if special else self._ordinary(text.replace(MASK, ""))
        first = self.bos if add_bos else None
        return ids if first is None or (special and ids[:1] == [first]) else [first, *ids]

    def id_of(self, piece: str) -> int | None:
        """See `Tokenizer.id_of`."""
        return self._ids.get(piece)

    def piece(self, token: int) -> bytes:
        """See `Tokenizer.piece`. An id that only pads the vocabulary stands for nothing."""
        return self._bytes[token] if token < self.vocab_size else b""

    def is_control(self, token: int) -> bool:
        """See `Tokenizer.is_control`."""
        return token in self._meanings.control or token >= self.vocab_size

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        """See `Tokenizer.decode`."""
        shown = (token for token in ids if not (skip_special and self.is_control(token)))
        text = b"".join(map(self.piece, shown)).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._meanings.space_prefix else text

    def _parsed(self, text: str) -> list[int]:
        if MASK not in text or self._names is None:
            return self._run(self._library, text)
        ids: list[int] = []
        at = 0
        for name in self._names.finditer(text):
            ids += self._ordinary(text[at : name.start()].replace(MASK, ""))
            ids.append(self._ids[name.group()])
            at = name.end()
        return ids + self._ordinary(text[at:].replace(MASK, ""))

    def _ordinary(self, text: str) -> list[int]:
        if self._names is None or not self._names.search(text):
            return self._run(self._library, text)
        return self._run(self._without_names(), text)

    def _without_names(self) -> Library:
        with self._making:
            if self._literal is None:
                self._literal = Library.from_str(self._library.to_str())
                self._literal.encode_special_tokens = True
        return self._literal

    @staticmethod
    def _run(library: Library, text: str) -> list[int]:
        try:
            ids: list[int] = library.encode(text, add_special_tokens=False).ids if text else []
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the library panics, beside Exception, where a pattern of the model gives up on a text
            message = f"the model's tokenizer gives up on these {len(text)} characters ({error!s:.100}); send a shorter or another text"
            raise RequestError(message, param="prompt") from None
        return ids

    def _piece(self, token: int, piece: str) -> bytes:
        if token in self._meanings.added or token in self._meanings.control:
            return piece.encode()
        if self._meanings.byte_level:
            return bytes(_FROM_ALPHABET[character] for character in piece) if _FROM_ALPHABET.keys() >= set(piece) else piece.encode()
        byte = _BYTE_NAME.fullmatch(piece)
        return bytes((int(byte[1], 16),)) if byte else piece.replace(_SPACE_MARK, " ").encode()


def _alphabet() -> Mapping[str, int]:
    """GPT-2's: printable bytes of Latin-1 stand for themselves, the others for 256, 257 … in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + number): byte for number, byte in enumerate(others)}


_FROM_ALPHABET = _alphabet()
