"""Detection of a model's family: by what its own template makes of a call, else by marks that the template or the vocabulary names."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from ridgeline.errors import OverloadedError, RequestError
from ridgeline.text.chat_content import Conversation, unmasked
from ridgeline.text.tokenizer import Tokenizer
from ridgeline.text.tools.families import FAMILIES, Family
from ridgeline.text.tools.parser import AnswerParser, CallArguments, CallBegin, CallEnd

_QUESTION: Final = "Where is it?"
_ARGUMENTS: Final = {"place": "Bern", "days": 2}


def find_family(
    render: Callable[[Conversation], str], tools: Sequence[Mapping[str, Any]], templates: Collection[str], tokenizer: Tokenizer
) -> Family | None:
    """The family; None for one that is not in the table. `tools`: definitions, the first of which is called."""
    name = str(tools[0]["function"]["name"])
    user = {"role": "user", "content": _QUESTION}
    call = {"id": "abcdef123", "type": "function", "function": {"name": name, "arguments": json.dumps(_ARGUMENTS)}}
    asked = Conversation([user], tools)
    told = Conversation([user, {"role": "assistant", "content": "", "tool_calls": [call]}], tools, add_generation_prompt=False)
    try:
        prompt, whole = unmasked(render(asked)), unmasked(render(told))
    except (RequestError, OverloadedError):
        prompt, whole = "", ""
    answer = whole.removeprefix(prompt) if whole.startswith(prompt) else whole.rpartition(_QUESTION)[2]
    for family in FAMILIES:
        if _calls(family, answer) == [(name, _ARGUMENTS)]:
            return family
    for family in FAMILIES:
        if family.seen and family.seen.replace("‹name›", name) in answer:
            return family
    if name in answer and f"[tool call: {name}]" not in answer:
        return None  # a form that the table does not have; folded calls (`chat_roles`) are none of the template's
    marked = [each for each in FAMILIES if each.begin]
    for family in marked:
        if any(family.begin in text for text in templates):
            return family
    return next((family for family in marked if tokenizer.id_of(family.begin) is not None), None)


def _calls(family: Family, text: str) -> list[tuple[str, Any]]:
    """The whole calls in a text, with their arguments."""
    parser = AnswerParser(family, None)
    found: list[tuple[str, Any]] = []
    name, arguments = "", list[str]()
    for event in (*parser.push(text), *parser.finish()):
        match event:
            case CallBegin():
                name, arguments = event.name, []
            case CallArguments():
                arguments.append(event.text)
            case CallEnd():
                try:
                    found.append((name, json.loads("".join(arguments))))
                except ValueError:
                    return []
    return found
