"""Byte-level BPE from a GGUF header. Owns the validation of what the header claims; `text.fast` runs it."""

from collections.abc import Sequence

from tokenizers import AddedToken, Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Library

from ridgeline.errors import ModelFormatError
from ridgeline.facts.files.gguf import Header
from ridgeline.text.fast import FastTokenizer, Meanings
from ridgeline.text.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from ridgeline.text.vocabulary import END_NAMES, Kind

MAX_MERGES = 4 << 20


def bpe_of(header: Header) -> FastTokenizer:
    """The tokenizer that a header describes. Raises ModelFormatError."""
    cut = _pre_tokenizer(header)
    pieces = list(header.strings("tokenizer.ggml.tokens"))
    kinds = _kinds(header, len(pieces))
    merges = _merges(list(header.strings("tokenizer.ggml.merges")))

    def token_id(name: str) -> int | None:
        key = f"tokenizer.ggml.{name}_token_id"
        return header.integer(key, 0, len(pieces) - 1) if key in header.metadata else None

    control = frozenset(token for token, kind in enumerate(kinds) if kind in (Kind.CONTROL, Kind.UNKNOWN))
    ends = {token for token in control if pieces[token] in END_NAMES} | {token_id(name) for name in ("eos", "eot", "eom")}
    bos = token_id("bos") if header.flag("tokenizer.ggml.add_bos_token", default=cut.add_bos) else None
    literal = frozenset(token for token, kind in enumerate(kinds) if kind == Kind.USER_DEFINED)
    return FastTokenizer(
        _library(pieces, merges, cut, literal, control),
        Meanings(pieces, True, literal, control, bos, frozenset(token for token in ends if token is not None)),
    )


def _pre_tokenizer(header: Header) -> PreTokenizer:
    name = header.text("tokenizer.ggml.pre", default="")
    if name not in PRE_TOKENIZERS:
        raise ModelFormatError(
            f"the tokenizer cuts text the way {name!r:.60}, which is not known; known: {', '.join(PRE_TOKENIZERS)}. "
            "Its ids would be wrong: use a newer conversion of the model, or its tokenizer.json"
        )
    return PRE_TOKENIZERS[name]


def _kinds(header: Header, size: int) -> list[int]:
    key = "tokenizer.ggml.token_type"
    kinds = list(map(int, header.numbers(key, "iI"))) if key in header.metadata else [int(Kind.NORMAL)] * size
    if not size or len(kinds) != size or set(kinds) - set(Kind):
        raise ModelFormatError(f"the tokenizer has {size} tokens and {len(kinds)} types, not one of 0 … 6 each: download the file again")
    return kinds


def _merges(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Each line is two pieces with a space between; a piece may begin with one."""
    if len(lines) > MAX_MERGES:
        raise ModelFormatError(f"the tokenizer has {len(lines)} merges, at most {MAX_MERGES} are supported")
    pairs = []
    for number, line in enumerate(lines):
        at = line.find(" ", 1)
        if at < 1 or at == len(line) - 1:
            raise ModelFormatError(f"merge {number} of the tokenizer is {line!r:.60}, two pieces were expected: download the file again")
        pairs.append((line[:at], line[at + 1 :]))
    return pairs


def _library(
    pieces: Sequence[str], merges: list[tuple[str, str]], cut: PreTokenizer, literal: frozenset[int], control: frozenset[int]
) -> Library:
    vocabulary = {piece: token for token, piece in enumerate(pieces)}
    known = [(left, right) for left, right in merges if left + right in vocabulary and left in vocabulary and right in vocabulary]
    try:
        library = Library(models.BPE(vocab=vocabulary, merges=known, ignore_merges=cut.ignore_merges))
    except Exception as error:  # the library raises bare exceptions for vocabularies that it does not take
        raise ModelFormatError(f"the tokenizer's {len(pieces)} pieces and {len(merges)} merges cannot be used: {error}") from None
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in cut.patterns]
    library.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    library.add_tokens([AddedToken(pieces[token], normalized=False) for token in sorted(literal) if pieces[token]])
    library.add_special_tokens([AddedToken(pieces[token], normalized=False, special=True) for token in sorted(control) if pieces[token]])
    return library
