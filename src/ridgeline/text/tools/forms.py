"""The forms in which models write calls, each a generator that reads one call, or a list of them, behind the mark that begins it.

    Objects     {"name": …, "arguments": {…}}, alone or in a list     Head        a head with the name, then the arguments as JSON
    Tagged      a head, then each argument between tags of its own    Literal     arguments like Python's, known as JSON at their end
    Pythonic    a list of calls like Python's, without marks          Recipients  messages, each to all or to a tool

A form returns False where what it has read is no call: the caller gives that out as text. JSON is passed on byte by byte.
"""

import json
import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ridgeline.text.tools.channels import read_channels
from ridgeline.text.tools.scan import Marks, Scanner
from ridgeline.text.tools.values import from_literal, from_text, paired, quoted, types_of

Parameters = Mapping[str, Mapping[str, Any]]
"""Name of a tool → the schemas of its arguments by name, where a form must know their types."""
Reading = Generator[None, None, bool]

_NAME: Final = r"[\w.:/-]{1,128}"
_KEY: Final = re.compile(r'[\s,]*(?:(\})|"([^"\\]{0,128})"\s*:\s*(?=\S))')
_STRING: Final = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_SCALAR: Final = re.compile(r"[^\s,{}\[\]\"]+(?=[\s,}])")
_ITEM: Final = re.compile(r"[\s,;\[\]]*(?=[^\s,;\[\]])")
_BETWEEN: Final = " \t\r\n,;[]"


class Calls(Protocol):
    """Receiver of what a form reads."""

    def begin(self, name: str, call_id: str | None = None) -> None: ...

    def add(self, arguments: str) -> None: ...

    def end(self) -> None: ...

    def think(self, piece: str) -> None: ...

    def say(self, piece: str) -> None: ...


class Form(Protocol):
    """One way to write calls."""

    def read(self, scanner: Scanner, calls: Calls, parameters: Parameters) -> Reading: ...


@dataclass(frozen=True)
class Objects:
    """Objects of JSON, with anything of `[ , ;` between them. `keyed`: the name is the only key, the arguments its value; else the name is
    the value of the key `name`."""

    keyed: bool = False
    name: str = "name"

    def read(self, scanner: Scanner, calls: Calls, parameters: Parameters) -> Reading:
        count = 0
        while (yield from scanner.take(_ITEM)) is not None and scanner.text.startswith("{", scanner.at):
            scanner.at += 1
            if not (yield from self._object(scanner, calls)):
                return count > 0
            count += 1
        if count and scanner.is_closed and not scanner.text[scanner.at :].strip(_BETWEEN):
            scanner.at = len(scanner.text)
        return count > 0

    def _object(self, scanner: Scanner, calls: Calls) -> Reading:
        name, held = "", list[str]()
        call_id = None

        def give(piece: str) -> None:
            calls.add(piece) if name else held.append(piece)

        given = False
        while (key := (yield from scanner.take(_KEY))) is not None:
            if key[1]:
                if name:
                    if not given:
                        calls.add("{}")
                    calls.end()
                return bool(name)
            if (self.keyed and not name) or key[2] == self.name:
                value = key[2] if self.keyed else (yield from _string(scanner))
                if not value:
                    return False
                name = value
                calls.begin(name, call_id)
                calls.add("".join(held))
                if not self.keyed:
                    continue
            is_value = scanner.text[scanner.at] in "{["
            if self.keyed or key[2] in ("arguments", "parameters"):
                given = True
                if is_value:
                    yield from scanner.value(give)
                elif (text := (yield from _string(scanner))) is not None:
                    give(text)
                else:
                    return bool(name)
            elif is_value:
                if key[2] not in _OTHER_KEYS and not name:
                    return False
                yield from scanner.value(_nowhere)
            elif scanner.text.startswith('"', scanner.at):
                value = yield from _string(scanner)
                call_id = value if key[2] == "id" else call_id
            elif (yield from scanner.take(_SCALAR)) is None:
                return bool(name)
        return bool(name)


_OTHER_KEYS: Final = frozenset({"id", "type", "function"})


def _string(scanner: Scanner) -> Generator[None, None, str | None]:
    """The string of JSON that begins here."""
    found = yield from scanner.take(_STRING)
    if found is None:
        return None
    try:
        return paired(str(json.loads(found[0], strict=False)))
    except ValueError:
        return None


def _nowhere(piece: str) -> None:
    """Drops what nobody needs."""


@dataclass(frozen=True)
class Head:
    """A head, a regular expression with the groups `name` and perhaps `id`; then the arguments; then one of `close`, if there are any."""

    head: re.Pattern[str]
    close: Marks | None = None

    def read(self, scanner: Scanner, calls: Calls, parameters: Parameters) -> Reading:
        found = yield from scanner.take(self.head)
        if found is None:
            return False
        calls.begin(found["name"], found.groupdict().get("id"))
        if (yield from scanner.value(calls.add)):
            if self.close is not None:
                yield from scanner.through(self.close, _nowhere)
            calls.end()
        return True


@dataclass(frozen=True)
class Tagged:
    """Arguments between tags.

    head   with the group `name`                key     before a value, with the groups `key` and perhaps `string` (true: it is a text)
    after  the mark behind a value              close   the mark behind the last argument
    lines  values have lines of their own       over    what ends a list of calls; None: there is one
    """

    head: re.Pattern[str]
    key: re.Pattern[str]
    after: Marks
    close: re.Pattern[str]
    lines: bool = False
    over: re.Pattern[str] | None = None

    def read(self, scanner: Scanner, calls: Calls, parameters: Parameters) -> Reading:
        head = self.head if self.over is None else re.compile(f"{self.head.pattern}|{self.over.pattern}")
        count = 0
        while (found := (yield from scanner.take(head))) is not None and found["name"] is not None:
            count += 1
            yield from self._call(scanner, calls, found["name"], parameters.get(found["name"], {}))
            if self.over is None:
                break
        return count > 0

    def _call(self, scanner: Scanner, calls: Calls, name: str, schemas: Mapping[str, Any]) -> Generator[None, None, None]:
        calls.begin(name)
        calls.add("{")
        before = ""
        either = re.compile(f"(?:{self.key.pattern})|(?P<close>{self.close.pattern})")
        while (key := (yield from scanner.take(either))) is not None and key["close"] is None:
            calls.add(f"{before}{quoted(key['key'])}: ")
            before = ", "
            is_text = key.groupdict().get("string")
            types = types_of(schemas.get(key["key"]))
            types = frozenset({"string"}) if is_text == "true" else types - {"string"} if is_text == "false" else types
            if not (yield from self._value(scanner, calls.add, types)):
                return
        if key is not None:
            calls.add("}")
            calls.end()

    def _value(self, scanner: Scanner, give: Callable[[str], None], types: frozenset[str]) -> Reading:
        """Passes on a text as it comes; anything else is known at its end."""
        if types == {"string"}:
            text = _Lines(give, self.lines)
            give('"')
            if (yield from scanner.through(self.after, text.add)) is None:
                return False
            give('"')
            return True
        held: list[str] = []
        if (yield from scanner.through(self.after, held.append)) is None:
            return False
        value = "".join(held)
        give(from_text(value.removeprefix("\n").removesuffix("\n") if self.lines else value, types))
        return True


class _Lines:
    """Pieces of a text as parts of a string of JSON, without the line breaks around it where it has lines of its own."""

    def __init__(self, give: Callable[[str], None], lines: bool) -> None:
        self._give, self._lines = give, lines
        self._is_first, self._held = True, ""

    def add(self, piece: str) -> None:
        if self._lines:
            if self._is_first:
                piece = piece.removeprefix("\n")
            piece = self._held + piece
            self._held = "\n" if piece.endswith("\n") else ""
            piece = piece.removesuffix("\n")
        self._is_first = False
        if piece:
            self._give(quoted(piece)[1:-1])


@dataclass(frozen=True)
class Addressed:
    """Messages in channels, of which those to a function are calls: `channels.read_channels` reads the whole answer."""

    def read(self, scanner: Scanner, calls: Calls, parameters: Parameters) -> Reading:
        yield from read_channels(scanner, calls, True)
        return True


@dataclass(frozen=True)
class Literal:
    """Arguments that are JSON only at their end: `name{key:value}`, or a list of `name(key=value)`, up to the mark `close`.

    quotes  the mark around texts, within which `close` means nothing; None: quotes are Python's
    """

    close: str
    quotes: str | None = None

    def read(self, scanner: Scanner, calls: Calls, parameters: Parameters) -> Reading:
        whole: list[str] = []
        marks = Marks([self.close] if self.quotes is None else [self.close, self.quotes])
        in_quotes = False
        while True:
            mark = yield from scanner.through(marks, whole.append)
            if mark is None:
                return False
            if mark == self.close and not in_quotes:
                break
            whole.append(mark)
            in_quotes ^= mark == self.quotes
        found = _literal_calls("".join(whole))
        for name, arguments in found:
            calls.begin(name)
            calls.add(arguments)
            calls.end()
        return bool(found)


_OPENED: Final = re.compile(rf"[\s\[,]*(?:call:)?({_NAME})\s*([({{])")
_PARTS: Final = re.compile(r"""<\|"\|>.*?<\|"\|>|'(?:[^'\\]|\\.)*(?:'|\\?\Z)|"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[\[({\])}]""", re.DOTALL)
"""A text without its end goes on to the end of all: one that were looked for again from each quote within would take for ever."""


def _literal_calls(text: str) -> list[tuple[str, str]]:
    """Names and arguments; empty where the text is no list of calls."""
    found: list[tuple[str, str]] = []
    at = 0
    while (head := _OPENED.match(text, at)) is not None:
        depth, end = 1, head.end()
        while depth and (part := _PARTS.search(text, end)) is not None:
            depth += (part[0] in "[({") - (part[0] in "])}")
            end = part.end()
        arguments = from_literal("{" + text[head.end() : end - 1] + "}") if not depth else None
        if arguments is None:
            return []
        found.append((head[1], arguments))
        at = end
    return found if not text[at:].strip(" \n\t]") else []


_CALLED: Final = re.compile(rf"[\s\[,]*(?:(?P<name>{_NAME})\s*\(|\])")
_STRUCTURE: Final = {"": re.compile(r"""['"\[({\])}]"""), "'": re.compile(r"['\\]"), '"': re.compile(r'["\\]')}
"""Characters that count outside a text, and within one, by its quote."""


@dataclass(frozen=True)
class Pythonic:
    """A list of `name(key=value)`; each call is known at its end."""

    def read(self, scanner: Scanner, calls: Calls, parameters: Parameters) -> Reading:
        count = 0
        while (head := (yield from scanner.take(_CALLED))) is not None and head["name"] is not None:
            held = list[str]()
            is_whole = yield from _within(scanner, held.append)
            members = "".join(held)
            arguments = from_literal("{" + members[:-1] + "}") if is_whole else None
            if arguments is None:
                if count:  # else the caller gives out all that was read
                    calls.say(head[0] + members)
                break
            count += 1
            calls.begin(head["name"])
            calls.add(arguments)
            calls.end()
        return count > 0


def _within(scanner: Scanner, sink: Callable[[str], None]) -> Reading:
    """Gives the text to `sink`, up to the bracket that closes the one before it; False where there is none."""
    depth, quote = 1, ""
    while True:
        found = _STRUCTURE[quote].search(scanner.text, scanner.at)
        end = len(scanner.text) if found is None else found.end()
        if found is not None and found[0] == "\\":
            end = found.start() if end == len(scanner.text) else end + 1
        piece, scanner.at = scanner.text[scanner.at : end], end
        sink(piece)
        if found is None or end == found.start():
            if scanner.is_closed:
                return False
            yield
        elif found[0] in "'\"":
            quote = "" if quote else found[0]
        elif found[0] != "\\":
            depth += 1 if found[0] in "[({" else -1
            if not depth:
                return True


_MARK: Final = Marks([">>>"])
_RECIPIENT: Final = re.compile(rf"({_NAME})\n")
_BEGUN: Final = re.compile(r"[\w.:/-]{0,128}")
_OBJECT: Final = re.compile(r"\s*(?=\{)")


@dataclass(frozen=True)
class Recipients:
    """A whole answer of messages with `>>>` between them, each with a line that names its recipient: `all`, or a tool, which is called with
    JSON. calls: False: what is said to tools is text."""

    calls: bool = True

    def read(self, scanner: Scanner, calls: Calls, parameters: Parameters) -> Reading:
        mark: str | None = ""
        while mark is not None:
            to = yield from _recipient(scanner)
            if to is None:
                calls.say(mark)
            elif self.calls and to[1] != "all" and (yield from scanner.take(_OBJECT)) is not None:
                calls.begin(to[1])
                if (yield from scanner.value(calls.add)):
                    calls.end()
            elif to[1] != "all":
                calls.say(mark + to[0])
            mark = yield from scanner.through(_MARK, calls.say)
        return True


def _recipient(scanner: Scanner) -> Generator[None, None, re.Match[str] | None]:
    """The line that begins here and names a recipient; None: there is none."""
    while True:
        found = _RECIPIENT.match(scanner.text, scanner.at)
        if found is not None:
            scanner.at = found.end()
        elif not scanner.is_closed and _BEGUN.fullmatch(scanner.text, scanner.at):
            yield
            continue
        return found
