"""The tokenizer of a Hugging Face directory: tokenizer.json through the tokenizers library, or tokenizer.model through sentencepiece.

Owns the reading of the files beside them that say what begins and ends a text. No code of a checkpoint is ever run.
"""

import json
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Library

from ridgeline.errors import ModelFormatError, ModelNotFoundError
from ridgeline.facts.files.json_file import read_object
from ridgeline.facts.headers.generation import read_generation
from ridgeline.text.bpe import FastTokenizer, Meanings
from ridgeline.text.spm import SpmTokenizer, read_vocabulary
from ridgeline.text.vocabulary import END_NAMES

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
        return SpmTokenizer(vocabulary.ending(read_generation(directory).eos_ids | _ends(directory, {})))
    raise ModelNotFoundError(f"{directory} holds neither tokenizer.json nor tokenizer.model; download one of them too")


def _fast(directory: Path) -> FastTokenizer:
    path = directory / "tokenizer.json"
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise ModelFormatError(f"tokenizer.json has {size} bytes, at most {MAX_BYTES} are read; is it another file?")
    text = path.read_bytes()
    try:
        library = Library.from_str(text.decode())
        stated = json.loads(text)
    except Exception as error:  # the library raises bare exceptions for whatever it does not take
        raise ModelFormatError(f"tokenizer.json cannot be used: {error!s:.200}; download it again") from None
    _check_steps(stated)
    library.no_truncation()
    library.no_padding()
    pieces = _pieces(library)
    added = {token: piece for token, piece in library.get_added_tokens_decoder().items() if token < len(pieces)}
    ids = {piece.content: token for token, piece in added.items()}
    return FastTokenizer(
        library,
        Meanings(
            pieces=pieces,
            byte_level=_mentions(stated, "ByteLevel"),
            added=frozenset(added),
            control=frozenset(token for token, piece in added.items() if piece.special),
            bos=_bos(library, directory, ids),
            eos_ids=read_generation(directory).eos_ids | _ends(directory, ids) | {ids[name] for name in END_NAMES & ids.keys()},
            space_prefix=_mentions(stated.get("decoder"), "Strip"),
        ),
    )


def _check_steps(stated: Mapping[str, Any]) -> None:
    """Only BPE spells pieces in a way that `text.bpe` reads, and replacements on replacements may not make long texts of short ones."""
    model = stated.get("model")
    kind = model.get("type", "BPE") if isinstance(model, dict) else None
    if kind != "BPE":
        raise ModelFormatError(f"tokenizer.json has a model of type {kind!s:.40}; BPE is supported. Use a model that has one")
    growth = prod(_growths(stated.get("normalizer")))
    if growth > MAX_GROWTH:
        raise ModelFormatError(f"tokenizer.json's normalizers make a text {growth} times longer, at most {MAX_GROWTH} times are supported")


def _growths(part: object) -> Iterator[int]:
    """Characters that each normalizer may make of one."""
    if isinstance(part, dict):
        written = [part[key] for key in ("content", "prepend") if isinstance(part.get(key), str)]
        yield max(1, *map(len, written), 1)
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _growths(each)


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
    return int(before[0]) if before[1:] == alone and len(before) == len(alone) + 1 else None


def _ends(directory: Path, ids: Mapping[str, int]) -> frozenset[int]:
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


def _mentions(part: object, kind: str) -> bool:
    """True if a step of this type stands anywhere in a part of the file."""
    if isinstance(part, dict):
        return part.get("type") == kind or any(_mentions(each, kind) for key, each in part.items() if key != "vocab")
    return isinstance(part, list) and len(part) < 64 and any(_mentions(each, kind) for each in part)
