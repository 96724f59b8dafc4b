"""A tokenizer without a vocabulary: one id a byte, then BOS and EOS. For fake models, so that nobody needs weights to test arithmetic."""

from collections.abc import Sequence

_BOS, _EOS = 256, 257


class ByteTokenizer:
    """A `Tokenizer` (see `text.tokenizer`) of 258 ids: 0 … 255 are bytes, 256 is BOS, 257 is EOS."""

    bos: int | None = _BOS
    eos_ids = frozenset({_EOS})
    vocab_size = 258

    def encode(self, text: str, add_bos: bool, special: bool = False) -> list[int]:
        """The UTF-8 bytes of `text`, whatever `special` says; a surrogate without its partner becomes U+FFFD."""
        valid = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return [*([_BOS] if add_bos else []), *valid.encode()]

    def id_of(self, piece: str) -> int | None:
        """See `Tokenizer.id_of`."""
        return {"<bos>": _BOS, "<eos>": _EOS}.get(piece)

    def piece(self, token: int) -> bytes:
        """See `Tokenizer.piece`."""
        return bytes((token,)) if token < _BOS else (b"<bos>", b"<eos>")[token - _BOS]

    def is_control(self, token: int) -> bool:
        """See `Tokenizer.is_control`."""
        return token >= _BOS

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        """See `Tokenizer.decode`."""
        shown = (token for token in ids if not (skip_special and self.is_control(token)))
        return b"".join(map(self.piece, shown)).decode("utf-8", "replace")
