"""SentencePiece-style BPE over a scored vocabulary with byte fallback; gives llama.cpp's ids.

Owns the cutting at user-defined tokens and the meaning of each id; the merging itself is the sentencepiece library's.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property

from sentencepiece import SentencePieceProcessor

from ridgeline.errors import ModelFormatError
from ridgeline.text.alternatives import longest_of
from ridgeline.text.spm_model import model_proto
from ridgeline.text.tokenizer import MASK
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
