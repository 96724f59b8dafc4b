"""Which tokenizer a model asks for. Owns the choice; never holds a vocabulary itself."""

from collections.abc import Callable
from pathlib import Path

from ridgeline.errors import ModelFormatError
from ridgeline.facts.files.gguf import Header, read_header
from ridgeline.text.checkpoint import checkpoint_tokenizer
from ridgeline.text.gguf_bpe import bpe_of
from ridgeline.text.spm import SpmTokenizer
from ridgeline.text.tokenizer import Tokenizer
from ridgeline.text.vocabulary import Vocabulary


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a GGUF file or of a Hugging Face directory.

    Raises ModelFormatError where it is malformed or of a kind that is not supported, ModelNotFoundError where a directory has none.
    """
    return checkpoint_tokenizer(path) if path.is_dir() else tokenizer_of(read_header(path))


def tokenizer_of(header: Header) -> Tokenizer:
    """The tokenizer inside a GGUF file whose header has been read. Raises ModelFormatError."""
    kind = header.text("tokenizer.ggml.model")
    if kind not in _KINDS:
        raise ModelFormatError(f"the tokenizer is of kind {kind!r:.60}; supported: {', '.join(_KINDS)}. Use a model that has one of these")
    return _KINDS[kind](header)


def _spm(header: Header) -> Tokenizer:
    return SpmTokenizer(Vocabulary.from_header(header))


_KINDS: dict[str, Callable[[Header], Tokenizer]] = {"llama": _spm, "gpt2": bpe_of}
"""`tokenizer.ggml.model` → how to build it: GGUF's names for SentencePiece BPE and for byte-level BPE, whatever the model's family."""
