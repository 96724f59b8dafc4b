"""Tools of a chat: what a client chose, how the answer is read, and the grammar of an answer that must be a call.

Owns `tool_choice` and `parallel_tool_calls`. Forms of calls are `text.tools`'s, the bodies of answers `server.spoken`'s.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from ridgeline.server import wire
from ridgeline.server.errors import ApiError
from ridgeline.server.spoken import Reading
from ridgeline.server.structured import Asked
from ridgeline.text.chat import ChatTemplate
from ridgeline.text.tokenizer import Tokenizer
from ridgeline.text.tools.families import Family
from ridgeline.text.tools.forms import Recipients
from ridgeline.text.tools.grammar import CallForm
from ridgeline.text.tools.marks import tail
from ridgeline.text.tools.thought import ReasonedJson

MAX_NAME: Final = 128
NAME: Final = re.compile(rf"[A-Za-z0-9_.-]{{1,{MAX_NAME}}}")
"""Names of tools: OpenAI's letters and the dot that many tools have, as long as Anthropic allows."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Tools that a request offers, in no dialect's terms.

    choice    how they may be called; a function that must be called: `required` and its name in `names`
    names     the tools that may be called; None: all
    parallel  more than one call is given
    """

    tools: Sequence[wire.FunctionDefinition] = ()
    choice: Literal["auto", "none", "required"] = "auto"
    names: Collection[str] | None = None
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class Choice:
    """What may be called.

    family   None, if nothing may
    forced   tools of which one must be called; empty: the model decides
    several  more than one call may be made
    tools    all that may be called
    control_ids  the tokenizer's control tokens, as ranges [first, last]
    """

    family: Family | None
    forced: Sequence[wire.FunctionDefinition] = ()
    several: bool = False
    tools: Sequence[wire.FunctionDefinition] = ()
    control_ids: Sequence[tuple[int, int]] = ()


def offered(payload: wire.ChatCompletionRequest) -> Offer:
    """What a chat's body offers. Raises ApiError for a `tool_choice` that is none."""
    tools = [each.function for each in payload.tools or ()]
    parallel, asked = payload.parallel_tool_calls is not False, payload.tool_choice
    if (asked == "required" or isinstance(asked, dict)) and payload.use_beam_search:
        raise ApiError("invalid_value", "tool_choice has no effect on a beam search; leave it out", param="tool_choice")
    if isinstance(asked, dict):
        allowed = asked.get("allowed_tools") if asked.get("type") == "allowed_tools" else None
        mode: Any = allowed.get("mode") if isinstance(allowed, dict) else "required"
        entries = allowed.get("tools") if isinstance(allowed, dict) else [asked]
        names = [_function_name(each) for each in entries] if isinstance(entries, list) else [None]
        if names and None not in names and mode in ("auto", "required"):
            return Offer(tools, mode, frozenset(map(str, names)), parallel)
    elif asked is None or asked in ("auto", "none", "required"):
        return Offer(tools, asked or "auto", None, parallel)  # type: ignore[arg-type]
    message = "tool_choice is none of auto, none, required, and names no function"
    raise ApiError("invalid_value", message, param="tool_choice")


def _function_name(choice: Any) -> str | None:
    """The name in `{"type": "function", "function": {"name": …}}`; None for anything else."""
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def choose(offer: Offer, template: ChatTemplate) -> Choice:
    """The choice of a request. Raises ApiError for tools that are none, and for what this model cannot be held to."""
    tools = _by_name(offer.tools)
    must = offer.choice == "required"
    if (must or offer.names is not None) and not tools:
        message = "tool_choice asks for a call, and there are no tools; send tools, or leave tool_choice out"
        raise ApiError("invalid_value", message, param="tool_choice")
    if offer.names is not None and not tools.keys() >= set(offer.names):
        raise ApiError("invalid_value", "tool_choice names a function that tools does not have", param="tool_choice")
    if not tools or offer.choice == "none":
        return Choice(None)
    if template.family is None:
        raise ApiError(
            "unsupported_parameter",
            "the form in which this model writes calls is not known here, so none can be parsed; "
            'send tool_choice: "none" to show the tools to the model and get its answer as text',
            param="tool_choice" if must else "tools",
        )
    allowed = [tool for name, tool in tools.items() if offer.names is None or name in offer.names]
    is_named = must and offer.names is not None and len(offer.names) == 1
    return Choice(template.family, allowed if must else (), not is_named and offer.parallel, allowed, template.control_ids)


def _by_name(tools: Sequence[wire.FunctionDefinition]) -> dict[str, wire.FunctionDefinition]:
    """Tools by their names. Raises ApiError for names that no call can have, and for two of the same."""
    found: dict[str, wire.FunctionDefinition] = {}
    for at, tool in enumerate(tools):
        if not NAME.fullmatch(tool.name):
            message = f"tools[{at}] needs a name of 1 to {MAX_NAME} letters, digits, dots, dashes and underscores"
            raise ApiError("invalid_value", message, param="tools")
        if tool.name in found:
            raise ApiError("invalid_value", f"tools has two of the name {tool.name}; give each a name of its own", param="tools")
        if (tool.parameters or {}).get("type", "object") not in ("object", ["object"]):
            message = f"tools[{at}].parameters describes no object; send a JSON Schema of type object"
            raise ApiError("invalid_value", message, param="tools")
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
    """How answers are read; None: they are text alone.

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
    tools = [{"name": each.name, "parameters": each.parameters, "strict": bool(each.strict)} for each in choice.tools]
    bound = [family.begin, *family.written.marks, *family.inner, *(() if thought is None else thought.all_marks)]
    free = _free(choice.control_ids, bound, control, how.tokenizer)
    must = bool(choice.forced)
    around = None if thought is None or how.has_thought else (thought.begin, thought.end)
    form = CallForm(family.name, tools, must, choice.several, control, free, around, how.thinks)
    return Asked(form, "tools", is_optional=not must and not any(each.strict for each in choice.tools))


def reasons_first(payload: wire.ChatCompletionRequest, template: ChatTemplate) -> bool:
    """True if the client asks for JSON by `response_format`, of a model that may reason before it."""
    kind = (payload.response_format or {}).get("type")
    return kind in ("json_object", "json_schema") and template.reasoning is not None and not template.reasoning.in_channels


def reasoned(asked: Asked, how: Reading | None, template: ChatTemplate) -> Asked:
    """The same JSON behind the reasoning that may come, or that the prompt has begun; `asked` where none does."""
    outputs, thought = asked.params, None if how is None else how.reasoning
    if how is None or outputs is None or thought is None or how.has_thought:
        return asked
    control = _controls(thought.all_marks, how.tokenizer)
    free = _free(template.control_ids, thought.all_marks, control, how.tokenizer)
    schema = {"type": "object"} if outputs.json is None else outputs.json
    return Asked(ReasonedJson(schema, (thought.begin, thought.end), how.thinks, control, free), asked.field)


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
