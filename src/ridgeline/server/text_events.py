"""The bodies of a stream's events that show nothing but text: all that stands around the text is encoded once a choice.

Owns where the text stands in a body. What stands around it is the endpoint's form.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from ridgeline.server.generate import Shown
from ridgeline.text.stream import Release

_ENCODE: Final = msgspec.json.Encoder().encode


class TextEvents:
    """Of one answer. `form` makes the event of new text; of one choice they differ in their text alone."""

    def __init__(self, form: Callable[[Shown], msgspec.Struct]) -> None:
        self._form = form
        self._around: dict[int, tuple[bytes, bytes]] = {}

    def body(self, shown: Shown) -> bytes:
        """The event as JSON: what `form` makes, encoded."""
        around = self._around.get(shown.index)
        if around is None:
            around = self._around[shown.index] = self._cut(shown.index)
        return around[0] + _ENCODE(shown.release.text) + around[1]

    def _cut(self, index: int) -> tuple[bytes, bytes]:
        """Before and behind the text. Bodies with two texts of one character differ first in that character, which stands in quotes."""
        first, second = (_ENCODE(self._form(Shown(index, Release(0, texts=(text,))))) for text in "01")
        at = next(at for at, (one, other) in enumerate(zip(first, second, strict=True)) if one != other)
        return first[: at - 1], first[at + 2 :]
