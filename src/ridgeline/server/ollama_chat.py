"""A request in Ollama's dialect as a chat or a completion: its messages, tools and options in the terms that all dialects share.

Owns what each option means, and what is refused of a request. What a chat means is `server.chat`'s.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from ridgeline.server import wire
from ridgeline.server.errors import ApiError
from ridgeline.server.notes import Notes
from ridgeline.server.ollama_shapes import ChatRequest, GenerateRequest, OllamaMessage, OllamaTool, Options
from ridgeline.text.tools.hearing import SHORT_ID

NAMES: Final = {
    **{name: f"options.{name}" for name in ("temperature", "top_k", "top_p", "min_p", "seed", "stop")},
    **{name: f"options.{name}" for name in ("presence_penalty", "frequency_penalty")},
    "max_tokens": "options.num_predict", "repetition_penalty": "options.repeat_penalty", "response_format": "format",
    "reasoning_effort": "think",
}  # fmt: skip
"""Fields of a chat → fields of a request here, for errors."""
UNIT_SECONDS: Final = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
MAX_KEEP_ALIVE: Final = 31_622_400.0
LATEST: Final = ":latest"
"""Tag of a name that has none."""


def plain_name(name: str | None) -> str:
    """The name of a model without the tag that means none. Raises ApiError where there is no name."""
    if not name:
        raise ApiError("missing_field", "model is missing; send the name of a model", param="model")
    return name.removesuffix(LATEST)


def keep_alive_seconds(value: object) -> float | None:
    """Seconds of a `keep_alive`: a number of them, or a duration as 1h30m; below 0: for ever. None: not said.

    Raises ApiError for others."""
    text = value if isinstance(value, str) else ""
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        found = value
    elif re.fullmatch(r"-?[0-9]{1,9}(\.[0-9]{1,9})?", text):
        found = float(text)
    elif re.fullmatch(r"-?([0-9]{1,9}(\.[0-9]{1,9})?(ms|[smh]))+", text):
        parts = re.findall(r"([0-9.]+)(ms|[smh])", text)
        found = sum(float(number) * UNIT_SECONDS[unit] for number, unit in parts) * (-1 if text.startswith("-") else 1)
    else:
        raise ApiError("invalid_value", "keep_alive is no duration; send seconds, or one as 5m or 1h30m", param="keep_alive")
    return None if found is None else min(found, MAX_KEEP_ALIVE)


def tagged(name: str) -> str:
    """The name of a model as its clients list it."""
    return name if ":" in name else name + LATEST


def as_chat(payload: ChatRequest, max_model_len: int, notes: Notes) -> wire.ChatCompletionRequest:
    """The same as a chat. Raises ApiError for what is not taken here."""
    tools = [_tool(at, each) for at, each in enumerate(payload.tools or ())] or None
    return wire.ChatCompletionRequest(messages=_messages(payload.messages or ()), tools=tools, **_fields(payload, max_model_len, notes))


def prompt_as_chat(payload: GenerateRequest, max_model_len: int, notes: Notes) -> wire.ChatCompletionRequest:
    """A prompt that the model's template is to be put around."""
    system = [wire.ChatMessage("system", payload.system)] if payload.system else []
    messages = [*system, wire.ChatMessage("user", payload.prompt or "")]
    return wire.ChatCompletionRequest(messages=messages, **_fields(payload, max_model_len, notes))


def as_completion(payload: GenerateRequest, max_model_len: int, notes: Notes) -> wire.CompletionRequest:
    """A prompt as it is, or one with a suffix. Raises ApiError for what only a template could tell."""
    if payload.system:
        raise ApiError("invalid_value", "system is told by a template, which raw and suffix leave out; write it in prompt", param="system")
    found = _fields(payload, max_model_len, notes)
    if found.pop("think") not in (None, False):
        notes.ignore("think", "a prompt that is taken as it is says itself whether to think")
    return wire.CompletionRequest(prompt=payload.prompt or "", suffix=payload.suffix or None, **found)


def _fields(payload: ChatRequest | GenerateRequest, max_model_len: int, notes: Notes) -> dict[str, Any]:
    """Fields of a chat or a completion that stand in `options` here, or beside it."""
    options = payload.options or Options()
    asked = options.num_predict
    found: dict[str, Any] = {
        "max_tokens": None if asked is None or asked <= 0 else asked,
        "seed": None if options.seed is not None and options.seed < 0 else options.seed,
        "think": payload.think,
        "stream": payload.stream is not False,
        "logprobs": payload.logprobs or None,
        "top_logprobs": payload.top_logprobs if payload.logprobs else None,
        "response_format": _form(payload.format),
    }
    for name in ("temperature", "top_k", "top_p", "min_p", "stop", "presence_penalty", "frequency_penalty"):
        found[name] = getattr(options, name)
    if options.repeat_penalty is not None and options.repeat_last_n != 0:
        found["repetition_penalty"] = options.repeat_penalty
        if options.repeat_last_n not in (None, -1):
            notes.ignore("options.repeat_last_n", "the penalty counts the whole prompt and output")
    if options.num_ctx is not None and options.num_ctx > max_model_len:
        notes.ignore("options.num_ctx", "the context is fixed when the server starts (--max-model-len)")
    if payload.truncate:
        notes.ignore("truncate", "prompts are not cut; one that does not fit is refused")
    return found


def _form(given: str | dict[str, Any] | None) -> dict[str, Any] | None:
    """The form of an answer as chats ask for it."""
    if given is None or given == "":
        return None
    if given == "json":
        return {"type": "json_object"}
    if isinstance(given, str):
        raise ApiError("invalid_value", 'format is no form that is known; send "json" or a JSON Schema as an object', param="format")
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": given}}


def _tool(at: int, tool: OllamaTool) -> wire.Tool:
    if tool.type not in (None, "function"):
        raise ApiError("unsupported_parameter", f"tools[{at}] is no function; others are not supported here", param="tools")
    return wire.Tool("function", tool.function)


def _messages(given: Sequence[OllamaMessage]) -> list[wire.ChatMessage]:
    """The messages, their calls with ids: results that name no call answer the first open one of their function, or the first at all."""
    found, open_calls, count = list[wire.ChatMessage](), list[tuple[str, str]](), 0
    for at, message in enumerate(given):
        if message.images:
            raise ApiError("unsupported_parameter", f"messages[{at}].images is not supported by this server; send text", param="messages")
        calls = []
        for call in message.tool_calls or ():
            count += 1
            call_id = call.id or f"{count:0{SHORT_ID}d}"
            open_calls.append((call.function.name, call_id))
            arguments = call.function.arguments
            text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            calls.append(wire.ToolCall(wire.FunctionCall(call.function.name, text or "{}"), call_id, "function"))
        answered = message.tool_call_id
        if message.role == "tool" and answered is None and open_calls:
            pair = next((each for each in open_calls if each[0] == message.tool_name), open_calls[0])
            open_calls.remove(pair)
            answered = pair[1]
        content = message.content if message.content or not calls else None
        found.append(wire.ChatMessage(
            message.role, content if content is not None or calls else "", message.tool_name, calls or None, answered,
            reasoning_content=message.thinking or None,
        ))  # fmt: skip
    return found
