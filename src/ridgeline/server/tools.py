"""Tools of a chat: what a client chose, how the answer is read, and the grammar of an answer that must be a call.

Owns `tool_choice` and `parallel_tool_calls`. Forms of calls are `text.tools`'s, the bodies of answers `server.spoken`'s.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ridgeline.core.params import StructuredOutputs
from ridgeline.server import wire
from ridgeline.server.errors import ApiError
from ridgeline.server.spoken import Reading
from ridgeline.server.structured import Asked
from ridgeline.text.chat import ChatTemplate
from ridgeline.text.tokenizer import Tokenizer
from ridgeline.text.tools.families import Family

MAX_CALLS: Final = 16
"""Calls of an answer that must have some."""
TAIL_TOKENS: Final = 16
"""Tokens of a prompt's end that tell whether it has begun the reasoning."""
_WHITESPACE: Final = r" ?"


@dataclass(frozen=True, slots=True)
class Choice:
    """What may be called. family: None, if nothing may. forced: tools of which one must be called; empty: the model decides."""

    family: Family | None
    forced: Sequence[wire.FunctionDefinition] = ()
    several: bool = False


def choose(payload: wire.ChatCompletionRequest, template: ChatTemplate) -> Choice:
    """The choice of a body. Raises ApiError for one that is none, or that this model cannot be held to."""
    tools = {each.function.name: each.function for each in payload.tools or ()}
    named = _named(payload.tool_choice)
    if named is None and payload.tool_choice not in (None, "none", "auto", "required"):
        raise ApiError("invalid_value", "tool_choice is none of auto, none, required, and names no function", param="tool_choice")
    must = named is not None or payload.tool_choice == "required"
    if must and not tools:
        message = "tool_choice asks for a call, and there are no tools; send tools, or leave tool_choice out"
        raise ApiError("invalid_value", message, param="tool_choice")
    if not tools or payload.tool_choice == "none":
        return Choice(None)
    if template.family is None:
        raise ApiError(
            "unsupported_parameter",
            "the form in which this model writes calls is not known here, so none can be parsed; "
            'send tool_choice: "none" to show the tools to the model and get its answer as text',
            param="tool_choice" if must else "tools",
        )
    if not must:
        return Choice(template.family)
    if named is not None and named not in tools:
        raise ApiError("invalid_value", "tool_choice names a function that tools does not have", param="tool_choice")
    if payload.use_beam_search:
        raise ApiError("invalid_value", "tool_choice has no effect on a beam search; leave it out", param="tool_choice")
    several = named is None and payload.parallel_tool_calls is not False and bool(template.family.begin)
    return Choice(template.family, [*tools.values()] if named is None else [tools[named]], several)


def _named(choice: str | dict[str, Any] | None) -> str | None:
    """The name of the function that must be called."""
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def reading(
    payload: wire.ChatCompletionRequest, choice: Choice, template: ChatTemplate, tokenizer: Tokenizer, prompt: Sequence[int]
) -> Reading | None:
    """How answers are read; None: they are text alone. A form that a client asks for begins with the first token, without reasoning."""
    has_form = payload.response_format is not None and payload.response_format.get("type") != "text"
    thought = None if has_form and not choice.forced else template.reasoning
    family = choice.family
    if family is None and thought is None:
        return None
    thinks = thought is not None and tokenizer.decode(prompt[-TAIL_TOKENS:], skip_special=False).rstrip().endswith(thought.begin.rstrip())
    marks = [] if family is None else [*family.marks, *family.inner]
    marks += [] if thought is None else [thought.begin, thought.end]
    parameters: dict[str, Mapping[str, Any]] = {}
    for each in payload.tools or ():
        properties = (each.function.parameters or {}).get("properties")
        parameters[each.function.name] = properties if isinstance(properties, dict) else {}
    kept = None if payload.skip_special_tokens is False else control_ids(marks, tokenizer)
    return Reading(family, thought, parameters, tokenizer, thinks, payload.parallel_tool_calls is not False, kept)


def control_ids(marks: Sequence[str], tokenizer: Tokenizer) -> frozenset[int]:
    """Ids of the marks that are control tokens, which a text leaves out unless it is asked for them."""
    ids = [tokenizer.id_of(mark) for mark in marks]
    return frozenset(token for token in ids if token is not None and tokenizer.is_control(token))


def call_grammar(choice: Choice, how: Reading) -> Asked:
    """The grammar of an answer that is a call: the family's form around arguments of the tool's own schema, perhaps behind reasoning.

    Raises ApiError where the family's form cannot be held to.
    """
    family = choice.family
    if family is None or family.call is None or how.kept:
        message = 'this model\'s form of calls cannot be enforced here; send tool_choice: "auto"'
        raise ApiError("unsupported_parameter", message, param="tool_choice")
    before, behind = family.call
    many = f' ("\\n" call){{0,{MAX_CALLS - 1}}}' if choice.several else ""
    rules = [f"start: {'thought ' if how.thinks else ''}call{many}"]
    if how.thinks and how.reasoning is not None:
        rules.append(f"thought[lazy]: /(?s:.*){_pattern(how.reasoning.end)}\\n\\n/")
    rules.append("call: " + " | ".join(f"call_{at}" for at in range(len(choice.forced))))
    for at, tool in enumerate(choice.forced):
        schema = {"type": "object", **(tool.parameters or {}), "x-guidance": {"whitespace_pattern": _WHITESPACE, "lenient": False}}
        rules.append(f"call_{at}: {_quoted(before.replace('NAME', tool.name))} arguments_{at} {_quoted(behind)}")
        rules.append(f"arguments_{at}: %json {json.dumps(schema)}")
    return Asked(StructuredOutputs(grammar="\n".join(rules)), "tools")


def _quoted(text: str) -> str:
    """A text as Lark writes it."""
    return json.dumps(text, ensure_ascii=False)


def _pattern(text: str) -> str:
    """A text as a regular expression of Lark's."""
    return "".join(letter if letter.isalnum() else f"\\{letter}" for letter in text)
