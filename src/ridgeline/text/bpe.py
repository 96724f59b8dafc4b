"""Byte-level BPE and SentencePiece-style BPE with added tokens, as the tokenizers library runs them.

Owns the bytes of each id, the names in a text that become control tokens, the validation of GGUF headers, and the patterns that split text
before merging, as data: one row per value of `tokenizer.ggml.pre`. Splitting and merging are the library's.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final

from tokenizers import AddedToken, Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Library

from ridgeline.config.env import encode_in_callers_thread
from ridgeline.errors import ModelFormatError, RequestError
from ridgeline.facts.files.gguf import Header
from ridgeline.text.tokenizer import MASK, QUICK_CHARACTERS, markup_among
from ridgeline.text.vocabulary import TokenType, end_names

_CONTRACTIONS = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_THREE_DIGITS = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_ONE_DIGIT = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"
_GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
"""GPT-2's (Radford et al. 2019), from which the others are derived."""


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """Splitting of text before merging.

    patterns       applied one after the other
    ignore_merges  a part that is itself a piece becomes that piece's id
    add_bos        prompts begin with BOS where the file does not say
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_LLAMA3 = PreTokenizer((_THREE_DIGITS,), ignore_merges=True, add_bos=True)
_QWEN2 = PreTokenizer((_ONE_DIGIT,))
_GPT2 = PreTokenizer((_GPT2_PATTERN,))
_STARCODER = PreTokenizer((r"\p{N}", _GPT2_PATTERN))
_NEWER = "\u2d00-\u2d2d\ua790-\ua7fa\uab30-\uab68\U00010570-\U000105bc\U00016e40-\U00016e7f\U0001d400-\U0001d7cb\U0001df00-\U0001df1e"
"""Letters with case that are not in the list of letters that DeepSeek's pattern spells out, mathematical ones among them."""
_DEEPSEEK = PreTokenizer(
    (
        r"[\r\n]",
        rf"\s?[\p{{Lu}}\p{{Ll}}\p{{Lt}}&&[^{_NEWER}]]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"\s+$",
        "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
        r"\p{N}+",
    )
)
_FALCON = PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2_PATTERN, "[0-9][0-9][0-9]"))
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = PreTokenizer(
    (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    ignore_merges=True,
    add_bos=True,
)
_DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2_PATTERN, r"\p{N}+", "[0-9][0-9][0-9]"))

PRE_TOKENIZERS: Final[Mapping[str, PreTokenizer]] = {
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"), _QWEN2),
    **dict.fromkeys(("gpt-2", "gpt2", "phi-2", "mpt", "olmo"), _GPT2),
    **dict.fromkeys(("starcoder", "refact", "command-r", "smollm", "codeshell"), _STARCODER),
    **dict.fromkeys(("smaug-bpe", "dbrx"), PreTokenizer((_THREE_DIGITS,))),
    "deepseek-llm": _DEEPSEEK,
    "falcon": _FALCON,
    "tekken": _TEKKEN,
    "default": _DEFAULT,
}
"""`tokenizer.ggml.pre` → pre-tokenizer."""


_SPACE_MARK = "\u2581"
_GUARD = "\ufdd1"
"""Like `MASK` no character of any text: where names may be ordinary text, control tokens are called by it and their name."""
_BYTE_NAME = re.compile("<0x([0-9A-F]{2})>")


@dataclass(frozen=True, slots=True)
class PieceTable:
    """Pieces and types of ids. `pieces` are the names in the library's vocabulary, "" where it has none.

    byte_level   pieces spell bytes in GPT-2's alphabet; else U+2581 is a space and <0x0A> a byte
    added        ids whose pieces are literal text; of these `control` have no text
    space_prefix the space that encoding puts in front is removed when a whole text is decoded
    text_end     as `Tokenizer` has it
    continued    of WordPiece: what stands before a piece that goes on with a word; the others begin one. "": it is no such vocabulary
    has_known_patterns  text is split by patterns of this file, of which none takes long; else by the model's, of which any may
    """

    pieces: Sequence[str]
    byte_level: bool
    added: frozenset[int]
    control: frozenset[int]
    bos: int | None
    eos_ids: frozenset[int]
    space_prefix: bool = False
    text_end: int | None = None
    has_known_patterns: bool = False
    continued: str = ""


class FastTokenizer:
    """A `Tokenizer` (see `text.tokenizer`)."""

    def __init__(self, library: Library, table: PieceTable) -> None:
        encode_in_callers_thread()
        self._library = library
        self._table = table
        self._guarded: tuple[Library, Mapping[int, int]] | None = None
        """A copy in which control tokens and markup have guarded names, and its ids where they differ; made when a text first needs it."""
        self._guarded_lock = Lock()
        self.bos = table.bos
        self.text_end = table.text_end
        self.eos_ids = table.eos_ids
        self.control = sorted(table.control)
        self.vocab_size = len(table.pieces)
        self.keeps_text = not table.continued
        self.quick_characters = QUICK_CHARACTERS if table.has_known_patterns else 0
        self._ids = {piece: token for token, piece in enumerate(table.pieces) if piece}
        control = frozenset(table.pieces[token] for token in table.control if table.pieces[token])
        self.markup = markup_among((table.pieces[token] for token in table.added - table.control), control)
        self._control = _any_of(control)
        self._marked = _any_of(self.markup)
        self._names = _any_of(control | self.markup)
        self._stray_guards = re.compile(f"{_GUARD}+(?={self._names.pattern if self._names else ''})")
        self._bytes = [self._piece(token, piece) for token, piece in enumerate(table.pieces)]

    def encode(self, text: str, add_bos: bool, special: bool = False) -> list[int]:
        """See `Tokenizer.encode`. A surrogate without its partner is no character and becomes U+FFFD."""
        if not text.isascii():
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        ids = self._encode_special(text) if special else self._encode_ordinary(text.replace(MASK, ""))
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
        return token in self._table.control or token >= self.vocab_size

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        """See `Tokenizer.decode`."""
        visible = (token for token in ids if not (skip_special and self.is_control(token)))
        text = b"".join(map(self.piece, visible)).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._table.space_prefix else text

    def _encode_special(self, text: str) -> list[int]:
        if MASK not in text or self._names is None:
            return self._encode_with(self._library, text.replace(MASK, ""))
        return self._encode_guarded(text, self._names)

    def _encode_ordinary(self, text: str) -> list[int]:
        if self._control is None or not self._control.search(text):
            return self._encode_with(self._library, text)
        return self._encode_guarded(text, self._marked)

    def _encode_guarded(self, text: str, names: re.Pattern[str] | None) -> list[int]:
        """Ids of a text in which `names` alone are tokens; other control tokens and markup, masked or not, are text."""
        parts: list[str] = []
        at = 0
        for name in names.finditer(text) if names else ():
            parts += [self._strip_marks(text[at : name.start()]), _GUARD, name.group()]
            at = name.end()
        with self._guarded_lock:
            if self._guarded is None:
                self._guarded = _guarded(self._library, self.markup, self._table.control)
        library, ids = self._guarded
        return [ids.get(token, token) for token in self._encode_with(library, "".join(parts) + self._strip_marks(text[at:]))]

    def _strip_marks(self, text: str) -> str:
        """Removes masks, and guards before names, which `_encode_guarded` alone may set."""
        return self._stray_guards.sub("", text.replace(MASK, ""))

    @staticmethod
    def _encode_with(library: Library, text: str) -> list[int]:
        try:
            # Unlike `encode`, a batch gives up the interpreter's lock; the fast one knows no offsets, which nobody reads.
            ids: list[int] = library.encode_batch_fast([text], add_special_tokens=False)[0].ids if text else []
        except BaseException as error:  # where a pattern of the model fails the library panics, which is not an Exception
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            message = f"the model's tokenizer fails on these {len(text):,} characters; send a shorter or another text"
            raise RequestError(message, param="prompt") from None
        return ids

    def _piece(self, token: int, piece: str) -> bytes:
        if token in self._table.added or token in self._table.control:
            return piece.encode()
        if self._table.byte_level:
            try:
                return piece.translate(_FROM_ALPHABET).encode("latin-1")
            except UnicodeEncodeError:
                return piece.encode()
        if mark := self._table.continued:
            return (piece.removeprefix(mark) if piece.startswith(mark) else f" {piece}").encode()
        byte = _BYTE_NAME.fullmatch(piece)
        return bytes((int(byte[1], 16),)) if byte else piece.replace(_SPACE_MARK, " ").encode()


def _any_of(names: Collection[str]) -> re.Pattern[str] | None:
    """Finds the longest of the names at a position; None where there are none."""
    return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True)))) if names else None


def _guarded(library: Library, markup: frozenset[str], control: frozenset[int]) -> tuple[Library, Mapping[int, int]]:
    """A copy of the library's tokenizer with guarded names for control tokens and markup; ids of the copy → ids of the original."""
    other = Library(library.model)
    if library.normalizer is not None:
        other.normalizer = library.normalizer
    if library.pre_tokenizer is not None:
        other.pre_tokenizer = library.pre_tokenizer
    ids: dict[int, int] = {}
    for token, added in library.get_added_tokens_decoder().items():
        name = _GUARD + added.content if token in control or added.content in markup else added.content
        flags = {flag: getattr(added, flag) for flag in ("single_word", "lstrip", "rstrip", "normalized", "special")}
        other.add_tokens([AddedToken(name, **flags)])
        found = other.token_to_id(name)
        if found is not None:
            ids[found] = token
    return other, ids


def _alphabet() -> Mapping[int, int]:
    """GPT-2's: printable bytes of Latin-1 stand for themselves, the others for 256, 257 … in order; others are mapped beyond Latin-1."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return dict.fromkeys(others, 0xFFFF) | {256 + number: byte for number, byte in enumerate(others)}


_FROM_ALPHABET = _alphabet()


MAX_MERGES = 4 << 20


def read_bpe(header: Header) -> FastTokenizer:
    """Makes the tokenizer that a GGUF header describes. Raises ModelFormatError."""
    pre_tokenizer = _pre_tokenizer(header)
    pieces = list(header.strings("tokenizer.ggml.tokens"))
    types = _types(header, len(pieces))
    merges = _merges(list(header.strings("tokenizer.ggml.merges")))

    def token_id(name: str) -> int | None:
        key = f"tokenizer.ggml.{name}_token_id"
        return header.integer(key, 0, len(pieces) - 1) if key in header.metadata else None

    end = token_id("eos") if header.flag("tokenizer.ggml.add_eos_token", default=False) else None
    control = frozenset(token for token, kind in enumerate(types) if kind in (TokenType.CONTROL, TokenType.UNKNOWN))
    names = {pieces[token]: token for token in control}
    ends = {names[name] for name in end_names(names)} | {token_id(name) for name in ("eos", "eot", "eom")}
    bos = token_id("bos") if header.flag("tokenizer.ggml.add_bos_token", default=pre_tokenizer.add_bos) else None
    literal = frozenset(token for token, kind in enumerate(types) if kind == TokenType.USER_DEFINED)
    return FastTokenizer(
        _library(pieces, merges, pre_tokenizer, literal, control),
        PieceTable(
            pieces,
            True,
            literal,
            control,
            bos,
            frozenset(token for token in ends if token is not None),
            text_end=end,
            has_known_patterns=True,
        ),
    )


def _pre_tokenizer(header: Header) -> PreTokenizer:
    name = header.text("tokenizer.ggml.pre", default="")
    if name not in PRE_TOKENIZERS:
        raise ModelFormatError(
            f"the tokenizer splits text by the pre-tokenizer {name!r:.60}, which is not known; known: {', '.join(PRE_TOKENIZERS)}. "
            "Its ids would be wrong: use a newer conversion of the model, or its tokenizer.json"
        )
    return PRE_TOKENIZERS[name]


def _types(header: Header, size: int) -> list[int]:
    key = "tokenizer.ggml.token_type"
    types = list(map(int, header.numbers(key, "iI"))) if key in header.metadata else [int(TokenType.NORMAL)] * size
    if not size or len(types) != size or set(types) - set(TokenType):
        raise ModelFormatError(f"the tokenizer has {size} tokens and {len(types)} types, not one of 0 … 6 each: download the file again")
    return types


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
    pieces: Sequence[str], merges: list[tuple[str, str]], pre_tokenizer: PreTokenizer, literal: frozenset[int], control: frozenset[int]
) -> Library:
    vocabulary = {piece: token for token, piece in enumerate(pieces)}
    known = [(left, right) for left, right in merges if left + right in vocabulary and left in vocabulary and right in vocabulary]
    try:
        library = Library(models.BPE(vocab=vocabulary, merges=known, ignore_merges=pre_tokenizer.ignore_merges))
    except Exception as error:  # the library raises bare exceptions for vocabularies that it does not take
        raise ModelFormatError(f"the tokenizer's {len(pieces)} pieces and {len(merges)} merges cannot be used: {error}") from None
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in pre_tokenizer.patterns]
    library.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    library.add_tokens([AddedToken(pieces[token], normalized=False) for token in sorted(literal) if pieces[token]])
    library.add_special_tokens([AddedToken(pieces[token], normalized=False, special=True) for token in sorted(control) if pieces[token]])
    return library
