"""Rules of a grammar in llguidance's Lark: exact texts, any text up to a mark, JSON of a schema.

Marks that are control tokens are matched by their ids: no text of a grammar means them.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from ridgeline.text.json_schema import prepared

_SPECIAL: Final = re.compile(r"[\\.+*?()|\[\]{}^$/]")
_SPACE: Final = r"/[ \n]{1,4}/"


class Lark:
    """Rules, each written once."""

    def __init__(self, control: Mapping[str, int], whitespace: str) -> None:
        """control: names of control tokens → ids. whitespace: a regular expression for what may stand between tokens of JSON."""
        self._control, self._whitespace = control, whitespace
        names = sorted(map(re.escape, control), key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(names)})" if names else r"((?!))")
        self._rules: dict[str, str] = {}
        self._named: dict[str, str] = {}

    def rule(self, body: str, *, lazy: bool = False) -> str:
        """The name of the rule with this body; what is lazy ends where it first can."""
        return self._rules.setdefault(f"{'[lazy]' if lazy else ''}: {body}", f"r{len(self._rules)}")

    def recursive(self, make: Callable[[str], str]) -> str:
        """The name of a rule whose body `make` writes, told the name."""
        name = f"n{len(self._named)}"
        self._named[name] = ""
        self._named[name] = make(name)
        return name

    def text(self, text: str) -> str:
        """Exactly this text."""
        return " ".join(f"<[{self._control[part]}]>" if part in self._control else quoted(part) for part in self._parts(text))

    def until(self, mark: str) -> str:
        """Any text up to `mark`, and that."""
        first, *rest = self._parts(mark)
        if first in self._control:
            return f"{self.anything()}? {self.text(mark)}"
        begin = self.rule(f"/(?s:.*){pattern(first)}/", lazy=not rest)
        return f"{begin} {self.text(''.join(rest))}"

    def first(self, mark: str) -> str:
        """A mark with which a text begins, behind white space perhaps; no other text is taken for it."""
        space = r"\s*"
        return self.rule(f"/{space}{pattern(mark)}/", lazy=True)

    def anything(self) -> str:
        """Any text that is not empty."""
        return self.rule("/(?s:.+)/")

    def space(self) -> str:
        """Some white space, or none."""
        return f"{self.rule(_SPACE)}?"

    def json(self, schema: Any) -> str:
        """JSON of a schema. Raises Unsupported."""
        return self.rule(f"%json {json.dumps(prepared(schema, self._whitespace))}")

    def has(self, mark: str) -> bool:
        """True if the mark begins with a control token."""
        return self._parts(mark)[0] in self._control

    def whole(self, start: str) -> str:
        """The grammar."""
        named = [f"{name}: {body}" for name, body in self._named.items()]
        return "\n".join([f"start: {start}", *named, *(f"{name}{body}" for body, name in self._rules.items())])

    def _parts(self, text: str) -> list[str]:
        return [part for part in self._split.split(text) if part]


def quoted(text: str) -> str:
    """A text as Lark writes it."""
    return json.dumps(text, ensure_ascii=False)


def pattern(text: str) -> str:
    """A text as a regular expression of Lark's."""
    return _SPECIAL.sub(r"\\\g<0>", text).replace("\n", "\\n")
