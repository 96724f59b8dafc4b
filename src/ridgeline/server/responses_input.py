"""Requests to `/v1/responses` as chats: their items as messages, its tools as functions.

Owns which items and tools there are. Tools that OpenAI runs and that agents offer in every request (web search and the like) are left out
and noted, as an agent works without them; others are refused by name.
"""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
from msgspec import structs

from ridgeline.server import wire
from ridgeline.server.errors import ApiError
from ridgeline.server.notes import Notes
from ridgeline.server.responses_shapes import Item, Part, ResponsesRequest
from ridgeline.server.spoken import unwrapped
from ridgeline.server.targets import NAMES as TARGETS
from ridgeline.text.chat_content import MAX_MESSAGES

LOGPROBS: Final = "message.output_text.logprobs"
THOUGHTS: Final = "reasoning.encrypted_content"
INCLUDABLE: Final = (
    LOGPROBS, THOUGHTS, "code_interpreter_call.outputs", "computer_call_output.output.image_url",
    "file_search_call.results", "message.input_image.image_url", "web_search_call.action.sources", "web_search_call.results",
)  # fmt: skip
"""Names in `include`. All but the first two concern what answers never have."""
LEFT_OUT: Final = ("image_generation", "local_shell", "tool_search", "web_search", "web_search_preview")
"""Types of tools that agents offer in every request."""
MAX_METADATA, MAX_METADATA_NAME, MAX_METADATA_VALUE = 16, 64, 512
_DATED: Final = re.compile(r"_\d{4}_\d{2}_\d{2}$")
_KIND: Final = re.compile(r"[a-z_0-9]{1,64}")
_ITEM_ID: Final = re.compile(r"[a-z]+_([0-9a-f]{32})[0-9a-f]{4}")
_TEXT_PARTS: Final = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_PREFIXES: Final = {
    "message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco", "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}  # fmt: skip
"""Type of an item → beginning of its id."""
_COMMON: Final = (
    *wire.SamplerOptions.__struct_fields__, "model", "parallel_tool_calls", "seed", "stop", "stop_token_ids", "ignore_eos", "min_tokens",
    "logit_bias", "bad_words", "structured_outputs", "chat_template_kwargs", "thinking_token_budget", "priority", *TARGETS,
    "cache_salt",
)  # fmt: skip
"""Fields that mean here what they mean in a chat."""


@dataclass(frozen=True, slots=True)
class Called:
    """A tool as answers name it."""

    kind: Literal["function", "custom"]
    name: str
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a request.

    functions  as the model is told of them
    called     name that the model is told → the tool
    given      the tools as the client sent them, without those that were left out
    """

    functions: list[wire.Tool]
    called: Mapping[str, Called]
    given: list[dict[str, Any]]


def item_id(kind: str, answer: str | None = None, index: int = 0) -> str:
    """A new id for an item of a type. That of an item of an answer tells which answer has it."""
    return f"{_PREFIXES[kind]}_{answer or secrets.token_hex(16)}{index:04x}"


def answer_of(item: Item) -> str | None:
    """The id of the answer that has an item, by the item's id; None where it tells of none."""
    found = _ITEM_ID.fullmatch(item.id or "")
    return f"resp_{found[1]}" if found else None


# ── tools ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Tool(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None


def read_tools(given: Sequence[dict[str, Any]], notes: Notes) -> Tools:
    """The tools of a request. Raises ApiError for those that are refused, or no tools."""
    found = Tools([], {}, [])
    for at, plain in enumerate(given):
        tool = _tool(f"tools[{at}]", plain)
        if _DATED.sub("", tool.type) in LEFT_OUT:
            notes.ignore(f"tools.{tool.type}", "this server runs no tools; the model is not told of this one")
            continue
        found.given.append(plain)
        if tool.type != "namespace":
            _add(found, f"tools[{at}]", tool, None)
            continue
        for inner_at, inner in enumerate(tool.tools or ()):
            where = f"tools[{at}].tools[{inner_at}]"
            _add(found, where, _tool(where, inner), tool.name)
    return found


def _tool(where: str, plain: dict[str, Any]) -> _Tool:
    try:
        return msgspec.convert(plain, _Tool)
    except msgspec.ValidationError as error:
        raise ApiError("invalid_type", f"{where}: {error}", param="tools") from None


def _add(found: Tools, where: str, tool: _Tool, namespace: str | None) -> None:
    if tool.type not in ("function", "custom"):
        kind = tool.type if _KIND.fullmatch(tool.type) else "this type"
        raise ApiError("unsupported_parameter", f"{where}: tools of type {kind} are not supported; send functions", param="tools")
    if not tool.name:
        raise ApiError("missing_field", f"{where} has no name", param="tools")
    flat = flat_name(tool.name, namespace)
    if flat in found.called:
        raise ApiError("invalid_value", f"{where}: two tools have this name; give each a name of its own", param="tools")
    found.called[flat] = Called("custom" if tool.type == "custom" else "function", tool.name, namespace)  # type: ignore[index]
    if tool.type == "function":
        definition = wire.FunctionDefinition(flat, tool.description, tool.parameters, tool.strict)
    else:
        definition = wire.FunctionDefinition(flat, _described(tool), _FREE_INPUT)
    found.functions.append(wire.Tool("function", definition))


_FREE_INPUT: Final = {
    "type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"], "additionalProperties": False
}  # fmt: skip
"""Parameters of a custom tool, as the model is told of it: it takes any text."""


def _described(tool: _Tool) -> str:
    """The description of a custom tool, with the grammar that its input has."""
    form = tool.format or {}
    grammar = form.get("definition")
    if form.get("type") != "grammar" or not isinstance(grammar, str):
        return tool.description or ""
    return f"{tool.description or ''}\n\nThe input has this grammar ({form.get('syntax', 'lark')}):\n{grammar}".lstrip()


def flat_name(name: str, namespace: str | None) -> str:
    """The name by which a model calls a tool: models know no namespaces."""
    return name if namespace is None else f"{namespace.removesuffix('__')}__{name}"


def _tool_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """The choice as chat has it. What is none here is none there."""
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "allowed_tools":
        tools = choice.get("tools")
        allowed = [_tool_choice(each) for each in tools if isinstance(each, dict)] if isinstance(tools, list) else None
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": allowed}}
    name, namespace = choice.get("name"), choice.get("namespace")
    if choice.get("type") not in ("function", "custom") or not isinstance(name, str):
        return choice
    return {"type": "function", "function": {"name": flat_name(name, namespace if isinstance(namespace, str) else None)}}


# ── items ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_items(given: str | list[Item] | None) -> list[Item]:
    """The items of a request, with ids and types. Raises ApiError for what is none."""
    if given is None:
        raise ApiError("missing_field", "input is missing; send a text, or a list of items", param="input")
    items = [Item(role="user", content=given)] if isinstance(given, str) else given
    if not 0 < len(items) <= MAX_MESSAGES:
        raise ApiError("invalid_value", f"input has {len(items)} items; send 1 to {MAX_MESSAGES}", param="input")
    return [_checked(f"input[{at}]", each) for at, each in enumerate(items)]


_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "message": ("role", "content"), "reasoning": (), "function_call": ("name", "arguments", "call_id"),
    "function_call_output": ("call_id", "output"), "custom_tool_call": ("name", "input", "call_id"),
    "custom_tool_call_output": ("call_id", "output"), "item_reference": ("id",),
}  # fmt: skip
"""Type of an item → fields without which it is none."""


def _checked(where: str, item: Item) -> Item:
    kind = item.type or "message"
    if kind not in _NEEDED:
        shown = kind if _KIND.fullmatch(kind) else "this type"
        message = f"{where}: items of type {shown} are not supported; send {', '.join(_NEEDED)}"
        raise ApiError("unsupported_parameter", message, param="input")
    for name in _NEEDED[kind]:
        if getattr(item, name) is None:
            raise ApiError("missing_field", f"{where} has no {name}", param="input")
    if kind == "item_reference":
        return item
    for name in ("content", "output", "summary"):
        for at, part in enumerate(getattr(item, name) or () if not isinstance(getattr(item, name), str) else ()):
            _check_part(f"{where}.{name}[{at}]", part)
    content = item.content
    if isinstance(content, str):
        content = [Part("output_text" if item.role == "assistant" else "input_text", content)]
    status = item.status or (None if kind == "reasoning" else "completed")
    return structs.replace(item, type=kind, id=item.id or item_id(kind), content=content, status=status)


def _check_part(where: str, part: Part) -> None:
    if part.type == "refusal" and part.refusal is not None:
        return
    if part.type not in _TEXT_PARTS:
        shown = part.type if _KIND.fullmatch(part.type) else "this type"
        raise ApiError("unsupported_parameter", f"{where}: parts of type {shown} are not supported; send input_text", param="input")
    if part.text is None:
        raise ApiError("missing_field", f"{where} has no text", param="input")


def as_messages(items: Sequence[Item]) -> list[wire.ChatMessage]:
    """The items as messages: what the assistant thought, said and called in a row is one."""
    found: list[wire.ChatMessage] = []
    for item in items:
        new = _message(item)
        if found and _continues(found[-1], new):
            new = _both(found.pop(), new)
        found.append(new)
    return found


def _continues(last: wire.ChatMessage, new: wire.ChatMessage) -> bool:
    """True if a message of the assistant goes on with `new`: it thinks, then speaks, then calls."""
    if last.role != "assistant" or new.role != "assistant":
        return False
    if new.tool_calls:
        return True
    return not last.tool_calls and last.content is None


def _both(last: wire.ChatMessage, new: wire.ChatMessage) -> wire.ChatMessage:
    return structs.replace(
        last, content=last.content if new.content is None else new.content,
        tool_calls=[*(last.tool_calls or ()), *(new.tool_calls or ())] or None,
        reasoning_content="\n".join(each for each in (last.reasoning_content, new.reasoning_content) if each) or None,
    )  # fmt: skip


def _message(item: Item) -> wire.ChatMessage:
    if item.type == "message":
        return wire.ChatMessage(str(item.role), _content(item.content))
    if item.type == "reasoning":
        said = item.content if isinstance(item.content, list) and item.content else item.summary or []
        thought = "".join(part.text or "" for part in said) or unwrapped(item.encrypted_content or "")
        return wire.ChatMessage("assistant", reasoning_content=thought or None)
    if item.type in ("function_call", "custom_tool_call"):
        arguments = item.arguments if item.type == "function_call" else json.dumps({"input": item.input}, ensure_ascii=False)
        function = wire.FunctionCall(flat_name(str(item.name), item.namespace), arguments or "{}")
        return wire.ChatMessage("assistant", tool_calls=[wire.ToolCall(function, item.call_id, "function")])
    return wire.ChatMessage("tool", _content(item.output) or "", tool_call_id=item.call_id)


def _content(given: str | list[Part] | None) -> str | list[wire.ContentPart] | None:
    """One text stays a text: templates that walk over parts and those that do not read it alike."""
    if given is None or isinstance(given, str):
        return given
    parts = [wire.ContentPart("text", part.text if part.type != "refusal" else part.refusal) for part in given]
    return (parts[0].text or "") if len(parts) == 1 else parts


# ── the whole request ───────────────────────────────────────────────────────────────────────────────────────────────


def as_chat(payload: ResponsesRequest, items: Sequence[Item], tools: Tools) -> wire.ChatCompletionRequest:
    """The chat of a request whose conversation is `items`. Raises ApiError."""
    _check_options(payload)
    system = [] if not payload.instructions else [wire.ChatMessage("system", payload.instructions)]
    has_logprobs = wants_logprobs(payload)
    more: dict[str, Any] = {name: getattr(payload, name) for name in _COMMON}
    return wire.ChatCompletionRequest(
        **more | {
            "messages": [*system, *as_messages(items)],
            "max_tokens": msgspec.UNSET if payload.max_output_tokens is None else payload.max_output_tokens,
            "logprobs": has_logprobs or None,
            "top_logprobs": payload.top_logprobs if has_logprobs else None,
            "response_format": _response_format(payload),
            "tools": tools.functions or None,
            "tool_choice": _tool_choice(payload.tool_choice),
            "reasoning_effort": None if payload.reasoning is None else payload.reasoning.effort,
        }
    )  # fmt: skip


def wants_logprobs(payload: ResponsesRequest) -> bool:
    """True if the answer's text has log-probabilities."""
    return bool(payload.top_logprobs) or LOGPROBS in (payload.include or ())


def _check_options(payload: ResponsesRequest) -> None:
    if payload.max_output_tokens is not None and payload.max_output_tokens < 1:
        raise ApiError("invalid_value", "max_output_tokens must be at least 1", param="max_output_tokens")
    for name in payload.include or ():
        if name not in INCLUDABLE:
            raise ApiError("invalid_value", f"include has a name that is unknown; it may have {', '.join(INCLUDABLE)}", param="include")
    metadata = payload.metadata or {}
    longest_name, longest = max(map(len, metadata), default=0), max(map(len, metadata.values()), default=0)
    if len(metadata) > MAX_METADATA or longest_name > MAX_METADATA_NAME or longest > MAX_METADATA_VALUE:
        message = (
            f"metadata has {len(metadata)} entries with names of up to {longest_name} and values of up to {longest} characters; "
            f"at most {MAX_METADATA} with {MAX_METADATA_NAME} and {MAX_METADATA_VALUE} are taken"
        )
        raise ApiError("invalid_value", message, param="metadata")


def _response_format(payload: ResponsesRequest) -> dict[str, Any] | None:
    form = payload.text.format if payload.text is not None else None
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": form.name, "schema": form.schema, "strict": form.strict}}
