"""Reasoning in grammars of answers: free text up to the mark that ends it, then what must follow.

So a model that reasons does so before the JSON that a client asks for, and not within it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.text.tools.lark import Lark


@dataclass(frozen=True, slots=True)
class ReasonedJson:
    """JSON of a schema, behind reasoning: plain data, for the process that makes grammars.

    thought  marks around the reasoning
    thinks   the prompt has begun it; else it may come
    control  names of marks that are control tokens → ids
    free     control tokens that the reasoning may have, as ranges [first, last]
    """

    schema: Any
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


def json_to_lark(form: ReasonedJson, whitespace: str) -> str:
    """The grammar. Raises Unsupported."""
    lark = Lark(form.control, whitespace)
    return lark.whole(
        behind_thought(lark, form.thought, free_text(lark, form.free), lark.json(form.schema), thinks=form.thinks, must=True)
    )
