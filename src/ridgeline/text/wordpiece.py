"""WordPiece vocabularies, as BERT has them: from a GGUF header, or from vocab.txt. The tokenizers library splits and looks up.

Owns how GGUF files write pieces: one that begins a word has U+2581 in front, one that continues it stands as it is.
"""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from ridgeline.errors import ModelFormatError
from ridgeline.facts.files.gguf import Header
from ridgeline.facts.files.json_file import read_object, read_text
from ridgeline.text.bpe import FastTokenizer, PieceTable
from ridgeline.text.vocabulary import TokenType

MAX_VOCABULARY_BYTES = 16 << 20
MAX_WORD = 100
"""Characters of a word beyond which it is unknown."""
BEGIN, END, UNKNOWN = "[CLS]", "[SEP]", "[UNK]"
CONTINUED = "##"
_CONTROL = ("[PAD]", UNKNOWN, BEGIN, END, "[MASK]")
_WORD_MARK = "\u2581"


def read_wordpiece(header: Header) -> FastTokenizer:
    """The tokenizer that a GGUF header describes. Raises ModelFormatError."""
    pieces = list(header.strings("tokenizer.ggml.tokens"))
    kinds = list(map(int, header.numbers("tokenizer.ggml.token_type", "iI")))
    if len(kinds) != len(pieces):
        raise ModelFormatError(f"the tokenizer has {len(pieces)} tokens and {len(kinds)} types; download the file again")
    control = {token for token, kind in enumerate(kinds) if kind in (TokenType.CONTROL, TokenType.UNKNOWN)}
    control |= {token for token, piece in enumerate(pieces) if piece in _CONTROL}

    def written(token: int, piece: str) -> str:
        if token in control:
            return piece
        return piece[1:] if piece.startswith(_WORD_MARK) else CONTINUED + piece

    def token_id(*names: str) -> int | None:
        keys = (f"tokenizer.ggml.{name}_token_id" for name in names)
        return next((header.integer(key, 0, len(pieces) - 1) for key in keys if key in header.metadata), None)

    # The second key is spelt so by llama.cpp's converter.
    ends = token_id("cls", "bos"), token_id("sep", "seperator", "eos")
    return _tokenizer([written(*each) for each in enumerate(pieces)], frozenset(control), *ends, lowercase=True)


def read_vocabulary_file(directory: Path) -> FastTokenizer:
    """The tokenizer of a directory with vocab.txt and no tokenizer.json. Raises ModelFormatError."""
    pieces = read_text(directory / "vocab.txt", MAX_VOCABULARY_BYTES).split("\n")
    pieces = [piece.rstrip("\r") for piece in (pieces[:-1] if pieces[-1] == "" else pieces)]
    config = directory / "tokenizer_config.json"
    lowercase = (read_object(config) if config.is_file() else {}).get("do_lower_case", True) is not False
    return _tokenizer(pieces, frozenset(token for token, piece in enumerate(pieces) if piece in _CONTROL), None, None, lowercase=lowercase)


def _tokenizer(pieces: Sequence[str], control: frozenset[int], begin: int | None, end: int | None, *, lowercase: bool) -> FastTokenizer:
    ids = {piece: token for token, piece in enumerate(pieces)}
    if UNKNOWN not in ids:
        raise ModelFormatError(f"the vocabulary of {len(pieces)} pieces has no {UNKNOWN}; this is no WordPiece vocabulary")
    library = Library(models.WordPiece(ids, unk_token=UNKNOWN, continuing_subword_prefix=CONTINUED, max_input_chars_per_word=MAX_WORD))
    library.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.add_special_tokens([AddedToken(pieces[token], normalized=False, special=True) for token in sorted(control)])
    return FastTokenizer(
        library,
        PieceTable(
            pieces=pieces,
            byte_level=False,
            added=control,
            control=control,
            bos=ids.get(BEGIN) if begin is None else begin,
            eos_ids=frozenset(),
            space_prefix=True,
            text_end=ids.get(END) if end is None else end,
            has_known_patterns=True,
            continued=CONTINUED,
        ),
    )
