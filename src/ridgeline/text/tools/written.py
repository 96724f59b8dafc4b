"""Written forms of calls, as data: texts with places for names and arguments, of which grammars are made.

Places are in ‹›:
    name, id, number   of the tool, of the call               json      arguments as an object of JSON
    s, and a space     white space, one space; or none        members   arguments as members of a literal
    tags               arguments between tags, each written as `parameter`, with the places key, value, kind (string or not: true, false;
                       else the type)
    elements           arguments as elements, nested, each written as `parameter`
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

PLACE: Final = re.compile("‹([a-z ]+)›")

_MARK: Final = re.compile(r"<[^<>‹›\s=]+>|\[/?[A-Z_]+\]|｜[^｜‹›\s]+｜")


def marks_in(texts: Iterable[str]) -> tuple[str, ...]:
    """Marks that look like names of control tokens."""
    return tuple(dict.fromkeys(mark for text in texts for mark in _MARK.findall(text)))


@dataclass(frozen=True, slots=True)
class Written:
    """Calls as a family writes them: `open`, calls with `between` between them, `close`.

    calls      the ways to write one
    parameter  one argument, where arguments stand between tags
    literal    how arguments are written that are members of a literal: "keywords" (Python's), or "bare" (names without quotes)
    several    an answer may have more than one
    """

    calls: tuple[str, ...]
    open: str = ""
    between: str = "‹s›"
    close: str = ""
    parameter: str = ""
    literal: str = ""
    several: bool = True

    @property
    def marks(self) -> tuple[str, ...]:
        """Marks that may be control tokens, by their look."""
        texts = (self.open, *self.calls, self.between, self.close, self.parameter)
        return marks_in(texts)


def objects(open_: str, close: str, *, arguments: str = "arguments", before: str = "", behind: str = "") -> Written:
    """Objects with name and arguments, each between `before` and `behind`, all of them between `open_` and `close`."""
    call = f'{before}{{"name":‹ ›"‹name›",‹ ›"{arguments}":‹ ›‹json›}}{behind}'
    return Written((call,), open_, ",‹ ›" if open_ else "‹s›", close)


def invocations(prefix: str, name: str, attributes: str = "") -> Written:
    """Calls of Anthropic's form `invoke` with `parameter`, within `name`."""
    return Written(
        (f'<{prefix}invoke name="‹name›">‹s›‹tags›</{prefix}invoke>',), f"<{prefix}{name}>‹s›", "‹s›", f"‹s›</{prefix}{name}>",
        f'<{prefix}parameter name="‹key›"{attributes}>‹value›</{prefix}parameter>‹s›',
    )  # fmt: skip
