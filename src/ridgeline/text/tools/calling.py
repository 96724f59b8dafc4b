"""Calls and reasoning of one chat: what may be called, how the answer is read, and the grammar that it follows.

Owns what a choice of tools means, for the server and for `LLM` alike. Forms of calls are `families`', what hears an answer `hearing`'s.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from ridgeline.errors import RequestError
from ridgeline.text.chat import ChatTemplate
from ridgeline.text.structured import Asked, kind_of
from ridgeline.text.tokenizer import Tokenizer
from ridgeline.text.tools.families import Family
from ridgeline.text.tools.forms import Recipients
from ridgeline.text.tools.grammar import CallForm
from ridgeline.text.tools.hearing import Reading
from ridgeline.text.tools.marks import begins_reasoning, tail
from ridgeline.text.tools.thought import JSON, KINDS, Reasoned

MAX_NAME: Final = 128
NAME: Final = re.compile(rf"[A-Za-z0-9_.-]{{1,{MAX_NAME}}}")
"""Names of tools: OpenAI's letters and the dot that many tools have, as long as Anthropic allows."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that may be called. parameters: a JSON Schema; None: it has none. strict: what of it cannot be followed is refused."""

    name: str
    parameters: Mapping[str, Any] | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Offer:
    """Tools that a request offers, in no dialect's terms.

    choice    how they may be called; a function that must be called: `required` and its name in `names`
    names     the tools that may be called; None: all
    parallel  more than one call is given
    """

    tools: Sequence[Tool] = ()
    choice: Literal["auto", "none", "required"] = "auto"
    names: Collection[str] | None = None
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class Choice:
    """Tools that may be called.

    family   None, if nothing may
    forced   tools of which one must be called; empty: the model decides
    several  more than one call may be made
    tools    all that may be called
    control_ids  the tokenizer's control tokens, as ranges [first, last]
    """

    family: Family | None
    forced: Sequence[Tool] = ()
    several: bool = False
    tools: Sequence[Tool] = ()
    control_ids: Sequence[tuple[int, int]] = ()


def read_offer(tools: Sequence[Tool], asked: Any, parallel: bool) -> Offer:
    """An offer whose `tool_choice` a client wrote as OpenAI's API has it. Raises RequestError for one that is none."""
    if isinstance(asked, Mapping):
        allowed = asked.get("allowed_tools") if asked.get("type") == "allowed_tools" else None
        mode: Any = allowed.get("mode") if isinstance(allowed, Mapping) else "required"
        entries = allowed.get("tools") if isinstance(allowed, Mapping) else [asked]
        names = [_function_name(each) for each in entries] if isinstance(entries, list) else [None]
        if names and None not in names and mode in ("auto", "required"):
            return Offer(tools, mode, frozenset(map(str, names)), parallel)
    elif asked is None or asked in ("auto", "none", "required"):
        return Offer(tools, asked or "auto", None, parallel)
    raise RequestError("tool_choice is none of auto, none, required, and names no function", param="tool_choice")


def _function_name(choice: Any) -> str | None:
    """The name in `{"type": "function", "function": {"name": …}}`; None for anything else."""
    function = choice.get("function") if isinstance(choice, Mapping) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else None


def read_tools(definitions: Sequence[Mapping[str, Any]]) -> list[Tool]:
    """Tools as OpenAI's API describes them. Raises RequestError."""
    found = []
    for at, each in enumerate(definitions):
        function = each.get("function") if isinstance(each, Mapping) and each.get("type", "function") == "function" else None
        name, parameters = (function.get("name"), function.get("parameters")) if isinstance(function, Mapping) else (None, None)
        if not isinstance(name, str) or not isinstance(parameters, Mapping | None):
            raise RequestError(f"tools[{at}] is no function; give type, and function with name and parameters", param="tools")
        found.append(Tool(name, parameters, bool(function and function.get("strict"))))
    return found


def choose(offer: Offer, template: ChatTemplate) -> Choice:
    """The choice of a request. Raises RequestError for tools that are none, and for what this model cannot be held to."""
    tools = _by_name(offer.tools)
    must = offer.choice == "required"
    if (must or offer.names is not None) and not tools:
        message = "tool_choice asks for a call, and there are no tools; send tools, or leave tool_choice out"
        raise RequestError(message, param="tool_choice")
    if offer.names is not None and not tools.keys() >= set(offer.names):
        raise RequestError("tool_choice names a function that tools does not have", param="tool_choice")
    if not tools or offer.choice == "none":
        return Choice(None)
    if template.family is None:
        raise RequestError(
            "the form in which this model writes calls is not known here, so none can be parsed; "
            'send tool_choice: "none" to show the tools to the model and get its answer as text',
            param="tool_choice" if must else "tools", code="unsupported_parameter",
        )  # fmt: skip
    allowed = [tool for name, tool in tools.items() if offer.names is None or name in offer.names]
    is_named = must and offer.names is not None and len(offer.names) == 1
    return Choice(template.family, allowed if must else (), not is_named and offer.parallel, allowed, template.control_ids)


def _by_name(tools: Sequence[Tool]) -> dict[str, Tool]:
    """Tools by their names. Raises RequestError for names that no call can have, and for two of the same."""
    found: dict[str, Tool] = {}
    for at, tool in enumerate(tools):
        if not NAME.fullmatch(tool.name):
            message = f"tools[{at}] needs a name of 1 to {MAX_NAME} letters, digits, dots, dashes and underscores"
            raise RequestError(message, param="tools")
        if tool.name in found:
            raise RequestError(f"tools has two of the name {tool.name}; give each a name of its own", param="tools")
        if (tool.parameters or {}).get("type", "object") not in ("object", ["object"]):
            message = f"tools[{at}].parameters describes no object; send a JSON Schema of type object"
            raise RequestError(message, param="tools")
        found[tool.name] = tool
    return found


def reading(
    offer: Offer,
    choice: Choice,
    template: ChatTemplate,
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    *,
    has_form: bool = False,
    skip_special: bool = True,
    is_told: bool = True,
) -> Reading | None:
    """The reading of answers; None: they are text alone.

    has_form      the client asks for a form of the answer that begins with the first token, without reasoning
    skip_special  texts leave control tokens out
    is_told       the reasoning is given
    """
    thought = None if has_form and not choice.forced else template.reasoning
    family = choice.family
    if family is None and template.family is not None and isinstance(template.family.form, Recipients):
        family = replace(template.family, form=Recipients(calls=False))  # whatever it says has a header
    if family is None and thought is None:
        return None
    end = tail(prompt, tokenizer)
    thinks = thought is not None and end.endswith(thought.begin.rstrip())
    has_thought = thought is not None and end.endswith(thought.end.rstrip())
    marks = [] if family is None else [*family.all_marks]
    marks += [] if thought is None else thought.all_marks
    parameters: dict[str, Mapping[str, Any]] = {}
    for each in offer.tools:
        properties = (each.parameters or {}).get("properties")
        parameters[each.name] = properties if isinstance(properties, dict) else {}
    kept = control_ids(marks, tokenizer) if skip_special else None
    ids = None if thought is None else template.reasoning_ids
    found = None if ids is None else ids.marks
    return Reading(family, thought, parameters, tokenizer, thinks, offer.parallel, kept, has_thought, found, is_told)


def control_ids(marks: Sequence[str], tokenizer: Tokenizer) -> frozenset[int]:
    """Ids of the marks that are control tokens, which a text leaves out unless it is asked for them."""
    ids = [tokenizer.id_of(mark) for mark in marks]
    return frozenset(token for token in ids if token is not None and tokenizer.is_control(token))


def call_grammar(choice: Choice, how: Reading) -> Asked:
    """The grammar of an answer with calls: the family's form around arguments of each tool's schema, perhaps behind reasoning.

    Where no call must come, text is free up to the mark of one.
    """
    family, thought = choice.family, how.reasoning
    assert family is not None, "nothing may be called"
    control = _controls({*family.all_marks, *(() if thought is None else thought.all_marks)}, how.tokenizer)
    tools = [{"name": each.name, "parameters": each.parameters, "strict": each.strict} for each in choice.tools]
    bound = [family.begin, *family.written.marks, *family.inner, *(() if thought is None else thought.all_marks)]
    free = _free(choice.control_ids, bound, control, how.tokenizer)
    must = bool(choice.forced)
    around = None if thought is None or how.has_thought else (thought.begin, thought.end)
    form = CallForm(family.name, tools, must, choice.several, control, free, around, how.thinks)
    return Asked(form, "tools", is_optional=not must and not any(each.strict for each in choice.tools))


def _reasoned(asked: Asked, how: Reading, template: ChatTemplate) -> Asked:
    """The same output behind the reasoning that may come, or that the prompt has begun; `asked` where none does."""
    thought = how.reasoning
    if thought is None or how.has_thought or asked.params is None:
        return asked
    kind, value = kind_of(asked.params, asked.field)
    control = _controls(thought.all_marks, how.tokenizer)
    free = _free(template.control_ids, thought.all_marks, control, how.tokenizer)
    around = (thought.begin, thought.end)
    return Asked(Reasoned(kind, value, asked.params.whitespace_pattern, around, how.thinks, control, free), asked.field)


def _reasons_first(asked: Asked | None, template: ChatTemplate, tokenizer: Tokenizer, prompt: Sequence[int]) -> bool:
    """True for a structured output behind reasoning: JSON where the model may reason, others where the prompt has begun the reasoning."""
    thought = template.reasoning
    if asked is None or asked.params is None or thought is None or thought.in_channels:
        return False
    kind, _ = kind_of(asked.params, asked.field)
    return kind in JSON or (kind in KINDS and begins_reasoning(prompt, thought, tokenizer))


@dataclass(frozen=True, slots=True)
class Form:
    """The form in which an answer is held and heard: `asked` None: it is free; `reading` None: it is text alone."""

    asked: Asked | None
    reading: Reading | None


def form_of(
    offer: Offer,
    asked: Asked | None,
    template: ChatTemplate,
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    *,
    can_follow: bool = True,
    skip_special: bool = True,
    is_told: bool = True,
) -> Form:
    """The form of an answer, of which the client may ask for one too: a call that must be made comes before that. Raises RequestError.

    can_follow    calls that are up to the model may be held to a grammar
    skip_special  texts leave control tokens out
    is_told       the reasoning is given
    """
    choice = choose(offer, template)
    reasons = _reasons_first(asked, template, tokenizer, prompt)
    has_form = asked is not None and asked.field == "response_format" and not reasons
    how = reading(offer, choice, template, tokenizer, prompt, has_form=has_form, skip_special=skip_special, is_told=is_told)
    if how is not None and choice.family is not None and (choice.forced or (asked is None and can_follow)):
        return Form(call_grammar(choice, how), how)
    if how is not None and asked is not None and reasons:
        return Form(_reasoned(asked, how, template), how)
    return Form(asked, how)


def _controls(marks: Collection[str], tokenizer: Tokenizer) -> dict[str, int]:
    """Marks that are control tokens → ids."""
    return {mark: token for mark in marks if (token := tokenizer.id_of(mark)) is not None and tokenizer.is_control(token)}


def _free(
    ranges: Sequence[tuple[int, int]], bound: Collection[str], control: Mapping[str, int], tokenizer: Tokenizer
) -> list[tuple[int, int]]:
    """Control tokens that free text may have: all but ends and those that are `bound` to be marks."""
    return _without(ranges, sorted({*tokenizer.eos_ids, *(control[mark] for mark in bound if mark in control)}))


def _without(ranges: Sequence[tuple[int, int]], ids: Sequence[int]) -> list[tuple[int, int]]:
    """Ranges of ids, both ascending, without some ids."""
    found = []
    for first, last in ranges:
        start = first
        for token in (*(each for each in ids if first <= each <= last), last + 1):
            if start < token:
                found.append((start, token - 1))
            start = token + 1
    return found
