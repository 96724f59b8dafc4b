"""Ids to text while they arrive: whole characters only, and each character belongs to the token that completes it.

Owns the bytes of a character that is not complete yet: a function of the ids so far, whatever the steps they came in.
The detokeniser never emits text of the prompt.
"""

from codecs import utf_8_decode
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from ridgeline.text.tokenizer import Tokenizer

_CHARACTER_BYTES = 4
_REPLACEMENT = "\ufffd"


class Detokenizer:
    """Text of a sequence's outputs. The texts of all ids and of `finish`, joined, are the whole text: bytes that are not
    UTF-8 become one U+FFFD per invalid part (Unicode 15, §3.9, maximal subparts)."""

    def __init__(self, tokenizer: Tokenizer, skip_special: bool, prompt: Sequence[int] = ()) -> None:
        """`prompt` matters where it ends inside a character that the outputs complete (a continuation by ids)."""
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._inside_prompt = False
        self._rest = b""
        """Bytes of the character that is not complete."""
        self._decode(self._last_bytes(prompt))
        self._inside_prompt = self.incomplete

    def push(self, token: int) -> str:
        """The text that is complete with this token and was not before it; often a word, "" inside a character."""
        return self._decode(self._bytes(token))

    def finish(self) -> str:
        """The text of an incomplete character at the end: "" or U+FFFD."""
        return self._decode(b"", final=True)

    @property
    def incomplete(self) -> bool:
        """True if the last bytes wait for the rest of their character."""
        return bool(self._rest)

    def _decode(self, new: bytes, final: bool = False) -> str:
        """The prompt's text ended in U+FFFD where it ended inside a character; if the outputs don't complete it, that stands."""
        data = self._rest + new
        text, read = utf_8_decode(data, "replace", final)
        self._rest = data[read:]
        if self._inside_prompt and text:
            self._inside_prompt = False
            return text.removeprefix(_REPLACEMENT)
        return text

    def _bytes(self, token: int) -> bytes:
        if self._skip_special and self._tokenizer.is_control(token):
            return b""
        return self._tokenizer.piece(token)

    def _last_bytes(self, prompt: Sequence[int]) -> bytes:
        tail = b""
        for token in reversed(prompt):
            tail = self._bytes(token) + tail
            if len(tail) >= _CHARACTER_BYTES:
                break
        return tail


def token_text(tokenizer: Tokenizer, token: int) -> str:
    r"""One token as text; bytes that are not whole characters as OpenAI writes them: `bytes:\xe2\x96`."""
    piece = tokenizer.piece(token)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


@dataclass(frozen=True, slots=True)
class PromptText:
    """A prompt's text by tokens, as an echo shows it. The BOS at its start adds none, other control tokens their names."""

    texts: tuple[str, ...]

    @property
    def offsets(self) -> list[int]:
        """Characters before each token."""
        return list(accumulate(map(len, self.texts[:-1]), initial=0))


def prompt_text(tokenizer: Tokenizer, ids: Sequence[int]) -> PromptText:
    """The texts, joined, are what the prompt decodes to; bytes that never become a character end it as U+FFFD."""
    pieces = Detokenizer(tokenizer, skip_special=False)
    texts = ["" if at == 0 and token == tokenizer.bos else pieces.push(token) for at, token in enumerate(ids)]
    texts[-1] += pieces.finish()
    shown = ids[1:] if ids[0] == tokenizer.bos else ids
    if "".join(texts) == " " + tokenizer.decode(shown, skip_special=False):  # the space that some tokenizers put before every text
        first = next(at for at, text in enumerate(texts) if text)
        texts[first] = texts[first][1:]
    return PromptText(tuple(texts))
