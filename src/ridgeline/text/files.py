"""The text side of a model's files: tokenizer, its authors' defaults, chat template. Used by the server and by `LLM`.

Owns the choice of a model's tokenizer (of a Hugging Face directory tokenizer.json by the tokenizers library, or tokenizer.model by
sentencepiece) and the reading of the files that name BOS and EOS. No code of a checkpoint is ever run.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Library

from ridgeline.errors import Finding, ModelFormatError, ModelNotFoundError
from ridgeline.facts.files.gguf import Header, read_header
from ridgeline.facts.files.json_file import read_object
from ridgeline.facts.headers.checkpoint import check_config
from ridgeline.facts.headers.generation import GenerationDefaults, read_generation
from ridgeline.facts.headers.gguf import check_architecture
from ridgeline.text.bpe import FastTokenizer, PieceTable, read_bpe
from ridgeline.text.chat import ChatTemplate, load_chat_template
from ridgeline.text.spm import SpmTokenizer
from ridgeline.text.spm_model import read_vocabulary
from ridgeline.text.statements import ModelKind, model_kind, read_statements
from ridgeline.text.tokenizer import ByteTokenizer, Tokenizer
from ridgeline.text.tokenizer_check import check_tokenizer
from ridgeline.text.vocabulary import Vocabulary, end_names
from ridgeline.text.wordpiece import CONTINUED, read_vocabulary_file, read_wordpiece

MAX_BYTES = 64 << 20
"""The largest tokenizer.json that is read: those of 262,144 pieces have 33 MB."""
MAX_VOCABULARY = 4 << 20
MAX_GROWTH = 16
"""Characters that all normalizers together may make of one; those of real models make one of one."""


def checkpoint_tokenizer(directory: Path) -> FastTokenizer | SpmTokenizer:
    """The directory's tokenizer. Raises ModelNotFoundError where there is none, ModelFormatError where it cannot be used."""
    if (directory / "tokenizer.json").is_file():
        return _fast(directory)
    if (directory / "tokenizer.model").is_file():
        vocabulary = read_vocabulary(directory / "tokenizer.model")
        return SpmTokenizer(vocabulary.with_eos_ids(read_generation(directory).eos_ids | _eos_ids(directory, {})))
    if (directory / "vocab.txt").is_file():
        return read_vocabulary_file(directory)
    raise ModelNotFoundError(f"{directory} holds neither tokenizer.json nor tokenizer.model nor vocab.txt; download one of them too")


def _fast(directory: Path) -> FastTokenizer:
    path = directory / "tokenizer.json"
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise ModelFormatError(f"tokenizer.json has {size} bytes, at most {MAX_BYTES} are read; is it another file?")
    text = path.read_bytes()
    try:
        library = Library.from_str(text.decode())
        config = json.loads(text)
    except Exception as error:  # the library raises bare exceptions for whatever it does not take
        raise ModelFormatError(f"tokenizer.json cannot be used: {error!s:.200}; download it again") from None
    _check_steps(config)
    library.no_truncation()
    library.no_padding()
    pieces, model = _pieces(library), config["model"]
    continued = str(model.get("continuing_subword_prefix", CONTINUED)) if model.get("type") == "WordPiece" else ""
    added = {token: piece for token, piece in library.get_added_tokens_decoder().items() if token < len(pieces)}
    ids = {piece.content: token for token, piece in added.items()}
    return FastTokenizer(
        library,
        PieceTable(
            pieces=pieces,
            byte_level=_has_step(config, "ByteLevel"),
            added=frozenset(added),
            control=frozenset(token for token, piece in added.items() if piece.special),
            bos=_bos(library, directory, ids),
            text_end=_text_end(library),
            eos_ids=read_generation(directory).eos_ids | _eos_ids(directory, ids) | {ids[name] for name in end_names(ids)},
            space_prefix=bool(continued) or _has_step(config.get("decoder"), "Strip"),
            continued=continued,
        ),
    )


def _check_steps(config: Mapping[str, Any]) -> None:
    """Raises ModelFormatError for models other than BPE and WordPiece, and for normalizers that make long texts of short ones."""
    model = config.get("model")
    kind = model.get("type", "BPE") if isinstance(model, dict) else None
    if kind not in ("BPE", "WordPiece"):
        raise ModelFormatError(f"tokenizer.json has a model of type {kind!s:.40}; BPE and WordPiece are supported. Use a model of these")
    growth = prod(_growth_factors(config.get("normalizer")))
    if growth > MAX_GROWTH:
        raise ModelFormatError(f"tokenizer.json's normalizers make a text {growth} times longer, at most {MAX_GROWTH} times are supported")


def _growth_factors(part: object) -> Iterator[int]:
    """Yields the characters that each normalizer may make of one."""
    if isinstance(part, dict):
        written = [part[key] for key in ("content", "prepend") if isinstance(part.get(key), str)]
        yield max(1, *map(len, written), 1)
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _growth_factors(each)


def _pieces(library: Library) -> list[str]:
    vocabulary: dict[str, int] = library.get_vocab(with_added_tokens=True)
    size = max(vocabulary.values(), default=-1) + 1
    if not 0 < size <= MAX_VOCABULARY:
        raise ModelFormatError(f"tokenizer.json names ids up to {size - 1}; 0 … {MAX_VOCABULARY - 1} are supported")
    pieces = [""] * size
    for piece, token in vocabulary.items():
        pieces[token] = piece
    return pieces


def _bos(library: Library, directory: Path, ids: Mapping[str, int]) -> int | None:
    """The id that the file puts before every text, unless tokenizer_config.json turns that on or off."""
    config = _object(directory / "tokenizer_config.json")
    asked = config.get("add_bos_token")
    named = ids.get(_content(config.get("bos_token")))
    if isinstance(asked, bool):
        return named if asked else None
    try:
        before, alone = library.encode("a").ids, library.encode("a", add_special_tokens=False).ids
    except Exception as error:  # as above
        raise ModelFormatError(f"tokenizer.json cannot even read one letter: {error!s:.200}; download it again") from None
    return int(before[0]) if len(before) > len(alone) and before[1 : len(alone) + 1] == alone else None


def _text_end(library: Library) -> int | None:
    """The id that the file puts behind every text. `_bos` has tried the library before."""
    after, alone = library.encode("a").ids, library.encode("a", add_special_tokens=False).ids
    return int(after[-1]) if len(after) > len(alone) and after[:-1] in ([*alone], [after[0], *alone]) else None


def _eos_ids(directory: Path, ids: Mapping[str, int]) -> frozenset[int]:
    """Ids that config.json and tokenizer_config.json name as the end."""
    found: set[int] = set()
    named = _object(directory / "config.json").get("eos_token_id")
    for each in named if isinstance(named, list) else [named]:
        if type(each) is int and 0 <= each < MAX_VOCABULARY:
            found.add(each)
    end = ids.get(_content(_object(directory / "tokenizer_config.json").get("eos_token")))
    return frozenset(found | ({end} if end is not None else set()))


def _content(value: object) -> str:
    """A token in these files is its text, or an object that holds it."""
    held = value.get("content") if isinstance(value, dict) else value
    return held if isinstance(held, str) else ""


def _object(path: Path) -> Mapping[str, Any]:
    return read_object(path) if path.is_file() else {}


def _has_step(part: object, kind: str) -> bool:
    """True if a step of this type stands anywhere in a part of the file."""
    if isinstance(part, dict):
        return part.get("type") == kind or any(_has_step(each, kind) for key, each in part.items() if key != "vocab")
    return isinstance(part, list) and len(part) < 64 and any(_has_step(each, kind) for each in part)


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a GGUF file or of a Hugging Face directory.

    Raises ModelFormatError where it is malformed or of a kind that is not supported, ModelNotFoundError where a directory has none.
    """
    if path.is_dir():
        return checkpoint_tokenizer(path)
    header = read_header(path)
    check_architecture(header)
    return gguf_tokenizer(header)


def gguf_tokenizer(header: Header) -> Tokenizer:
    """The tokenizer inside a GGUF file whose header has been read. Raises ModelFormatError."""
    kind = header.text("tokenizer.ggml.model")
    if kind not in _READERS:
        raise ModelFormatError(f"the tokenizer is of kind {kind!r:.60}; supported: {', '.join(_READERS)}. Use a model with one of these")
    return _READERS[kind](header)


def _spm(header: Header) -> Tokenizer:
    return SpmTokenizer(Vocabulary.from_header(header))


_READERS: dict[str, Callable[[Header], Tokenizer]] = {"llama": _spm, "gpt2": read_bpe, "bert": read_wordpiece}
"""`tokenizer.ggml.model` → reader: GGUF's names for SentencePiece BPE, byte-level BPE and WordPiece, whatever the model's family."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's files, read but for the template.

    name           the user's name of the model
    path           its file or directory; None: a model without files, whose tokens are bytes
    generation     parameters that its authors recommend, and ids that end an answer
    template_file  replaces the model's template
    """

    name: str
    path: Path | None
    tokenizer: Tokenizer
    generation: GenerationDefaults
    template_file: Path | None

    def vocab(self, inputs: int) -> int:
        """Number of ids that are both tokens and among the model's `inputs`: padded embeddings have rows without a token."""
        return min(inputs, self.tokenizer.vocab_size)

    def eos_ids(self, vocab: int) -> frozenset[int]:
        """Ids below `vocab` that end any answer."""
        return frozenset(token for token in self.tokenizer.eos_ids | self.generation.eos_ids if token < vocab)

    def load_template(self) -> ChatTemplate | None:
        """The model's, or the one that replaces it; None where there is none. Starts the rendering process.

        Raises ConfigError for a template that is of no use.
        """
        return load_chat_template(self.path, self.name, self.tokenizer, self.template_file)

    def check(self, template: ChatTemplate | None) -> tuple[ModelKind, tuple[Finding, ...]]:
        """Base or instruct, and problems of the tokenizer and of `template`, which is what `load_template` gave."""
        stated = read_statements(self.name, self.path, self.tokenizer)
        findings = [] if self.path is None else check_tokenizer(self.tokenizer, stated, template)
        findings += () if template is None else template.findings
        return model_kind(stated, template), tuple(findings)


def read_files(name: str, path: Path | None, *, chat_template: str | Path | None, generation_config: str) -> ModelFiles:
    """Files of the model that the user calls `name`, at `path`. generation_config "none": its authors' recommendations are left out.

    Raises ModelFormatError for malformed files, and first of all for an architecture that is not supported.
    """
    if path is not None and path.is_dir():
        check_config(path)
    tokenizer = ByteTokenizer() if path is None else load_tokenizer(path)
    generation = GenerationDefaults() if path is None else read_generation(path)
    if generation_config == "none":
        generation = replace(generation, sampling={})
    return ModelFiles(name, path, tokenizer, generation, None if chat_template is None else Path(chat_template).expanduser())
