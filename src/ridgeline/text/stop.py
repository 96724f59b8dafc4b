"""Finds stop strings in text that arrives in parts, and says how much of its end may still become one.

Owns the automaton: immutable, and its state is a number, so who reads a text keeps just that. Time is linear in the text.
Aho and Corasick 1975.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

_ROOT = 0


@dataclass(frozen=True, slots=True)
class Found:
    """A stop string whose last character is the one before index `end` of the text that was passed in."""

    stop: str
    end: int


class StopAutomaton:
    """All stop strings (not empty) at once; the one that is complete first is found, the longest of those that end together."""

    start = _ROOT

    def __init__(self, stops: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._found: list[str | None] = [None]
        self._depth = [0]
        for stop in stops:
            self._found[self._insert(stop)] = stop
        self._shorter = [_ROOT] * len(self._next)
        """For each state the one of its longest proper suffix."""
        self._held = [depth if branches else 0 for depth, branches in zip(self._depth, self._next, strict=True)]
        self._link()

    def advance(self, state: int, text: str, armed: bool) -> tuple[int, Found | None]:
        """Reads `text` up to its end or to the end of the first stop string in it; returns where that leads.

        Where not `armed`, a stop string that is complete in this text is passed over, but one that begins in it may be found later.
        """
        if len(self._next) == 1:
            return _ROOT, None
        for index, character in enumerate(text):
            while state and character not in self._next[state]:
                state = self._shorter[state]
            state = self._next[state].get(character, _ROOT)
            stop = self._found[state]
            if armed and stop is not None:
                return state, Found(stop, index + 1)
        return state, None

    def held(self, state: int) -> int:
        """Characters at the end of the text read so far that may be the beginning of a stop string."""
        return self._held[state]

    def _insert(self, stop: str) -> int:
        state = _ROOT
        for character in stop:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._found.append(None)
                self._depth.append(self._depth[state] + 1)
            state = self._next[state][character]
        return state

    def _link(self) -> None:
        """Breadth first, so that shorter states are finished: suffix links, stops that end inside longer words, what is held."""
        queue = deque(self._next[_ROOT].values())
        while queue:
            state = queue.popleft()
            shorter = self._shorter[state]
            if self._found[state] is None:
                self._found[state] = self._found[shorter]
            self._held[state] = self._held[state] or self._held[shorter]
            for character, longer in self._next[state].items():
                queue.append(longer)
                suffix = shorter
                while suffix and character not in self._next[suffix]:
                    suffix = self._shorter[suffix]
                self._shorter[longer] = self._next[suffix].get(character, _ROOT)
