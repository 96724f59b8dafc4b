"""A tokenizer that the tokenizers library runs: byte-level BPE or SentencePiece-style BPE with added tokens.

Owns what each id stands for, and which names in a text become control tokens; the cutting and merging are the library's.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from ridgeline.errors import RequestError
from ridgeline.text.tokenizer import MASK

_SPACE_MARK = "\u2581"
_GUARD = "\ufdd1"
"""Like `MASK` no character of any text: where names may be ordinary text, control tokens are called by it and their name."""
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
        self._guarded: tuple[Library, Mapping[int, int]] | None = None
        """The same but that control tokens have guarded names, and its ids where they differ; made when a text first needs it."""
        self._making = Lock()
        self.bos = meanings.bos
        self.eos_ids = meanings.eos_ids
        self.vocab_size = len(meanings.pieces)
        self._ids = {piece: token for token, piece in enumerate(meanings.pieces) if piece}
        names = sorted((meanings.pieces[token] for token in meanings.control if meanings.pieces[token]), key=len, reverse=True)
        self._names = re.compile("|".join(map(re.escape, names))) if names else None
        self._forged = re.compile(f"{_GUARD}+(?={'|'.join(map(re.escape, names))})")
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
            return self._run(self._library, text.replace(MASK, ""))
        parts: list[str] = []
        at = 0
        for name in self._names.finditer(text):
            parts += [self._plain(text[at : name.start()]), _GUARD, name.group()]
            at = name.end()
        return self._run_guarded("".join(parts) + self._plain(text[at:]))

    def _ordinary(self, text: str) -> list[int]:
        if self._names is None or not self._names.search(text):
            return self._run(self._library, text)
        return self._run_guarded(self._plain(text))

    def _plain(self, text: str) -> str:
        """Without what stands for nothing: masks, and guards before names, which are `_parsed`'s alone to set."""
        return self._forged.sub("", text.replace(MASK, ""))

    def _run_guarded(self, text: str) -> list[int]:
        with self._making:
            if self._guarded is None:
                self._guarded = _guarded(self._library, self._meanings.control)
        library, ids = self._guarded
        return [ids.get(token, token) for token in self._run(library, text)]

    @staticmethod
    def _run(library: Library, text: str) -> list[int]:
        try:
            ids: list[int] = library.encode(text, add_special_tokens=False).ids if text else []
        except BaseException as error:  # where a pattern of the model gives up the library panics, which is no Exception
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            message = f"the model's tokenizer gives up on these {len(text)} characters ({error!s:.100}); send a shorter or another text"
            raise RequestError(message, param="prompt") from None
        return ids

    def _piece(self, token: int, piece: str) -> bytes:
        if token in self._meanings.added or token in self._meanings.control:
            return piece.encode()
        if self._meanings.byte_level:
            try:
                return piece.translate(_FROM_ALPHABET).encode("latin-1")
            except UnicodeEncodeError:
                return piece.encode()
        byte = _BYTE_NAME.fullmatch(piece)
        return bytes((int(byte[1], 16),)) if byte else piece.replace(_SPACE_MARK, " ").encode()


def _guarded(library: Library, control: frozenset[int]) -> tuple[Library, Mapping[int, int]]:
    """The library's model and steps with other names for control tokens, and its ids → the library's."""
    other = Library(library.model)
    if library.normalizer is not None:
        other.normalizer = library.normalizer
    if library.pre_tokenizer is not None:
        other.pre_tokenizer = library.pre_tokenizer
    ids: dict[int, int] = {}
    for token, added in library.get_added_tokens_decoder().items():
        name = _GUARD + added.content if token in control else added.content
        flags = {flag: getattr(added, flag) for flag in ("single_word", "lstrip", "rstrip", "normalized", "special")}
        other.add_tokens([AddedToken(name, **flags)])
        found = other.token_to_id(name)
        if found is not None:
            ids[found] = token
    return other, ids


def _alphabet() -> Mapping[int, int]:
    """GPT-2's: printable bytes of Latin-1 stand for themselves, the others for 256, 257 … in order; what is not in it becomes no byte."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return dict.fromkeys(others, 0xFFFF) | {256 + number: byte for number, byte in enumerate(others)}


_FROM_ALPHABET = _alphabet()
