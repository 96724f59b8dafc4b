"""A pattern for many words at once. Owns its shape: words that share a first character share a branch, their number costs no time."""

import re
from collections.abc import Iterable

_MAX_NESTING = 64


def longest_of(words: Iterable[str]) -> str:
    """A pattern that matches the longest of `words` (not empty) at a place."""
    return _branches(list(set(words)), 0)


def _branches(words: list[str], depth: int) -> str:
    if len(words) == 1 or depth == _MAX_NESTING:
        return "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    branches: dict[str, list[str]] = {}
    for word in words:
        branches.setdefault(word[0], []).append(word[1:])
    patterns = []
    for first, rests in branches.items():
        longer = [rest for rest in rests if rest]
        tail = f"(?:{_branches(longer, depth + 1)}){'?' if len(longer) < len(rests) else ''}" if longer else ""
        patterns.append(re.escape(first) + tail)
    return "|".join(patterns)
