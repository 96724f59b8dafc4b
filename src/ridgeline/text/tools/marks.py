"""The marks around reasoning as ids: the machine that finds them in outputs, and what is forced where a budget is spent."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ridgeline.core.thinking import NOTHING, ReasoningMarks, Thinking
from ridgeline.text.tokenizer import Tokenizer
from ridgeline.text.tools.families import Reasoning

SPACES: Final = b" \t\r\n"
TAIL_TOKENS: Final = 16
"""Tokens that `tail` looks at."""


@dataclass(frozen=True, slots=True)
class ReasoningIds:
    """The marks of a model's reasoning in its vocabulary. close: ids of the mark that ends it."""

    texts: Reasoning
    marks: ReasoningMarks
    close: tuple[int, ...]

    @classmethod
    def read(cls, texts: Reasoning, tokenizer: Tokenizer) -> "ReasoningIds":
        """Looks at every token of the vocabulary once."""
        token = tokenizer.id_of(texts.end)
        close = tokenizer.encode(texts.end, add_bos=False, special=True) if token is None else [token]
        return cls(texts, _Machine(texts).marks(tokenizer), tuple(close))

    def thinking(self, begun: bool, tokens: int | None, message: Sequence[int] = ()) -> Thinking:
        """The reasoning of an output with a budget of `tokens`, behind which the ids of `message` and the mark are forced."""
        if tokens is None:
            return Thinking(self.marks, begun)
        return Thinking(self.marks, begun, tokens, (*message, *self.close), len(self.close))


def tail(prompt: Sequence[int], tokenizer: Tokenizer) -> str:
    """The text at the end of a prompt, without white space behind it: it tells whether the prompt has begun, or ended, the reasoning."""
    return tokenizer.decode(prompt[-TAIL_TOKENS:], skip_special=False).rstrip()


def begins_reasoning(prompt: Sequence[int], texts: Reasoning, tokenizer: Tokenizer) -> bool:
    """True if the prompt has begun the reasoning."""
    return tail(prompt, tokenizer).endswith(texts.begin.rstrip())


class _Machine:
    """States as in `ReasoningMarks`, over bytes."""

    def __init__(self, texts: Reasoning) -> None:
        self._begin, self._end, self._again = texts.begin.encode(), texts.end.encode(), texts.in_channels
        self._border = _borders(self._end)

    def marks(self, tokenizer: Tokenizer) -> ReasoningMarks:
        end = len(self._end)
        starts = {*SPACES, *self._begin, *self._end}
        rests = [[self._end[at:] for at in self._ways(state)] for state in range(1, end)]
        moves: list[tuple[int, int, int]] = []
        for token in range(tokenizer.vocab_size):
            piece = tokenizer.piece(token)
            if not piece or (piece[0] not in starts and self._end[0] not in piece):
                continue
            if (state := self._think(0, piece)) > 0:
                moves.append((0, token, state))
            for state, ways in enumerate(rests, 1):
                if any(rest.startswith(piece) or piece.startswith(rest) for rest in ways):
                    moves.append((state, token, self._think(state, piece)))
            for state in range(len(self._begin)):
                following = self._start(state, piece)
                if following != NOTHING:
                    moves.append((end + 1 + state, token, following))
        return ReasoningMarks(end, tuple(moves), self._again)

    def _think(self, state: int, piece: bytes) -> int:
        """The state behind more bytes within the reasoning."""
        for byte in piece:
            while state and byte != self._end[state]:
                state = self._border[state]
            state += byte == self._end[state]
            if state == len(self._end):
                break
        return state

    def _ways(self, state: int) -> list[int]:
        """The state, and the shorter beginnings of the mark that stand at its end."""
        found = []
        while state:
            found.append(state)
            state = self._border[state]
        return found

    def _start(self, matched: int, piece: bytes) -> int:
        """The state behind more bytes, where so many of the first mark stand before them; white space may stand before it."""
        rest = piece.lstrip(SPACES) if matched == 0 else piece
        mark = self._begin[matched:]
        if rest.startswith(mark):
            return self._think(0, rest[len(mark) :])
        return len(self._end) + 1 + matched + len(rest) if mark.startswith(rest) else NOTHING


def _borders(mark: bytes) -> list[int]:
    """Per number of bytes of the mark, the most fewer of them that stand at its end too (Knuth, Morris and Pratt 1977)."""
    found = [0, 0]
    for at in range(1, len(mark)):
        length = found[at]
        while length and mark[length] != mark[at]:
            length = found[length]
        found.append(length + (mark[length] == mark[at]))
    return found
