"""Messages as a template reads them, from messages as a client sent them: plain, in the format that the template takes, masked.

Owns the rules that transformers and vLLM share (keys without a value are left out, parts of type text become one string for templates that
do not walk over parts, a tool call's arguments become an object, a final message is continued) and the mask that keeps a client's text
from becoming control tokens: `MASK` is put after the first character of a name, and is removed when the text is encoded. Never renders.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ridgeline.errors import RequestError
from ridgeline.text.chat_roles import ALL_ROLES, Message, Roles, fold
from ridgeline.text.tokenizer import MASK, Tokenizer, longest_match_pattern


@dataclass(frozen=True, slots=True)
class Conversation:
    """A chat as a client states it; nothing in it is trusted.

    messages                objects as in OpenAI's API: role, content (a string, or a list of parts of type text), tool_calls …
    tools                   tool definitions as in OpenAI's API; None: the chat has none
    documents               for templates with retrieval; None: none
    add_generation_prompt   end with the header of the assistant's turn
    continue_final_message  end with the content of the last message, which the model then continues; excludes the above
    arguments               other variables that the template reads (`enable_thinking`, …), except names that Ridgeline sets
    """

    messages: Sequence[Mapping[str, object]]
    tools: Sequence[Mapping[str, object]] | None = None
    documents: Sequence[Mapping[str, object]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    arguments: Mapping[str, object] = field(default_factory=dict)


ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "ipython", "model", "context", "latest_reminder"})
"""Roles that templates know by name. They are part of names such as `<|user|>` and stay what they are."""


def own_markup(markup: frozenset[str], templates: Collection[str]) -> frozenset[str]:
    """Tags around parts of an assistant's text that a template itself names (`<think>` and `</think>`, `<tool_call>` …). The model wrote
    them as tokens, and templates look for them, so what an assistant said keeps them."""
    pairs = ((f"<{name[1:-1]}>", f"</{name[1:-1]}>") for name in markup if name.startswith("<") and name.endswith(">"))
    tags = {name for pair in pairs if markup >= set(pair) for name in pair}
    return frozenset(name for name in tags if any(name in text for text in templates))


class ControlNames:
    """The names of a tokenizer's control tokens and markup. Names of a single character, which no real vocabulary has, are not masked."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(name for name in names if len(name) > 1)
        self._starts = frozenset(name[:end] for name in self._names for end in range(1, len(name)))
        self._longest = max(map(len, self._names), default=0)
        self._at = re.compile(f"(?={longest_match_pattern(self._names)})") if self._names else None

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, kept: Collection[str] = ()) -> "ControlNames":
        """The names of all control tokens and of all markup but what is `kept`."""
        names = (tokenizer.piece(token).decode("utf-8", "replace") for token in tokenizer.control)
        return cls([*names, *(tokenizer.markup - set(kept))])

    def mask(self, value: object) -> object:
        """The same data with every string in it masked, keys too."""
        if isinstance(value, str):
            return self._masked(value)
        if isinstance(value, Mapping):
            return {self.mask(key): self.mask(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.mask(item) for item in value]
        return value

    def mask_role(self, role: str) -> str:
        """A role that templates could complete to a name (`<|` + role + `|>`) is masked, unless it is one that they know."""
        if role in ROLES or not any(role in name for name in self._names):
            return self._masked(role)
        return role[:1] + MASK + role[1:]

    def _masked(self, text: str) -> str:
        """A mark in every name, and in every start of a name at the end, which what follows could complete."""
        text = unmasked(text)
        if self._at is None:
            return text
        marks = {match.start() + 1 for match in self._at.finditer(text)}
        marks.update(len(text) - size + 1 for size in range(1, min(len(text) + 1, self._longest)) if text[-size:] in self._starts)
        if not marks:
            return text
        ends = sorted(marks)
        return MASK.join(text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True))


def unmasked(text: str) -> str:
    """The text without masks."""
    return text.replace(MASK, "")


MAX_MESSAGES: Final = 4_096
MAX_ARGUMENTS: Final = 32
MAX_ARGUMENT_CHARACTERS: Final = 4_096

TAG: Final = "CONTINUE_FINAL_MESSAGE_TAG "
"""Marks where the final message's content ends; its last character shows whether the template trims."""

_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_]{0,63}")
_RESERVED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "conversation", "tokenize"}
)
_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names under which a message's reasoning is sent; templates read the first, or the second."""
_SAID = frozenset({"content", *_REASONING})


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """The format of messages that a template takes, found by rendering test messages.

    parts             it walks over the parts of a content; else they are joined to a string
    object_arguments  it writes a tool call's arguments as JSON itself; else it wants the string
    roles             the roles that it takes
    roles_with_tools  the same, in conversations with tools
    """

    parts: bool = True
    object_arguments: bool = True
    roles: Roles = ALL_ROLES
    roles_with_tools: Roles = ALL_ROLES

    def fold(self, conversation: Conversation) -> tuple[list[Message], list[str]]:
        """The conversation's messages in roles that the template takes, and the roles of those that were folded."""
        return fold(conversation.messages, self.roles_with_tools if conversation.tools else self.roles)


AS_SENT: Final = MessageFormat(parts=True, object_arguments=False)
"""Nothing is converted."""


@dataclass(frozen=True, slots=True)
class VariableBuilder:
    """Builds a template's variables.

    names      control tokens and markup, masked in clients' text
    assistant  the same for what an assistant said, which may hold more
    format     the message format that the template takes
    fixed      variables that the model sets (`bos_token`, …)
    variables  names that the template reads
    """

    names: ControlNames
    assistant: ControlNames
    format: MessageFormat
    fixed: Mapping[str, str]
    variables: Collection[str]

    def build(self, conversation: Conversation) -> dict[str, Any]:
        """The variables of the template. Raises `RequestError` for a conversation that no template can render."""
        if conversation.add_generation_prompt and conversation.continue_final_message:
            raise RequestError(
                "continue_final_message continues the last message, add_generation_prompt starts a new one: set one of them to false",
                param="continue_final_message",
            )
        plain = [self._plain(index, message) for index, message in enumerate(_checked_messages(conversation.messages))]
        messages = [self._masked(message) for message in self.format.fold(replace(conversation, messages=plain))[0]]
        if conversation.continue_final_message:
            messages[-1] = _tagged(messages[-1])
        return {
            **self.fixed,
            **self._arguments(conversation.arguments),
            "messages": messages,
            "tools": _mask_list(self.names, conversation.tools, "tools"),
            "documents": _mask_list(self.names, conversation.documents, "documents"),
            "add_generation_prompt": conversation.add_generation_prompt,
        }

    def unread(self, arguments: Mapping[str, object]) -> frozenset[str]:
        """Names that the template does not read, and that it might: `build` rejects them."""
        names = {name for name in arguments if _NAME.fullmatch(name)}
        return frozenset(names - set(self.variables) - _RESERVED - set(self.fixed))

    @property
    def unset(self) -> frozenset[str]:
        """Names that the template reads and only a client can set."""
        return frozenset(self.variables) - _RESERVED - self.fixed.keys()

    def _arguments(self, arguments: Mapping[str, object]) -> dict[str, Any]:
        if not arguments:
            return {}
        for name in arguments:
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise _bad_argument(f"a name in it is {str(name)[:80]!r}: letters, digits and underscores, at most 64")
            if name in _RESERVED or name in self.fixed:
                raise _bad_argument(f"{name!r} in it is set by the server: leave it out")
            if name not in self.variables:
                known = ", ".join(sorted(self.unset)[:20]) or "none"
                raise _bad_argument(f"this model's chat template reads no {name!r}; it reads: {known}")
        try:
            size = len(json.dumps(dict(arguments)))
        except (RecursionError, TypeError, ValueError):
            raise _bad_argument("its values are not JSON") from None
        if len(arguments) > MAX_ARGUMENTS or size > MAX_ARGUMENT_CHARACTERS:
            raise _bad_argument(
                f"it has {len(arguments)} names and {size} characters, at most {MAX_ARGUMENTS} and {MAX_ARGUMENT_CHARACTERS} are allowed"
            )
        return {name: self.names.mask(value) for name, value in arguments.items()}

    def _plain(self, index: int, message: Mapping[str, object]) -> dict[str, Any]:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise _bad_message(index, "is not an object with a role: give role and content")
        plain = {str(key): value for key, value in message.items() if value is not None}
        reasoning = next((plain[name] for name in _REASONING if name in plain), None)
        if reasoning is not None:
            plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
        if "content" in plain:
            plain["content"] = self._content(index, plain["content"])
        if "tool_calls" in plain:
            plain["tool_calls"] = self._tool_calls(index, plain["tool_calls"])
        return plain

    def _masked(self, message: Message) -> dict[str, Any]:
        role = str(message["role"])
        said = self.assistant if role == "assistant" else self.names
        try:
            masked = {key: (said if key in _SAID else self.names).mask(value) for key, value in message.items()}
            return {**masked, "role": self.names.mask_role(role)}
        except RecursionError:
            raise RequestError("a message nests too deeply: at most some 100 levels are supported", param="messages") from None

    def _content(self, index: int, content: object) -> object:
        if isinstance(content, str):
            return content
        if not isinstance(content, (list, tuple)):
            raise _bad_message(index, f"has a content of type {type(content).__name__}: give a string, or a list of parts of type text")
        texts = [_text_of(index, part) for part in content]
        return [{"type": "text", "text": text} for text in texts] if self.format.parts else "\n".join(texts)

    def _tool_calls(self, index: int, calls: object) -> object:
        if not isinstance(calls, (list, tuple)) or not all(isinstance(call, Mapping) for call in calls):
            raise _bad_message(index, "has tool_calls that are not a list of objects")
        return [self._tool_call(index, call) for call in calls]

    def _tool_call(self, index: int, call: Mapping[str, object]) -> dict[str, object]:
        """OpenAI sends arguments as a string of JSON; most templates write the object in their own way."""
        function = call.get("function")
        if not isinstance(function, Mapping):
            return dict(call)
        arguments = function.get("arguments")
        if not isinstance(arguments, str) or not self.format.object_arguments:
            return dict(call)
        try:
            parsed = json.loads(arguments) if arguments.strip() else {}
        except (RecursionError, ValueError):
            parsed = None
        if not isinstance(parsed, dict):
            raise _bad_message(index, f"has a tool call whose arguments are not a JSON object: {arguments[:80]!r}")
        return {**call, "function": {**function, "arguments": parsed}}


def cut_at_tag(text: str, final: Mapping[str, Any]) -> str:
    """The rendered text up to the end of the final message's content, as transformers cuts it. Raises `RequestError` where the template
    changed that content."""
    content = final["content"] if isinstance(final["content"], str) else final["content"][-1]["text"]
    place = text.rfind(TAG.strip())
    if place < 0 or content.removesuffix(TAG).strip() not in text:
        raise RequestError(
            "the chat template changes or leaves out the last message's content, so it cannot be continued: "
            "set continue_final_message to false",
            param="continue_final_message",
        )
    return text[:place] if text.startswith(TAG, place) else text[:place].rstrip()


def _checked_messages(messages: Sequence[Mapping[str, object]]) -> Sequence[Mapping[str, object]]:
    if not 1 <= len(messages) <= MAX_MESSAGES:
        raise RequestError(f"messages holds {len(messages)} messages: give 1 … {MAX_MESSAGES}", param="messages")
    return messages


def _text_of(index: int, part: object) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        raise _bad_message(index, f"has a part of type {str(kind)[:40]!r}: only parts of type 'text' are read")
    return str(part["text"])


def _tagged(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": content + TAG}
    if not content:
        raise RequestError(
            "the last message has no content to continue: give one, or set continue_final_message to false", param="messages"
        )
    *before, last = content
    return {**message, "content": [*before, {**last, "text": last["text"] + TAG}]}


def _mask_list(names: ControlNames, values: Sequence[Mapping[str, object]] | None, param: str) -> Any:
    if values is None:
        return None
    if not all(isinstance(value, Mapping) for value in values):
        raise RequestError(f"{param} is not a list of objects", param=param)
    try:
        return names.mask(values)
    except RecursionError:
        raise RequestError(f"{param} nests too deeply: at most some 100 levels are supported", param=param) from None


def _bad_argument(reason: str) -> RequestError:
    return RequestError(f"chat_template_kwargs: {reason}", param="chat_template_kwargs")


def _bad_message(index: int, problem: str) -> RequestError:
    return RequestError(f"message {index} {problem}", param="messages")
