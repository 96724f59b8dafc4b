"""Byte-level BPE and SentencePiece-style BPE with added tokens, as the tokenizers library runs them.

Owns what each id stands for, which names in a text become control tokens, the validation of what a GGUF header claims, and how its
vocabularies cut text before merging, as data: one row per value of `tokenizer.ggml.pre`. The cutting and merging are the library's.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final

from tokenizers import AddedToken, Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Library

from ridgeline.errors import ModelFormatError, RequestError
from ridgeline.facts.files.gguf import Header
from ridgeline.text.tokenizer import MASK
from ridgeline.text.vocabulary import END_NAMES, Kind

_CONTRACTIONS = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_THREE_DIGITS = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_ONE_DIGIT = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"
_FIRST = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
"""GPT-2's (Radford et al. 2019), from which the others come."""


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """patterns      applied one after the other
    ignore_merges  a part that is itself a piece is taken whole
    add_bos        prompts begin with BOS where the file does not say
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_THREES = PreTokenizer((_THREE_DIGITS,), ignore_merges=True, add_bos=True)
_ONES = PreTokenizer((_ONE_DIGIT,))
_PLAIN = PreTokenizer((_FIRST,))
_SINGLE_DIGITS = PreTokenizer((r"\p{N}", _FIRST))
_NEWER = (
    "\u2d00-\u2d2d\ua790-\ua7fa\uab30-\uab68\U00010570-\U000105bc\U00016e40-\U00016e7f\U0001d400-\U0001d7cb\U0001df00-\U0001df1e"
)
"""Letters with case that are not in the list of letters that DeepSeek's pattern spells out, mathematical ones among them."""
_DEEPSEEK = PreTokenizer((
    r"[\r\n]",
    rf"\s?[\p{{Lu}}\p{{Ll}}\p{{Lt}}&&[^{_NEWER}]]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    r"\p{N}+",
))
_FALCON = PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _FIRST, "[0-9][0-9][0-9]"))
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = PreTokenizer(
    (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    ignore_merges=True,
    add_bos=True,
)
_DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _FIRST, r"\p{N}+", "[0-9][0-9][0-9]"))

PRE_TOKENIZERS: Final[Mapping[str, PreTokenizer]] = {
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral"), _THREES),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"), _ONES),
    **dict.fromkeys(("gpt-2", "gpt2", "phi-2", "mpt", "olmo"), _PLAIN),
    **dict.fromkeys(("starcoder", "refact", "command-r", "smollm", "codeshell"), _SINGLE_DIGITS),
    **dict.fromkeys(("smaug-bpe", "dbrx"), PreTokenizer((_THREE_DIGITS,))),
    "deepseek-llm": _DEEPSEEK,
    "falcon": _FALCON,
    "tekken": _TEKKEN,
    "default": _DEFAULT,
}
"""`tokenizer.ggml.pre` → how to cut."""


_SPACE_MARK = "\u2581"
_GUARD = "\ufdd1"
"""Like `MASK` no character of any text: where names may be ordinary text, control tokens are called by it and their name."""
_BYTE_NAME = re.compile("<0x([0-9A-F]{2})>")


@dataclass(frozen=True, slots=True)
class Meanings:
    """Meanings of ids. `pieces` are the names in the library's vocabulary, "" where it has none.

    byte_level   pieces spell bytes in GPT-2's alphabet; else U+2581 is a space and <0x0A> a byte
    added        ids whose pieces are literal text; of these `control` stand for no text
    space_prefix the space that encoding puts in front is taken away when a whole text is decoded
    """

    pieces: Sequence[str]
    byte_level: bool
    added: frozenset[int]
    control: frozenset[int]
    bos: int | None
    eos_ids: frozenset[int]
    space_prefix: bool = False


class FastTokenizer:
    """A `Tokenizer` (see `text.tokenizer`)."""

    def __init__(self, library: Library, meanings: Meanings) -> None:
        self._library = library
        self._meanings = meanings
        self._guarded: tuple[Library, Mapping[int, int]] | None = None
        """The same but that control tokens have guarded names, and its ids where they differ; made when a text first needs it."""
        self._making = Lock()
        self.bos = meanings.bos
        self.eos_ids = meanings.eos_ids
        self.vocab_size = len(meanings.pieces)
        self._ids = {piece: token for token, piece in enumerate(meanings.pieces) if piece}
        names = sorted((meanings.pieces[token] for token in meanings.control if meanings.pieces[token]), key=len, reverse=True)
        self._names = re.compile("|".join(map(re.escape, names))) if names else None
        self._forged = re.compile(f"{_GUARD}+(?={'|'.join(map(re.escape, names))})")
        self._bytes = [self._piece(token, piece) for token, piece in enumerate(meanings.pieces)]

    def encode(self, text: str, add_bos: bool, special: bool = False) -> list[int]:
        """See `Tokenizer.encode`. A surrogate without its partner is no character and becomes U+FFFD."""
        if not text.isascii():
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        ids = self._parsed(text) if special else self._ordinary(text.replace(MASK, ""))
        first = self.bos if add_bos else None
        return ids if first is None or (special and ids[:1] == [first]) else [first, *ids]

    def id_of(self, piece: str) -> int | None:
        """See `Tokenizer.id_of`."""
        return self._ids.get(piece)

    def piece(self, token: int) -> bytes:
        """See `Tokenizer.piece`. An id that only pads the vocabulary stands for nothing."""
        return self._bytes[token] if token < self.vocab_size else b""

    def is_control(self, token: int) -> bool:
        """See `Tokenizer.is_control`."""
        return token in self._meanings.control or token >= self.vocab_size

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        """See `Tokenizer.decode`."""
        shown = (token for token in ids if not (skip_special and self.is_control(token)))
        text = b"".join(map(self.piece, shown)).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._meanings.space_prefix else text

    def _parsed(self, text: str) -> list[int]:
        if MASK not in text or self._names is None:
            return self._run(self._library, text.replace(MASK, ""))
        parts: list[str] = []
        at = 0
        for name in self._names.finditer(text):
            parts += [self._plain(text[at : name.start()]), _GUARD, name.group()]
            at = name.end()
        return self._run_guarded("".join(parts) + self._plain(text[at:]))

    def _ordinary(self, text: str) -> list[int]:
        if self._names is None or not self._names.search(text):
            return self._run(self._library, text)
        return self._run_guarded(self._plain(text))

    def _plain(self, text: str) -> str:
        """Without what stands for nothing: masks, and guards before names, which are `_parsed`'s alone to set."""
        return self._forged.sub("", text.replace(MASK, ""))

    def _run_guarded(self, text: str) -> list[int]:
        with self._making:
            if self._guarded is None:
                self._guarded = _guarded(self._library, self._meanings.control)
        library, ids = self._guarded
        return [ids.get(token, token) for token in self._run(library, text)]

    @staticmethod
    def _run(library: Library, text: str) -> list[int]:
        try:
            ids: list[int] = library.encode(text, add_special_tokens=False).ids if text else []
        except BaseException as error:  # where a pattern of the model gives up the library panics, which is no Exception
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            message = f"the model's tokenizer gives up on these {len(text)} characters ({error!s:.100}); send a shorter or another text"
            raise RequestError(message, param="prompt") from None
        return ids

    def _piece(self, token: int, piece: str) -> bytes:
        if token in self._meanings.added or token in self._meanings.control:
            return piece.encode()
        if self._meanings.byte_level:
            try:
                return piece.translate(_FROM_ALPHABET).encode("latin-1")
            except UnicodeEncodeError:
                return piece.encode()
        byte = _BYTE_NAME.fullmatch(piece)
        return bytes((int(byte[1], 16),)) if byte else piece.replace(_SPACE_MARK, " ").encode()


def _guarded(library: Library, control: frozenset[int]) -> tuple[Library, Mapping[int, int]]:
    """The library's model and steps with other names for control tokens, and its ids → the library's."""
    other = Library(library.model)
    if library.normalizer is not None:
        other.normalizer = library.normalizer
    if library.pre_tokenizer is not None:
        other.pre_tokenizer = library.pre_tokenizer
    ids: dict[int, int] = {}
    for token, added in library.get_added_tokens_decoder().items():
        name = _GUARD + added.content if token in control else added.content
        flags = {flag: getattr(added, flag) for flag in ("single_word", "lstrip", "rstrip", "normalized", "special")}
        other.add_tokens([AddedToken(name, **flags)])
        found = other.token_to_id(name)
        if found is not None:
            ids[found] = token
    return other, ids


def _alphabet() -> Mapping[int, int]:
    """GPT-2's: printable bytes of Latin-1 stand for themselves, the others for 256, 257 … in order; what is not in it becomes no byte."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return dict.fromkeys(others, 0xFFFF) | {256 + number: byte for number, byte in enumerate(others)}


_FROM_ALPHABET = _alphabet()


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
