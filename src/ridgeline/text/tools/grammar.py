"""Grammars of answers with calls, made of the rows whose forms parsers read.

Text is free, and so is reasoning, until the mark with which calls begin; from there on the answer is a call of one of the tools, with
arguments of its schema.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ridgeline.text.json_schema import Unsupported
from ridgeline.text.tools.elements import elements
from ridgeline.text.tools.families import FAMILIES, Family
from ridgeline.text.tools.forms import Addressed, Recipients
from ridgeline.text.tools.lark import Lark, quoted
from ridgeline.text.tools.members import members
from ridgeline.text.tools.tags import tags
from ridgeline.text.tools.thought import behind_thought, free_text
from ridgeline.text.tools.written import PLACE

MAX_CALLS: Final = 16
"""Calls in a row."""
_OWN_NAMES: Final = ("additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref")
"""Keywords by which a schema says itself which further names an object has."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """The form of answers with calls: plain data, for the process that makes grammars.

    family   its name
    tools    name, parameters and strict of each tool that may be called
    must     the answer is a call; else calls are up to the model
    several  it may have more than one
    control  names of marks that are control tokens → ids
    free     control tokens that texts may have, as ranges [first, last]
    thought  marks around reasoning that may come; None: none may
    thinks   the prompt has begun the reasoning
    """

    family: str
    tools: Sequence[Mapping[str, Any]]
    must: bool
    several: bool
    control: Mapping[str, int]
    free: Sequence[Sequence[int]] = ()
    thought: Sequence[str] | None = None
    thinks: bool = False


def to_lark(form: CallForm, whitespace: str, loose: Sequence[str] = ()) -> str:
    """The grammar. loose: tools whose schemas are not followed. Raises Unsupported."""
    lark = Lark(form.control, whitespace)
    family = next(each for each in FAMILIES if each.name == form.family)
    answer = _Answer(form, family, lark, loose)
    if isinstance(family.form, Addressed):
        return lark.whole(answer.in_channels())
    return lark.whole(answer.thought(answer.calls() if form.must else answer.optional_calls()))


class _Answer:
    """An answer's parts, as bodies of rules."""

    def __init__(self, form: CallForm, family: Family, lark: Lark, loose: Sequence[str]) -> None:
        self._form, self._family, self._lark, self._loose = form, family, lark, loose
        written = family.written
        self._several = form.several and written.several
        first = written.open or written.calls[0]
        self._begin = family.begin if family.begin and first.startswith(family.begin) else PLACE.split(first)[0]
        """Tokens that begin calls, and are not text."""
        others = [lark.text(mark) for mark in family.drop if mark not in written.marks and lark.has(mark)]
        pieces = " | ".join([free_text(lark, form.free).removesuffix("*"), *others])
        self._free = f"({pieces})*"

    def thought(self, rest: str) -> str:
        """The rest of an answer behind its reasoning. Reasoning ends before calls that must come; else an answer may be reasoning alone."""
        form = self._form
        if form.thought is None:
            return rest
        return behind_thought(self._lark, form.thought, self._free, rest, thinks=form.thinks, must=form.must)

    def in_channels(self) -> str:
        """Messages of reasoning or of text, and at their end a call, or else the answer."""
        lark = self._lark

        def message(header: str, end: str) -> str:
            return f"{lark.text(header)} {self._free} {end}"

        more = lark.until("<|end|>") + " " + lark.text("<|start|>assistant")
        first = " | ".join(message(f"<|channel|>{channel}<|message|>", more) for channel in ("analysis", "commentary"))
        call = " | ".join(self._call(tool, text) for tool in self._form.tools for text in self._family.written.calls)
        last = call if self._form.must else f"{call} | {message('<|channel|>final<|message|>', '')}"
        whole = f"({first})* ({last})"
        return whole if self._form.must or not lark.has("<|channel|>") else f"{whole} | {self._free}"

    def calls(self) -> str:
        """Calls and nothing else."""
        return self._list(self._lark.text(self._begin))

    def optional_calls(self) -> str:
        """Text, in which calls begin where their mark does."""
        lark, free = self._lark, self._free
        if isinstance(self._family.form, Recipients):
            first, more = self._named(lark.first, ""), self._named(lark.until, self._family.written.between)
            return f"{first}? ({free} {more})* {free}" if self._several else f"{first} | {free} {more}?"
        if not self._family.begin:
            tag = "".join(f"{lark.text(mark)}? " for mark in self._family.drop if lark.has(mark))
            return f"{tag}{self._first_list()} | {free}"
        calls = self._list(lark.until(self._begin), lark.until(self._begin))
        return f"({free} {calls})* {free}" if self._several else f"{free} ({calls})?"

    def _first_list(self) -> str:
        """Calls at the beginning of an answer, without a mark: what their form begins with, or, of a list, that and the name of a tool."""
        written = self._family.written
        if not written.open:
            return self._list(self._lark.first(self._begin))
        return f"{self._named(self._lark.first, written.open)} {self._more()} {self._filled(written.close)}"

    def _named(self, lead: Callable[[str], str], before: str) -> str:
        """A call that begins with the name of its tool, which `lead` finds."""
        (text,) = self._family.written.calls
        mark = PLACE.split(text.removeprefix("‹name›"))[0]
        rest = text.removeprefix(f"‹name›{mark}")
        each = [f"{lead(before + tool['name'] + mark)} {self._call(tool, rest)}" for tool in self._form.tools]
        return self._lark.rule(" | ".join(each))

    def _each(self) -> str:
        """A call of any tool."""
        return self._lark.rule(" | ".join(f"{self._call(tool, text)}" for tool in self._form.tools for text in self._texts()))

    def _more(self) -> str:
        """The calls of a list behind its first."""
        between = self._filled(self._family.written.between)
        return f"({between} {self._each()}){{0,{MAX_CALLS - 1}}}" if self._several else ""

    def _list(self, begin: str, again: str = "") -> str:
        """Calls behind what begins them. again: unless they are a list, each is found in text."""
        written = self._family.written
        call, between, most = self._each(), self._filled(written.between), MAX_CALLS - 1
        if written.open:
            return f"{begin} {self._filled(written.open[len(self._begin) :])} {call} {self._more()} {self._filled(written.close)}"
        if again or not self._several:
            return f"{begin} {call}"
        return f"{begin} {call} ({between} {begin} {call}){{0,{most}}}"

    def _texts(self) -> list[str]:
        """Ways to write a call, without what begins calls."""
        written = self._family.written
        return [text if written.open else text.removeprefix(self._begin) for text in written.calls]

    def _filled(self, text: str, fill: Callable[[str], str] = lambda place: "") -> str:
        """A text with what stands in its places."""
        lark, made = self._lark, []
        for at, part in enumerate(PLACE.split(text)):
            if at % 2 == 0:
                made.append(lark.text(part))
            elif part == "s":
                made.append(lark.space())
            else:
                made.append('" "?' if part == " " else fill(part))
        return " ".join(filter(None, made))

    def _call(self, tool: Mapping[str, Any], text: str) -> str:
        """A call of a tool."""
        schema, family, lark = _closed(tool["parameters"]), self._family, self._lark
        is_loose, is_strict = tool["name"] in self._loose, bool(tool["strict"])

        def fill(place: str) -> str:
            if place == "name":
                return quoted(tool["name"])
            if place == "number":
                return lark.rule("/[0-9]{1,4}/")
            if place == "id":
                return lark.rule("/[A-Za-z0-9_-]{9,32}/")
            if place == "json":
                return lark.json({"type": "object"} if is_loose else schema)
            if place == "elements":
                return elements(lark, {} if is_loose else schema, family.written.parameter, is_strict and not is_loose)
            if place == "tags":
                return tags(lark, {} if is_loose else schema, family.written.parameter, is_strict)
            return members(lark, {} if is_loose else schema, family.written.literal)

        return self._filled(text, fill)


def _closed(schema: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """A tool's parameters, which are all that it has where they do not say otherwise."""
    if schema is None:
        schema = {"properties": {}}
    if schema.get("type", "object") not in ("object", ["object"]):
        raise Unsupported("parameters of a tool are an object")
    is_open = "properties" not in schema or any(word in schema for word in _OWN_NAMES)
    return {**schema, "type": "object"} if is_open else {**schema, "type": "object", "additionalProperties": False}
