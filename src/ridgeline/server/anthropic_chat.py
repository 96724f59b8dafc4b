"""A request in Anthropic's dialect as a chat: its turns, tools, thinking and form of output in the terms that templates and grammars have.

Owns what each type of block means, and what is refused of it. What a chat means is `server.chat`'s.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

from ridgeline.server import anthropic, wire
from ridgeline.server.errors import ApiError
from ridgeline.server.notes import Notes
from ridgeline.server.spoken import unwrapped
from ridgeline.server.targets import NAMES as TARGETS
from ridgeline.text.chat import ChatTemplate
from ridgeline.text.chat_content import MAX_MESSAGES

BILLING: Final = re.compile(r"^x-anthropic-billing-header:.*\n?", re.MULTILINE)
"""A line that some clients write into the system text. It differs from request to request: no prefix of a prompt would be found again."""
CLEARS_THINKING: Final = "clear_thinking_20251015"
"""Edit of a context that clients send with every request: templates leave out old reasoning by themselves."""
_USER: Final = ("user", "ctx", "msg")
_OF_ONE_ROLE: Final = {"tool_result": "user", "tool_use": "assistant", "thinking": "assistant", "redacted_thinking": "assistant"}
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}


@dataclass(frozen=True, slots=True)
class _Turn:
    """Blocks of one role, in the order of its blocks. results: messages with results of tools, which stand before the texts."""

    role: str
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[wire.ToolCall] = field(default_factory=list)
    results: list[wire.ChatMessage] = field(default_factory=list)

    def add(self, other: "_Turn") -> None:
        """Appends what the same role said next."""
        for own, new in zip(self._columns(), other._columns(), strict=True):
            own += new

    def _columns(self) -> tuple[list[Any], ...]:
        return self.texts, self.thoughts, self.calls, self.results


def as_chat(payload: anthropic.CountTokensRequest, template: ChatTemplate | None, notes: Notes) -> wire.ChatCompletionRequest:
    """The same as a chat. Turns of one role that follow each other are one message; what has no effect is noted.

    Raises ApiError for blocks and tools that are not taken here, and for what is none.
    """
    messages = None if payload.messages is None else list(_messages(payload.messages))
    if messages is not None and (system := _system_texts("system", payload.system or "")):
        messages = [wire.ChatMessage("system", _joined(system)), *messages]
    options = payload if isinstance(payload, anthropic.MessagesRequest) else anthropic.MessagesRequest()
    numbers: dict[str, Any] = {name: getattr(options, name) for name in ("max_tokens", "temperature", "top_p", "top_k", *TARGETS)}
    if options.max_tokens is None:
        del numbers["max_tokens"]
    edits = (payload.context_management or {}).get("edits")
    if isinstance(edits, list) and any(not isinstance(each, dict) or each.get("type") != CLEARS_THINKING for each in edits):
        notes.ignore("context_management", "no turns are left out here; the template decides which reasoning it keeps")
    choice = payload.tool_choice or anthropic.ToolChoice("auto")
    config = payload.output_config or anthropic.OutputConfig()
    form = config.format or payload.output_format
    return wire.ChatCompletionRequest(
        messages=messages,
        continue_final_message=_is_continued(messages or ()),
        stop=options.stop_sequences,
        tools=[_tool(at, each) for at, each in enumerate(payload.tools or ())] or None,
        tool_choice=_choice(choice) if payload.tool_choice is not None else None,
        parallel_tool_calls=False if choice.disable_parallel_tool_use else None,
        response_format=None if form is None else {"type": "json_schema", "json_schema": {"name": "output", "schema": form.schema}},
        **_thinking(payload.thinking, config.effort, template, notes),
        **numbers,
    )


# ── turns ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _messages(given: Sequence[anthropic.InputMessage]) -> Iterator[wire.ChatMessage]:
    if not 0 < len(given) <= MAX_MESSAGES:
        raise ApiError("invalid_value", f"messages has {len(given)}; send 1 to {MAX_MESSAGES}", param="messages")
    names: dict[str, str] = {}
    turns = [_turn(f"messages[{at}].content", each, names) for at, each in enumerate(given)]
    turns = [turn for turn in turns if turn.role != "system" or turn.texts]
    joined: list[_Turn] = []
    for _, same in groupby(turns, lambda turn: turn.role):
        first, *rest = same
        for each in rest:
            first.add(each)
        joined.append(first)
    for turn in _results_behind_calls(joined):
        yield from _told(turn)


def _turn(where: str, message: anthropic.InputMessage, names: dict[str, str]) -> _Turn:
    """One message. names: id of a call → its function, of all messages so far."""
    if message.role == "system":
        return _Turn("system", _system_texts(where, message.content))
    turn = _Turn("user" if message.role in _USER else "assistant")
    blocks = [anthropic.InputBlock("text", message.content)] if isinstance(message.content, str) else message.content
    for at, block in enumerate(blocks):
        place = f"{where}[{at}]"
        if turn.role == "user" and block.type == "tool_result":
            turn.results.append(_result(place, block, names))
        elif turn.role == "assistant" and block.type == "tool_use":
            turn.calls.append(_call(place, block, names))
        elif turn.role == "assistant" and block.type in ("thinking", "redacted_thinking"):
            thought = block.thinking or unwrapped(block.signature or "")
            turn.thoughts.extend([thought] if thought else [])
        elif block.type in _OF_ONE_ROLE:
            owner = _OF_ONE_ROLE[block.type]
            raise ApiError("invalid_value", f"{place}: a {block.type} stands in a turn of the {owner}", param="messages")
        else:
            turn.texts.append(_text(place, block))
    return turn


def _system_texts(where: str, content: str | list[anthropic.InputBlock]) -> list[str]:
    """Texts of instructions without lines about billing, and without what is empty then."""
    texts = [content] if isinstance(content, str) else [_text(f"{where}[{at}]", each) for at, each in enumerate(content)]
    return [text for text in (BILLING.sub("", each) for each in texts) if text]


def _text(place: str, block: anthropic.InputBlock) -> str:
    """The text of a block that is one, of a document, of a result of a search, or the name of a tool that was found."""
    param = place.partition("[")[0]
    text = block.text
    if block.type in ("document", "search_result"):
        texts = [block.title, *_document_texts(place, block)]
        text = "\n".join(each for each in texts if each)
    elif block.type == "tool_reference":
        text = block.tool_name
    elif block.type != "text":
        kind = block.type if re.fullmatch(r"[a-z_]{1,64}", block.type) else "this type"
        raise ApiError("unsupported_parameter", f"{place}: blocks of {kind} are not supported here; send text", param=param)
    if text is None:
        raise ApiError("missing_field", f"{place} has no text", param=param)
    return text


def _document_texts(place: str, block: anthropic.InputBlock) -> list[str]:
    """The texts of a document, or of a result of a search."""
    source = block.source if isinstance(block.source, dict) else {}
    if block.type == "search_result" and isinstance(block.content, list):
        return [_text(f"{place}.content[{at}]", each) for at, each in enumerate(block.content)]
    data = source.get("data") if source.get("type") == "text" else None
    if not isinstance(data, str):
        message = f"{place}: of documents only those with a source of type text are supported here; send text"
        raise ApiError("unsupported_parameter", message, param=place.partition("[")[0])
    return [data]


def _call(place: str, block: anthropic.InputBlock, names: dict[str, str]) -> wire.ToolCall:
    if not block.id or not block.name:
        raise ApiError("missing_field", f"{place}: a tool_use needs id and name", param="messages")
    names[block.id] = block.name
    arguments = json.dumps(block.input or {}, ensure_ascii=False)
    return wire.ToolCall(wire.FunctionCall(block.name, arguments), block.id, "function")


def _result(place: str, block: anthropic.InputBlock, names: dict[str, str]) -> wire.ChatMessage:
    if not block.tool_use_id:
        raise ApiError("missing_field", f"{place}: a tool_result needs the tool_use_id of its call", param="messages")
    content = block.content or ""
    texts = [content] if isinstance(content, str) else [_text(f"{place}.content[{at}]", each) for at, each in enumerate(content)]
    text = "\n".join(texts)
    if block.is_error and "error" not in text[:64].lower():
        text = f"Error: {text}"
    return wire.ChatMessage("tool", text, names.get(block.tool_use_id), tool_call_id=block.tool_use_id)


def _results_behind_calls(turns: list[_Turn]) -> list[_Turn]:
    """The turns, with instructions that stand between calls and their results behind the results."""
    found = list(turns)
    for at in range(len(found) - 2):
        call, between, result = found[at : at + 3]
        if call.calls and between.role == "system" and result.results:
            found[at + 1 : at + 3] = [result, between]
    return found


def _told(turn: _Turn) -> Iterator[wire.ChatMessage]:
    """The messages of a turn."""
    yield from turn.results
    if turn.role == "assistant":
        content = _joined([text for text in turn.texts if text]) if any(turn.texts) else None if turn.calls else ""
        thought = "\n".join(turn.thoughts) or None
        yield wire.ChatMessage("assistant", content, tool_calls=turn.calls or None, reasoning_content=thought)
    elif any(turn.texts) or not turn.results:
        yield wire.ChatMessage(turn.role, _joined(turn.texts))


def _joined(texts: Sequence[str]) -> str | list[wire.ContentPart]:
    """One text stays a text: templates that walk over parts and those that do not read it alike."""
    return "".join(texts) if len(texts) < 2 else [wire.ContentPart("text", text) for text in texts]


def _is_continued(messages: Sequence[wire.ChatMessage]) -> bool:
    """True if the last turn is the assistant's. Raises ApiError where it cannot be continued."""
    if not messages or messages[-1].role != "assistant":
        return False
    if messages[-1].tool_calls:
        raise ApiError("invalid_value", "messages ends with a tool_use; send its tool_result behind it", param="messages")
    return True


# ── tools, thinking ─────────────────────────────────────────────────────────────────────────────────────────────────


def _tool(at: int, tool: anthropic.ToolDefinition) -> wire.Tool:
    if tool.input_schema is None:
        if tool.type in (None, "custom"):
            raise ApiError("missing_field", f"tools[{at}] has no input_schema; send a JSON Schema of type object", param="tools")
        kind = tool.type if re.fullmatch(r"[a-z0-9_]{1,64}", tool.type or "") else "a type"
        message = (
            f"tools[{at}] is {kind}, which Anthropic's servers or models define; this server has tools of the client's alone: "
            "describe it with name, description and input_schema, or leave it out"
        )
        raise ApiError("unsupported_parameter", message, param="tools")
    return wire.Tool("function", wire.FunctionDefinition(tool.name, tool.description, tool.input_schema, tool.strict))


def _choice(choice: anthropic.ToolChoice) -> str | dict[str, Any]:
    if choice.type != "tool":
        return _CHOICES[choice.type]
    if not choice.name:
        raise ApiError("missing_field", "tool_choice of type tool has no name; send the name of a tool", param="tool_choice")
    return {"type": "function", "function": {"name": choice.name}}


def _thinking(config: anthropic.ThinkingConfig | None, effort: str | None, template: ChatTemplate | None, notes: Notes) -> dict[str, Any]:
    """Fields of a chat for how the model is to think: clients ask it of every model, so what a template does not read has no effect."""
    variables = template.variables if template is not None and template.is_usable else ()
    found: dict[str, Any] = {}
    if config is not None:
        found["thinking"] = wire.ThinkingOptions(config.type, config.budget_tokens)
        if config.type != "disabled" and template is not None and template.reasoning is None:
            notes.ignore("thinking", "this model does not think")
    if effort is not None:
        if "reasoning_effort" in variables:
            found["reasoning_effort"] = effort
        else:
            notes.ignore("output_config.effort", "this model's chat template does not read it")
    return found
