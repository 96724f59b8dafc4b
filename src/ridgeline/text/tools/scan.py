"""A text that comes in pieces, read by generators that pause where it ends for now.

Every character is looked at a bounded number of times, whatever it says: what has been taken is never read again, and a pattern that waits
for more waits for at most `LIMIT` characters.
"""

import re
from collections.abc import Callable, Collection, Generator
from typing import Final

LIMIT: Final = 512
"""Characters that a head (a name, a key, an id) may have with all around it."""
_STRUCTURE: Final = re.compile(r'["{}\[\]]')
_STRING: Final = re.compile(r'["\\]')


class Marks:
    """Texts that mean something where they occur; none of them begins with another."""

    def __init__(self, marks: Collection[str]) -> None:
        self.pattern = re.compile("|".join(map(re.escape, sorted(marks, key=len, reverse=True))) or r"(?!)")
        self._starts = frozenset(mark[:end] for mark in marks for end in range(1, len(mark)))
        self._longest = max(map(len, marks), default=1) - 1

    def held(self, text: str, start: int) -> int:
        """Characters at the end of `text` that may be the beginning of a mark."""
        sizes = range(min(len(text) - start, self._longest), 0, -1)
        return next((size for size in sizes if text[len(text) - size :] in self._starts), 0)


class Scanner:
    """The text so far that nobody has taken."""

    def __init__(self) -> None:
        self.text, self.at, self.is_closed = "", 0, False

    def feed(self, piece: str) -> None:
        """Adds a piece."""
        self.text, self.at = self.text[self.at :] + piece, 0

    def through(self, marks: Marks, sink: Callable[[str], None]) -> Generator[None, None, str | None]:
        """Gives the text before the next mark to `sink`, as it comes; returns the mark, taken, or None at the end of all text."""
        while True:
            found = marks.pattern.search(self.text, self.at)
            end = found.start() if found else len(self.text) - (0 if self.is_closed else marks.held(self.text, self.at))
            if end > self.at:
                sink(self.text[self.at : end])
            self.at = found.end() if found else end
            if found or self.is_closed:
                return found[0] if found else None
            yield

    def take(self, pattern: re.Pattern[str]) -> Generator[None, None, re.Match[str] | None]:
        """Takes what matches here, waiting for it; None where it does not within `LIMIT`. A pattern must tell where it ends."""
        while True:
            found = pattern.match(self.text, self.at)
            if found is not None:
                self.at = found.end()
                return found
            if self.is_closed or len(self.text) - self.at > LIMIT:
                return None
            yield

    def value(self, sink: Callable[[str], None]) -> Generator[None, None, bool]:
        """Gives the JSON object or list that begins here to `sink`, as it comes; False where the text ends within it."""
        depth, in_string, skip = 0, False, 0
        while True:
            at, end = self.at + skip, len(self.text)
            while at < end:
                found = (_STRING if in_string else _STRUCTURE).search(self.text, at)
                if found is None:
                    at = end
                    break
                at = found.end()
                if found[0] == "\\":
                    at += 1
                elif found[0] == '"':
                    in_string = not in_string
                else:
                    depth += 1 if found[0] in "{[" else -1
                    if depth == 0:
                        break
            is_done = depth == 0 and not in_string and at > self.at
            skip, at = max(0, at - end), min(at, end)
            if at > self.at:
                sink(self.text[self.at : at])
            self.at = at
            if is_done or self.is_closed:
                return is_done
            yield
