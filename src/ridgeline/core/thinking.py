"""Reasoning within the outputs of a sequence: where it begins and ends, and the ids that end it where its budget is spent.

All of it is a function of the outputs alone, so that a preemption, a draft or another executor cannot change it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

NOTHING: Final = -1
"""State behind outputs that begin with no reasoning."""


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """The marks around reasoning, as a machine that reads ids by their bytes: however a text is divided into ids, its marks are found.

    States 0 … end − 1 are within the reasoning, behind so many bytes of the mark that ends it; `end` is behind that mark; those above are
    before it, behind `state − end − 1` bytes of the mark that begins it.

    end    bytes of the mark that ends reasoning
    moves  (state, id, next state). An id without a move leads as in state 0 within the reasoning, else to 0; before it, to `NOTHING`
    again  reasoning may come anywhere and more than once: an id without a move leads to `end` before it, and `end` is before it too
    """

    end: int
    moves: tuple[tuple[int, int, int], ...]
    again: bool = False


@dataclass(frozen=True, slots=True)
class Thinking:
    """The form of an output's reasoning.

    begun   the prompt has begun the reasoning
    tokens  the most ids between the marks; when so many came, `close` follows. None: no limit
    close   ids that end the reasoning: perhaps a message, then the mark
    mark    ids of the mark, the last ones of `close`
    """

    marks: ReasoningMarks
    begun: bool
    tokens: int | None = None
    close: tuple[int, ...] = ()
    mark: int = 0

    def may_force(self, output: int) -> bool:
        """True if output number `output` (from 0) may be an id that is forced."""
        return self.tokens is not None and output >= self.tokens


class ThinkingState:
    """The place of a sequence in its reasoning, which follows from its outputs.

    tokens  ids of reasoning so far, without its marks
    """

    __slots__ = ("_at", "_in_mark", "_last", "_moves", "_state", "_thinking", "tokens")

    def __init__(self, thinking: Thinking, outputs: Sequence[int] = ()) -> None:
        end = thinking.marks.end
        self._thinking = thinking
        self._moves = {(state, token): following for state, token, following in thinking.marks.moves}
        self._state = 0 if thinking.begun else end + 1
        self._at: int | None = None
        self._in_mark = 0
        self._last: tuple[int, ...] = ()
        self.tokens = 0
        self._check_budget()
        for token in outputs:
            self.push(token)

    @property
    def forced(self) -> int | None:
        """The only id that may come next; None: any may."""
        return None if self._at is None else self._thinking.close[self._at]

    @property
    def has_ended(self) -> bool:
        """True behind the reasoning, and where there is none."""
        return self._at is None and self._state in (NOTHING, self._thinking.marks.end)

    def push(self, token: int) -> None:
        """One more output."""
        end = self._thinking.marks.end
        if self._at is not None:
            self._force_next()
        elif 0 <= self._state < end:
            self._think(token, end)
        elif self._state > end or (self._thinking.marks.again and self._state == end):
            self._begin(token, end)

    def walk(self, drafts: Sequence[int]) -> list[int | None]:
        """`forced` of the next position, and of each behind one more draft."""
        if not drafts:
            return [self.forced]
        ahead = self._copy()
        found = [ahead.forced]
        for token in drafts:
            ahead.push(token)
            found.append(ahead.forced)
        return found

    def _begin(self, token: int, end: int) -> None:
        again = self._thinking.marks.again
        following = self._moves.get((max(self._state, end + 1), token))
        if following is None:
            following = self._moves.get((end + 1, token), end) if again else NOTHING
        self._state, self._in_mark, self._last = following, 0, ()
        self._check_budget()

    def _think(self, token: int, end: int) -> None:
        goes_on = self._moves.get((self._state, token)) if self._state else None
        self._state = self._moves.get((0, token), 0) if goes_on is None else goes_on
        self.tokens += 1
        self._in_mark = 0 if not self._state else 1 if goes_on is None else self._in_mark + 1
        if self._thinking.mark > 1:
            self._last = (*self._last, token)[1 - self._thinking.mark :]
        if self._state == end:
            self.tokens -= self._in_mark
        else:
            self._check_budget()

    def _check_budget(self) -> None:
        """Begins to force the end where the budget is spent: of a mark that has begun only the rest."""
        thinking = self._thinking
        if thinking.tokens is None or self.tokens < thinking.tokens or not 0 <= self._state < thinking.marks.end:
            return
        first = len(thinking.close) - thinking.mark
        mark = thinking.close[first:]
        begun = next((count for count in range(len(self._last), 0, -1) if self._last[-count:] == mark[:count]), 0)
        self._at = first + begun if begun else 0
        self.tokens -= begun

    def _force_next(self) -> None:
        assert self._at is not None
        thinking = self._thinking
        self.tokens += self._at < len(thinking.close) - thinking.mark
        self._at += 1
        if self._at == len(thinking.close):
            self._at, self._state = None, thinking.marks.end

    def _copy(self) -> "ThinkingState":
        other = object.__new__(ThinkingState)
        for name in ThinkingState.__slots__:
            setattr(other, name, getattr(self, name))
        return other
