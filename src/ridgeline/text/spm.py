"""SentencePiece-style BPE over a scored vocabulary with byte fallback; gives llama.cpp's ids.

Owns the splitting at user-defined tokens and the meaning of each id. Merging is the sentencepiece library's: deriving BPE merges from
262,144 scored pieces in Python would take seconds.
"""

import re
from collections.abc import Mapping, Sequence

from sentencepiece import SentencePieceProcessor

from ridgeline.errors import ModelFormatError
from ridgeline.text.spm_model import model_proto
from ridgeline.text.tokenizer import MASK, QUICK_CHARACTERS, longest_match_pattern, markup_among
from ridgeline.text.vocabulary import TokenType, Vocabulary, tokens_of

_SPACE_MARK = "\u2581"
_WITHOUT_TEXT = frozenset({TokenType.CONTROL, TokenType.UNKNOWN})


class SpmTokenizer:
    """A `Tokenizer` (see `text.tokenizer`)."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._pieces = vocabulary.pieces
        self._kinds = vocabulary.kinds
        self._space_prefix = vocabulary.space_prefix
        self.bos = vocabulary.bos
        self.text_end = vocabulary.text_end
        self.eos_ids = vocabulary.eos_ids
        self.vocab_size = len(vocabulary.pieces)
        self.quick_characters = QUICK_CHARACTERS
        self.keeps_text = True
        self.control = tokens_of(vocabulary.kinds, *_WITHOUT_TEXT)
        self._user_defined = self._named(tokens_of(vocabulary.kinds, TokenType.USER_DEFINED))
        self._user_defined_pattern = _split_pattern(self._user_defined)
        named = self._named(self.control)
        self.markup = markup_among(self._user_defined, named)
        self._special = {**named, **self._user_defined}
        self._special_pattern = _split_pattern(self._special)
        self._bpe = SentencePieceProcessor()
        try:
            self._bpe.LoadFromSerializedProto(model_proto(vocabulary))
        except RuntimeError as error:
            raise ModelFormatError(
                f"the tokenizer's {self.vocab_size} pieces cannot be used ({error}): use another conversion of the model"
            ) from error

    def _named(self, tokens: Sequence[int]) -> dict[str, int]:
        return {self._pieces[token]: token for token in tokens if self._pieces[token]}

    def encode(self, text: str, add_bos: bool, special: bool = False) -> list[int]:
        """Ids of `text`. It is split first at special and user-defined tokens, longest at the leftmost position; merges do not cross them.
        A surrogate without its partner is no character and becomes U+FFFD."""
        if not text.isascii():
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        if not special:
            text = text.replace(MASK, "")
        pattern, tokens = (self._special_pattern, self._special) if special else (self._user_defined_pattern, self._user_defined)
        ids = self._split(text, pattern, tokens)
        first = self.bos if add_bos else None
        return ids if first is None or (special and ids[:1] == [first]) else [first, *ids]

    def _split(self, text: str, pattern: re.Pattern[str] | None, tokens: Mapping[str, int]) -> list[int]:
        """Ids of text split at `tokens` by `pattern`; what is between them is ordinary, masked names too."""
        ids: list[int] = []
        prefix = " " if self._space_prefix else ""
        for index, fragment in enumerate(pattern.split(text) if pattern else (text,)):
            if index % 2:
                ids.append(tokens[fragment])
            elif plain := fragment.replace(MASK, ""):
                ids += self._bpe.encode(prefix + plain)
        return ids

    def id_of(self, piece: str) -> int | None:
        """See `Tokenizer.id_of`. The library has a table of pieces, and says unknown of others."""
        token: int = self._bpe.PieceToId(piece.encode("utf-8", "replace").decode())
        return token if piece and self._pieces[token] == piece else None

    def piece(self, token: int) -> bytes:
        """See `Tokenizer.piece`. An id that only pads the vocabulary stands for nothing."""
        if token >= self.vocab_size:
            return b""
        kind, piece = self._kinds[token], self._pieces[token]
        if kind == TokenType.BYTE:
            return bytes((int(piece[3:5], 16),))
        if kind == TokenType.USER_DEFINED or kind in _WITHOUT_TEXT:
            return piece.encode()
        return piece.replace(_SPACE_MARK, " ").encode()

    def is_control(self, token: int) -> bool:
        """See `Tokenizer.is_control`."""
        return token >= self.vocab_size or self._kinds[token] in _WITHOUT_TEXT

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        """See `Tokenizer.decode`. The space that `encode` puts first is removed."""
        visible = [token for token in ids if not (skip_special and self.is_control(token))]
        text = b"".join(map(self.piece, visible)).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._space_prefix else text


def _split_pattern(tokens: Mapping[str, int]) -> re.Pattern[str] | None:
    return re.compile(f"({longest_match_pattern(tokens)})") if tokens else None
