"""SentencePiece-style BPE over a scored vocabulary with byte fallback; gives llama.cpp's ids.

Owns the cutting at user-defined tokens and the meaning of each id; the merging itself is the sentencepiece library's.
"""

import re
from collections.abc import Sequence

from sentencepiece import SentencePieceProcessor

from ridgeline.errors import ModelFormatError
from ridgeline.text.spm_model import model_proto
from ridgeline.text.vocabulary import Kind, Vocabulary

_SPACE_MARK = "\u2581"
_SILENT = frozenset({Kind.CONTROL, Kind.UNKNOWN})
_MAX_NESTING = 64


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
        self._cuts = re.compile(f"({_longest_of(list(self._user_defined))})") if self._user_defined else None
        self._bpe = SentencePieceProcessor()
        try:
            self._bpe.LoadFromSerializedProto(model_proto(vocabulary))
        except RuntimeError as error:
            raise ModelFormatError(
                f"the tokenizer's {self.vocab_size} pieces cannot be used ({error}): use another conversion of the model"
            ) from error

    def encode(self, text: str, add_bos: bool, special: bool = False) -> list[int]:
        """Ids of `text`. User-defined tokens are cut out first, the longest at the leftmost place; merges never cross them.
        A surrogate without its partner is no character and becomes U+FFFD."""
        ids = [self.bos] if add_bos and self.bos is not None else []
        if not text.isascii():
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        prefix = " " if self._space_prefix else ""
        for index, fragment in enumerate(self._cuts.split(text) if self._cuts else (text,)):
            if index % 2:
                ids.append(self._user_defined[fragment])
            elif fragment:
                ids.extend(self._bpe.encode(prefix + fragment))
        return ids

    def id_of(self, piece: str) -> int | None:
        """See `Tokenizer.id_of`."""
        return self._pieces.index(piece) if piece in self._pieces else None

    def piece(self, token: int) -> bytes:
        """See `Tokenizer.piece`."""
        kind, piece = self._kinds[token], self._pieces[token]
        if kind == Kind.BYTE:
            return bytes((int(piece[3:5], 16),))
        if kind == Kind.USER_DEFINED or kind in _SILENT:
            return piece.encode()
        return piece.replace(_SPACE_MARK, " ").encode()

    def is_control(self, token: int) -> bool:
        """See `Tokenizer.is_control`."""
        return self._kinds[token] in _SILENT

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        """See `Tokenizer.decode`. The space that `encode` puts first is taken away again."""
        shown = [token for token in ids if not (skip_special and self.is_control(token))]
        text = b"".join(map(self.piece, shown)).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._space_prefix else text


def _longest_of(words: list[str], depth: int = 0) -> str:
    """A pattern that matches the longest of `words` (distinct, not empty) at a place, in time that does not grow with their
    number: words that share a first character share a branch."""
    if len(words) == 1 or depth == _MAX_NESTING:
        return "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    branches: dict[str, list[str]] = {}
    for word in words:
        branches.setdefault(word[0], []).append(word[1:])
    patterns = []
    for first, rests in branches.items():
        longer = [rest for rest in rests if rest]
        tail = f"(?:{_longest_of(longer, depth + 1)}){'?' if len(longer) < len(rests) else ''}" if longer else ""
        patterns.append(re.escape(first) + tail)
    return "|".join(patterns)
