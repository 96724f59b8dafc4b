"""The `Tokenizer` protocol, and helpers that need nothing else: bytes as a vocabulary, bad words as ids, a pattern for the names of tokens.

`text.files` chooses the tokenizer of a model.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final, Protocol

from ridgeline.core.params import MAX_BAD_WORD_CHARACTERS, MAX_BAD_WORDS
from ridgeline.errors import RequestError

QUICK_CHARACTERS: Final = 4_096
"""`Tokenizer.quick_characters` where the time of a text grows with its length alone."""
MASK: Final = "\ufdd0"
"""A code point that Unicode sets aside for internal use: in message contents it keeps names of control tokens from becoming their ids."""


class Tokenizer(Protocol):
    """Text to ids and back. Immutable, hence safe to share between threads and requests.

    bos      the id that starts every prompt; None: the model wants none
    text_end the id behind a text whose vector is wanted; None: the model wants none
    eos_ids  ids that end a generation, from every source that names one
    control  ids that stand for no text (BOS, EOS, padding, unknown …), ascending
    markup   names of tokens that ordinary text is split at too, and that mean something to the model as control tokens do
    keeps_text  texts come back from their ids; not from those of an encoder, which folds case and accents and ends no answer
    quick_characters  length up to which any text is encoded within a millisecond or so; 0: none is known
    """

    @property
    def bos(self) -> int | None: ...

    @property
    def text_end(self) -> int | None: ...

    @property
    def eos_ids(self) -> frozenset[int]: ...

    @property
    def control(self) -> Sequence[int]: ...

    @property
    def markup(self) -> frozenset[str]: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def keeps_text(self) -> bool: ...

    @property
    def quick_characters(self) -> int: ...

    def encode(self, text: str, add_bos: bool, special: bool = False) -> list[int]:
        """Ids of `text`. `add_bos` puts `bos` first where there is one and, with `special`, the text does not begin with its name.

        special  names of control tokens become their ids, but where `MASK` stands inside the name; else they are ordinary text.
                 So it is with `markup`, which else become their ids. `MASK` itself stands for nothing, and only here means anything.
        """
        ...

    def id_of(self, piece: str) -> int | None:
        """The id of the token with exactly this name (`<|im_end|>`), control tokens included; None where there is none."""
        ...

    def piece(self, token: int) -> bytes:
        """The bytes that an id stands for, not always whole UTF-8; a control token's are its name. 0 ≤ token < vocab_size."""
        ...

    def is_control(self, token: int) -> bool:
        """True if an id is among `control`, or only pads the vocabulary."""
        ...

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        """Text of a whole prompt; bytes that are not UTF-8 become U+FFFD. `skip_special` leaves control tokens out."""
        ...


_BOS, _EOS = 256, 257


class ByteTokenizer:
    """A `Tokenizer` (see `text.tokenizer`) of 258 ids: 0 … 255 are bytes, 256 is BOS, 257 is EOS."""

    bos: int | None = _BOS
    text_end: int | None = None
    eos_ids = frozenset({_EOS})
    control: Sequence[int] = (_BOS, _EOS)
    markup = frozenset[str]()
    keeps_text = True
    vocab_size = 258
    quick_characters = 1 << 16

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
        visible = (token for token in ids if not (skip_special and self.is_control(token)))
        return b"".join(map(self.piece, visible)).decode("utf-8", "replace")


def text_ids(tokenizer: Tokenizer, text: str, *, add_special: bool = True) -> list[int]:
    """Ids of a text whose vector is wanted; names of control tokens in it are text. `add_special`: the ids around it are put there."""
    ids = tokenizer.encode(text, add_special)
    return [*ids, tokenizer.text_end] if add_special and tokenizer.text_end is not None else ids


def control_ranges(tokenizer: Tokenizer) -> tuple[tuple[int, int], ...]:
    """The ids of control tokens, as ranges [first, last], ascending."""
    found: list[tuple[int, int]] = []
    for token in tokenizer.control:
        found.append((found.pop()[0] if found and found[-1][1] == token - 1 else token, token))
    return tuple(found)


def bad_word_ids(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The ids of each word, as at the beginning of a text and as after a space; where both are the same, once.

    Raises `RequestError` for too many words, and for words that are empty, blank or too long.
    """
    if not isinstance(words, (tuple, list)) or not all(isinstance(word, str) for word in words):
        raise RequestError("bad_words must be a list of strings.", param="bad_words", code="invalid_type")
    if len(words) > MAX_BAD_WORDS:
        raise RequestError(f"bad_words has {len(words)} strings; at most {MAX_BAD_WORDS} are allowed.", param="bad_words")
    unique: dict[tuple[int, ...], None] = {}
    for word in words:
        if not word.strip() or len(word) > MAX_BAD_WORD_CHARACTERS:
            message = f"a string of bad_words has {len(word)} characters, {len(word.strip())} of them not blank"
            raise RequestError(f"{message}; send 1 to {MAX_BAD_WORD_CHARACTERS}, not all blank.", param="bad_words")
        for text in (word, f" {word.lstrip()}"):
            ids = tuple(tokenizer.encode(text, add_bos=False))
            if ids:
                unique[ids] = None
    return tuple(unique)


_ELEMENTS: Final = re.compile(
    "a|abbr|article|aside|b|blockquote|body|br|button|caption|center|cite|code|col|colgroup|dd|del|details|dfn|div|dl|dt|em|figcaption|"
    "figure|font|footer|form|h[1-6]|head|header|hr|html|i|iframe|ins|kbd|label|legend|li|link|main|mark|meta|nav|ol|option|p|pre|q|s|samp|"
    "script|section|select|small|span|strike|strong|style|sub|summary|sup|svg|table|tbody|td|textarea|tfoot|th|thead|time|title|tr|tt|u|ul|var"
)
"""HTML's elements of text. Those of media (`img`, `audio`, `video`) are names of control tokens in models that take media."""
_TAG: Final = re.compile(r"</?([a-z][a-z0-9]*)>")


def markup_among(names: Iterable[str], control: Collection[str]) -> frozenset[str]:
    """Those `names` of user-defined tokens that mean something to the model as `control` tokens do: `<start_of_image>`,
    `[multimodal]`, `<tool_call>`. The others are text: words, white space, tags of HTML unless the one that opens is a control token."""
    return frozenset(name for name in names if _is_markup(name, control))


def _is_markup(name: str, control: Collection[str]) -> bool:
    if len(name) < 3 or name[0].isalnum() or name[-1].isalnum() or name.split() != [name] or not any(map(str.isalpha, name)):
        return False
    tag = _TAG.fullmatch(name)
    return tag is None or not _ELEMENTS.fullmatch(tag[1]) or f"<{tag[1]}>" in control


_MAX_NESTING = 64


def longest_match_pattern(words: Iterable[str]) -> str:
    """A pattern that matches the longest of `words` (not empty) at a position.

    Characters behind which all is the same stand together: `<unused0>` to `<unused6241>` would else be a branch each, slow to compile.
    """
    return _branches(sorted(set(words)), 0)


def _branches(words: list[str], depth: int) -> str:
    if len(words) == 1 or depth == _MAX_NESTING:
        return "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    branches: dict[str, list[str]] = {}
    for word in words:
        branches.setdefault(word[0], []).append(word[1:])
    firsts: dict[str, list[str]] = {}
    for first, rests in branches.items():
        longer = [rest for rest in rests if rest]
        tail = f"(?:{_branches(longer, depth + 1)}){'?' if len(longer) < len(rests) else ''}" if longer else ""
        firsts.setdefault(tail, []).append(re.escape(first))
    return "|".join((each[0] if len(each) == 1 else f"[{''.join(each)}]") + tail for tail, each in firsts.items())
