"""Text of a prompt and of single tokens, token by token: for echoes, log-probabilities and `/tokenize`."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from ridgeline.text.stream import Detokenizer
from ridgeline.text.tokenizer import Tokenizer


def token_text(tokenizer: Tokenizer, token: int) -> str:
    r"""One token as text; bytes that are not whole characters as OpenAI writes them: `bytes:\xe2\x96`."""
    piece = tokenizer.piece(token)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


@dataclass(frozen=True, slots=True)
class PromptText:
    """A prompt's text by tokens, as an echo has it. The BOS at its start adds no text, other control tokens add their names."""

    texts: tuple[str, ...]

    @property
    def offsets(self) -> list[int]:
        """Characters before each token."""
        return list(accumulate(map(len, self.texts[:-1]), initial=0))


def prompt_text(tokenizer: Tokenizer, ids: Sequence[int]) -> PromptText:
    """Text of each token of a prompt (not empty). Joined, they are what the prompt decodes to; bytes of an incomplete character at its end
    become U+FFFD."""
    detokenizer = Detokenizer(tokenizer, skip_special=False)
    texts = ["" if at == 0 and token == tokenizer.bos else detokenizer.push(token) for at, token in enumerate(ids)]
    texts[-1] += detokenizer.finish()
    without_bos = ids[1:] if ids[0] == tokenizer.bos else ids
    if "".join(texts) == " " + tokenizer.decode(without_bos, skip_special=False):  # the space that some tokenizers put before every text
        first = next(at for at, text in enumerate(texts) if text)
        texts[first] = texts[first][1:]
    return PromptText(tuple(texts))
