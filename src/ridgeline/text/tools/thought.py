"""Reasoning in grammars of answers: free text up to the mark that ends it, then what must follow.

So a model that reasons does so before the form that a client asks for, and not within it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ridgeline.text.tools.lark import Lark

JSON: Final = ("json", "json_object")
"""Kinds of structured outputs that are JSON of a schema."""
KINDS: Final = (*JSON, "regex", "choice", "grammar")
"""Those that may stand behind reasoning; a structural tag has free text itself."""
INNER: Final = "form"
"""Name of a grammar that stands behind reasoning, where it is one of its own."""


@dataclass(frozen=True, slots=True)
class Reasoned:
    """A structured output behind reasoning: plain data, for the process that makes grammars.

    kind, value  what it is, as `core.params.StructuredOutputs` has it
    whitespace   between tokens of JSON; None: the default
    thought  marks around the reasoning
    thinks   the prompt has begun it; else it may come
    control  names of marks that are control tokens → ids
    free     control tokens that the reasoning may have, as ranges [first, last]
    """

    kind: str
    value: Any
    whitespace: str | None
    thought: Sequence[str]
    thinks: bool
    control: Mapping[str, int]
    free: Sequence[Sequence[int]] = ()


def free_text(lark: Lark, ranges: Sequence[Sequence[int]]) -> str:
    """Any text, with the control tokens of these ranges."""
    listed = ",".join(f"{low}-{high}" if high > low else f"{low}" for low, high in ranges)
    return f"({lark.anything()}{f' | <[{listed}]>' if listed else ''})*"


def behind_thought(lark: Lark, thought: Sequence[str], free: str, rest: str, *, thinks: bool, must: bool) -> str:
    """`rest` behind reasoning. must: it comes; else an answer may be reasoning alone."""
    begin, end = thought
    behind = f"{lark.until(end)} {lark.space()} {lark.rule(rest)}"
    inner = f"{free} {behind}" if must else f"{free} ({behind})?"
    if thinks:
        return inner
    first = f"{lark.space()} {lark.text(begin)}" if lark.has(begin) else lark.first(begin.strip())
    return f"{first} {inner} | {rest}"


def reasoned_to_lark(form: Reasoned, whitespace: str) -> str:
    """The grammar; what is no JSON stands in one of its own, `INNER`. Raises Unsupported."""
    lark = Lark(form.control, form.whitespace or whitespace)
    rest = f"@{INNER}"
    if form.kind in JSON:
        rest = lark.json({"type": "object"} if form.kind == "json_object" else form.value)
    return lark.whole(behind_thought(lark, form.thought, free_text(lark, form.free), rest, thinks=form.thinks, must=True))
