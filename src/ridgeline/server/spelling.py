"""How tokens are written in answers: their names, their bytes, the text of a prompt token by token, log-probabilities by id.

Serves the bodies of every endpoint. Knows no body.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from ridgeline.core.plan import TokenLogprobs
from ridgeline.server import wire
from ridgeline.text.detokenize import Detokenizer
from ridgeline.text.tokenizer import Tokenizer


def token_text(tokenizer: Tokenizer, token: int) -> str:
    r"""One token as text; bytes that are not whole characters as OpenAI writes them: `bytes:\xe2\x96`."""
    piece = tokenizer.piece(token)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


@dataclass(frozen=True, slots=True)
class Spelling:
    """Names of tokens in log-probabilities. `as_ids`: `token_id:123` instead of text, which two tokens may share."""

    tokenizer: Tokenizer
    as_ids: bool

    def name(self, token: int) -> str:
        """One token's."""
        return f"token_id:{token}" if self.as_ids else token_text(self.tokenizer, token)

    def ranked(self, found: Sequence[TokenLogprobs | None], ids: Sequence[int], best: int) -> wire.PromptLogprobs:
        """vLLM's form: for each token the `best` likeliest ids and its own, by id; null for the first of a prompt."""
        return [None if each is None else self._by_id(token, each, best) for token, each in zip(ids, found, strict=True)]

    def _by_id(self, token: int, found: TokenLogprobs, best: int) -> dict[int, wire.PromptLogprob]:
        top = found.top[:best]
        rank = next((place for place, (other, _) in enumerate(found.top, 1) if other == token), None)
        own = {token: wire.PromptLogprob(found.logprob, rank, self.name(token))}
        return own | {other: wire.PromptLogprob(value, place, self.name(other)) for place, (other, value) in enumerate(top, 1)}


@dataclass(frozen=True, slots=True)
class PromptText:
    """A prompt's text by tokens, as an echo shows it. The BOS at its start adds none, other control tokens their names."""

    texts: tuple[str, ...]

    @property
    def offsets(self) -> list[int]:
        """For each token the characters before it."""
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
