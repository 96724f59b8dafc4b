"""What a template does, found by trying it once at load: the shapes that it takes, where an assistant's turn ends, what looks wrong.

Owns the trial conversations and the words of the warnings. Renders through what it is given; holds no process.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

from ridgeline.errors import RequestError
from ridgeline.text.chat_content import Shape
from ridgeline.text.chat_conversation import Conversation
from ridgeline.text.tokenizer import Tokenizer

Render = Callable[[Conversation], str]
"""Raises `RequestError`."""

_USER, _ANSWER, _SYSTEM, _AGAIN = "Zebra crossing", "Quiet harbour", "Amber lantern", "Velvet orbit"
"""Contents that no template writes by itself."""
_PARAMETERS: Final = {"type": "object", "properties": {"place": {"type": "string", "description": "Where."}}, "required": ["place"]}
_TOOLS: Final = ({"type": "function", "function": {"name": "find", "description": "Finds.", "parameters": _PARAMETERS}},)
_FIX: Final = "give the template that belongs to this model with --chat-template FILE"
_SHOWN: Final = 40


@dataclass(frozen=True, slots=True)
class Findings:
    """stop_ids: what ends an assistant's turn. warnings: what looks wrong, with what to do. usable: whether it is worth asking it."""

    stop_ids: frozenset[int]
    warnings: tuple[str, ...]
    usable: bool = True


def find_shape(render: Render) -> Shape:
    """What the template does with the parts of a content and with a tool call's arguments. `render` passes on both as they are."""
    as_text = _tried(render, _turn("user", _USER))
    as_parts = _tried(render, _turn("user", [{"type": "text", "text": _USER}]))
    written_out = any(as_parts.count(key) > as_text.count(key) for key in ("'text'", '"text"'))
    as_object = _tried(render, _turn("user", _USER), _call({"place": _ANSWER}))
    as_string = _tried(render, _turn("user", _USER), _call(f'{{"place": "{_ANSWER}"}}'))
    return Shape(_USER in as_parts and not written_out, object_arguments=_ANSWER in as_object or _ANSWER not in as_string)


def check(render: Render, tokenizer: Tokenizer) -> Findings:
    """Renders a user's, an assistant's and a system's turn and looks for what real files get wrong."""
    try:
        asked = render(Conversation((_turn("user", _USER),), add_generation_prompt=False))
        prompted = render(Conversation((_turn("user", _USER),)))
        answered = render(Conversation((_turn("user", _USER), _turn("assistant", _ANSWER)), add_generation_prompt=False))
    except RequestError as error:
        return _unrendered(render, error)
    warnings = []
    for who, content, text in (("user", _USER, asked), ("assistant", _ANSWER, answered)):
        if content not in text:
            warnings.append(f"the chat template leaves out what the {who} says: {_FIX}")
    system = _tried(render, _turn("system", _SYSTEM), _turn("user", _USER))
    if system and _SYSTEM not in system:
        warnings.append(f"the chat template leaves out system messages without refusing them: {_FIX}, or send none")
    if prompted == asked and not asked.rpartition(_USER)[2].strip():
        warnings.append(f"the chat template writes nothing between a user's turn and the answer, so roles run together: {_FIX}")
    if tokenizer.bos is not None and _ids(prompted, tokenizer).count(tokenizer.bos) > 1:
        warnings.append(f"the chat template begins a prompt with BOS more than once, which models are not trained on: {_FIX}")
    if _ANSWER not in answered:
        return Findings(frozenset(), tuple(warnings))
    followed = _tried(render, _turn("user", _USER), _turn("assistant", _ANSWER), _turn("user", _AGAIN))
    end, between = answered.rpartition(_ANSWER)[2], followed.rpartition(_ANSWER)[2].partition(_AGAIN)[0]
    stop_ids = _turn_end(end, between, tokenizer)
    if not stop_ids and tokenizer.eos_ids.isdisjoint(_ids(end, tokenizer)):
        warnings.append(_no_end(end or between))
    return Findings(stop_ids, tuple(warnings))


def _unrendered(render: Render, error: RequestError) -> Findings:
    """Some templates are for conversations with tools only. One that ran away from a single message is not tried again."""
    if error.code == "template_budget":
        return Findings(frozenset(), (f"a single message cannot be rendered ({error.message}): {_FIX}",), usable=False)
    try:
        render(Conversation((_turn("user", _USER),), tools=_TOOLS))
    except RequestError:
        return Findings(frozenset(), (f"a plain conversation cannot be rendered ({error.message}): {_FIX}",))
    return Findings(frozenset(), (f"only conversations with tools can be rendered ({error.message}): {_FIX}, or send tools",))


def _turn_end(end: str, between: str, tokenizer: Tokenizer) -> frozenset[int]:
    """The token that ends an assistant's turn, given what stands after its content: at the end, and before the next turn.

    What both begin with is the turn's end; where that is nothing, it is what the next turn begins with. EOS goes before other tokens in it.
    """
    at_end, at_next = _ids(end.lstrip(), tokenizer), _ids(between.lstrip(), tokenizer)
    shared = [one for one, other in takewhile(lambda pair: pair[0] == pair[1], zip(at_end, at_next, strict=False))]
    ids = shared or at_end or at_next
    for token in ids:
        if token in tokenizer.eos_ids:
            return frozenset({token})
    for token in ids[:2]:  # some tokenizers put a space first
        name = tokenizer.piece(token).decode("utf-8", "replace")
        tag = len(name) > 2 and name[0] in "<[" and name[-1] in ">]"
        if tag or tokenizer.is_control(token):
            return frozenset({token})
        if name.strip(" ▁"):
            break
    return frozenset()


def _no_end(tail: str) -> str:
    shown = tail.strip()[:_SHOWN]
    what = f"what ends an assistant's turn, {shown!r}, is no single token of this model" if shown else "nothing ends an assistant's turn"
    return f"{what}, so answers may run on: {_FIX}, or send stop strings"


def _ids(text: str, tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode(text, add_bos=False, special=True)


def _tried(render: Render, *messages: dict[str, Any]) -> str:
    """The text, or nothing where the template refuses."""
    try:
        return render(Conversation(messages, add_generation_prompt=False))
    except RequestError:
        return ""


def _turn(role: str, content: object) -> dict[str, Any]:
    return {"role": role, "content": content}


def _call(arguments: object) -> dict[str, Any]:
    function = {"name": "find", "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "call00001", "type": "function", "function": function}]}
