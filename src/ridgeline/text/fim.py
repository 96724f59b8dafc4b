"""Fill-in-the-middle: the prompt of a text between a prefix and a suffix, in the tokens that a model was trained with.

Owns the table of families, and where else these tokens are named. What stands between its marks is text: names of control tokens in it
mean nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ridgeline.facts.files.gguf import read_header
from ridgeline.text.tokenizer import Tokenizer

_PLAIN: Final = "\N{WHITE SMILING FACE}"
"""Stands before a text whose first token is to have no space before it; merges with nothing in vocabularies that add that space."""


@dataclass(frozen=True, slots=True)
class FimNames:
    """Tokens of a family, in the order in which a prompt has them.

    first, second, last  marks before one part, before the other, and at the end; `last` empty: there is none
    suffix_first         the first part is the suffix
    ends                 further tokens that end a middle
    """

    first: str
    second: str
    last: str
    suffix_first: bool = False
    ends: tuple[str, ...] = ()


FAMILIES: Final = (
    # Qwen, CodeGemma, Granite 4
    FimNames("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", ends=(
        "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>"
    )),
    # StarCoder, Granite Code, Stable Code, Yi Coder; SantaCoder
    FimNames("<fim_prefix>", "<fim_suffix>", "<fim_middle>", ends=("<fim_pad>", "<repo_name>", "<reponame>", "<file_sep>", "<filename>")),
    FimNames("<fim-prefix>", "<fim-suffix>", "<fim-middle>", ends=("<fim-pad>",)),
    # DeepSeek
    FimNames("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    # Code Llama
    FimNames("▁<PRE>", "▁<SUF>", "▁<MID>", ends=("▁<EOT>",)),
    # GLM
    FimNames("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    # Seed-Coder
    FimNames("<[fim-suffix]>", "<[fim-prefix]>", "<[fim-middle]>", True),
    # Codestral: the middle follows the prefix
    FimNames("[SUFFIX]", "[PREFIX]", "", True),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fim:
    """Form in which a model is asked for a middle.

    first, second, last  ids of its marks, as in `FimNames`; None: no mark
    ends                 ids that end a middle, beside those that end any text
    """

    tokenizer: Tokenizer
    first: int
    second: int
    last: int | None
    suffix_first: bool
    ends: frozenset[int]

    def prompt(self, prefix: str | Sequence[int], suffix: str, *, add_bos: bool = True) -> list[int]:
        """The ids of a prompt. A prefix of ids may begin with BOS."""
        tokenizer = self.tokenizer
        bos = [] if tokenizer.bos is None else [tokenizer.bos]
        if isinstance(prefix, str):
            before = tokenizer.encode(prefix, add_bos=False)
        else:
            add_bos = len(bos) > 0 and [*prefix[:1]] == bos
            before = [*prefix[int(add_bos) :]]
        after = self._plain(suffix)
        one, two = (after, before) if self.suffix_first else (before, after)
        return [*(bos if add_bos else []), self.first, *one, self.second, *two, *([] if self.last is None else [self.last])]

    def _plain(self, text: str) -> list[int]:
        """The ids of a text in whose place no space is added."""
        ids = self.tokenizer.encode(text, add_bos=False)
        if not ids or text.startswith(" ") or not self.tokenizer.piece(ids[0]).startswith(b" "):
            return ids
        mark = self.tokenizer.encode(_PLAIN, add_bos=False)
        marked = self.tokenizer.encode(_PLAIN + text, add_bos=False)
        return marked[len(mark) :] if marked[: len(mark)] == mark else ids


def find_fim(tokenizer: Tokenizer, path: Path | None) -> Fim | None:
    """Finds how the model at `path` (None: a model without files) is asked for a middle: by names that a family has, else by what the
    header of a GGUF file states. None: it cannot be asked."""
    for names in FAMILIES:
        found = _of(names, tokenizer)
        if found is not None:
            return found
    return None if path is None or path.is_dir() else _stated(tokenizer, path)


def _of(names: FimNames, tokenizer: Tokenizer) -> Fim | None:
    first, second = tokenizer.id_of(names.first), tokenizer.id_of(names.second)
    last = tokenizer.id_of(names.last) if names.last else None
    if first is None or second is None or (names.last and last is None):
        return None
    return Fim(tokenizer, first, second, last, names.suffix_first, _known(first, second, last, *map(tokenizer.id_of, names.ends)))


def _known(*ids: int | None) -> frozenset[int]:
    return frozenset(token for token in ids if token is not None)


def _stated(tokenizer: Tokenizer, path: Path) -> Fim | None:
    """Form from the keys of a header, the newer before the older, prefix first."""
    header = read_header(path)

    def stated(*names: str) -> int | None:
        keys = [key for key in (f"tokenizer.ggml.{name}_token_id" for name in names) if key in header.metadata]
        return header.integer(keys[0], 0, tokenizer.vocab_size - 1) if keys else None

    first, second, last = stated("fim_pre", "prefix"), stated("fim_suf", "suffix"), stated("fim_mid", "middle")
    if first is None or second is None or last is None:
        return None
    return Fim(tokenizer, first, second, last, False, _known(first, second, last, *map(stated, ("fim_pad", "fim_rep", "fim_sep"))))
