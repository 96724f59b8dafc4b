"""The text side of a model's files: tokenizer, its authors' defaults, chat template. One place for the server and for `LLM`.

Owns which tokenizer a model asks for; never holds a vocabulary itself.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ridgeline.errors import ModelFormatError
from ridgeline.facts.files.gguf import Header, read_header
from ridgeline.facts.headers.generation import GenerationDefaults, read_generation
from ridgeline.text.bpe import bpe_of
from ridgeline.text.chat import ChatTemplate, load_chat_template
from ridgeline.text.checkpoint import checkpoint_tokenizer
from ridgeline.text.spm import SpmTokenizer
from ridgeline.text.tokenizer import ByteTokenizer, Tokenizer
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


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Read, but for the template.

    name           what the user calls the model        path  where it is; None: one without files, which speaks bytes
    generation     what its authors recommend, and ids that end an answer
    template_file  replaces the model's template
    """

    name: str
    path: Path | None
    tokenizer: Tokenizer
    generation: GenerationDefaults
    template_file: Path | None

    def vocab(self, inputs: int) -> int:
        """Ids that are inputs of the model, which has `inputs` of them, and tokens: padded embeddings have rows that no token names."""
        return min(inputs, self.tokenizer.vocab_size)

    def ends(self, vocab: int) -> frozenset[int]:
        """Ids below `vocab` that end any answer."""
        return frozenset(token for token in self.tokenizer.eos_ids | self.generation.eos_ids if token < vocab)

    def load_template(self) -> ChatTemplate | None:
        """The model's, or the one that replaces it; None where there is none. Starts the process that renders.

        Raises ConfigError for a template that is of no use.
        """
        return load_chat_template(self.path, self.name, self.tokenizer, self.template_file)


def read_files(name: str, path: Path | None, *, chat_template: str | Path | None, generation_config: str) -> ModelFiles:
    """Files of the model that the user calls `name`, at `path`. generation_config "none": its authors' recommendations are left out.

    Raises ModelFormatError for malformed files.
    """
    tokenizer = ByteTokenizer() if path is None else load_tokenizer(path)
    generation = GenerationDefaults() if path is None else read_generation(path)
    if generation_config == "none":
        generation = replace(generation, sampling={})
    return ModelFiles(name, path, tokenizer, generation, None if chat_template is None else Path(chat_template).expanduser())
